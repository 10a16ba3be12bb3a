/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "manager.h"

#include <systemd/sd-daemon.h>

#include "caller.h"
#include "guard.h"
#include "job.h"
#include "log.h"
#include "log-control.h"
#include "manager-bus.h"
#include "process.h"
#include "sandbox.h"
#include "template.h"
#include "units.h"
#include "worker.h"

size_t manager_count_owner(struct manager *m, uid_t owner) {
        struct sandbox *s;
        size_t n = 0;

        LIST_FOREACH (s, &m->sandboxes, sandboxes)
                n += s->owner == owner;
        return n;
}

/* The objects that come and go: each kind with how to find one and how to list all. */
static const struct {
        const char *prefix, *interface;
        const sd_bus_vtable *vtable;
        sd_bus_object_find_t find;
        sd_bus_node_enumerator_t enumerate;
} kinds[] = {
        { BUS_PATH_SANDBOX, BUS_INTERFACE_SANDBOX, sandbox_vtable, sandbox_find, sandbox_enumerate },
        { BUS_PATH_SANDBOX, BUS_INTERFACE_PROCESS, process_vtable, process_find, process_enumerate },
        { BUS_PATH_TEMPLATE, BUS_INTERFACE_TEMPLATE, template_vtable, template_find, template_enumerate },
        { BUS_PATH_JOB, BUS_INTERFACE_JOB, job_vtable, job_find, job_enumerate },
};

static int export_objects(struct manager *m) {
        int r;

        r = guard_install(m);
        if (r >= 0)
                r = sd_bus_add_object_vtable(m->bus, NULL, BUS_PATH, BUS_INTERFACE_MANAGER, manager_vtable, m);
        if (r >= 0)
                r = sd_bus_add_object_manager(m->bus, NULL, BUS_PATH);
        if (r >= 0)
                r = log_control_export(m->bus);
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(kinds); i++) {
                r = sd_bus_add_fallback_vtable(m->bus, NULL, kinds[i].prefix, kinds[i].interface, kinds[i].vtable,
                                               kinds[i].find, m);
                if (r >= 0)
                        r = sd_bus_add_node_enumerator(m->bus, NULL, kinds[i].prefix, kinds[i].enumerate, m);
        }
        return r;
}

static int connect_bus(struct manager *m) {
        int r;

        r = sd_bus_open_system(&m->bus);
        if (r < 0)
                return log_error_errno(r, "Failed to connect to the system bus");
        /* Without the bus there is nothing to do here: systemd starts us again, and the sandboxes go on meanwhile. */
        (void) sd_bus_set_exit_on_disconnect(m->bus, true);
        r = export_objects(m);
        if (r >= 0)
                r = sd_bus_attach_event(m->bus, m->event, SD_EVENT_PRIORITY_NORMAL);
        return r < 0 ? log_error_errno(r, "Failed to export the bus objects") : 0;
}

int manager_new(struct conf *conf, struct host *host, struct manager **ret) {
        _cleanup_(manager_freep) struct manager *m = calloc(1, sizeof(*m));
        int r;

        if (!m)
                return log_oom();
        LIST_INIT(&m->sandboxes);
        LIST_INIT(&m->templates);
        LIST_INIT(&m->jobs);
        LIST_INIT(&m->forgettings);
        m->conf = conf;
        m->host = host;
        m->fail_rung = getenv("SANDBOXD_FAIL");
        r = sd_event_default(&m->event);
        if (r < 0)
                return log_error_errno(r, "Failed to make the event loop");
        r = connect_bus(m);
        if (r >= 0)
                r = callers_new(m->bus, &m->callers);
        if (r >= 0)
                r = units_new(m->event, &m->units);
        if (r >= 0)
                r = worker_new(m->event, &m->maker);
        if (r >= 0)
                r = worker_new(m->event, &m->sweeper);
        if (r >= 0)
                r = worker_new(m->event, &m->reader);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(m);
        return 0;
}

struct manager *manager_free(struct manager *m) {
        if (!m)
                return NULL;
        while (LIST_FIRST(&m->sandboxes))
                sandbox_free(LIST_FIRST(&m->sandboxes));
        jobs_free(m);
        forgettings_free(m);
        templates_free(m);
        worker_free(m->maker);
        worker_free(m->sweeper);
        worker_free(m->reader);
        units_free(m->units);
        callers_free(m->callers);
        sd_bus_flush_close_unref(m->bus);
        sd_event_unref(m->event);
        conf_free(m->conf);
        host_free(m->host);
        strv_free(m->missing_controllers);
        free(m);
        return NULL;
}

int manager_serve(struct manager *m) {
        int r;

        r = sd_bus_request_name(m->bus, BUS_NAME, 0);
        if (r < 0)
                return log_error_errno(r, "Failed to own the bus name " BUS_NAME);
        (void) sd_notifyf(0, "READY=1\nSTATUS=Serving %zu sandboxes with %s.", m->n_sandboxes,
                          host_accelerator(m->host));
        return 0;
}
