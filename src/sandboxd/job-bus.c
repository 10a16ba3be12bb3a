/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A job on the bus. */

#include <stddef.h>

#include "authorize.h"
#include "job.h"
#include "options.h"

static struct job *job_by_path(struct manager *m, const char *path) {
        struct job *j;
        char p[64];

        LIST_FOREACH (j, &m->jobs, jobs) {
                job_path(j, p);
                if (streq(p, path))
                        return j;
        }
        return NULL;
}

int job_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret, sd_bus_error *error) {
        *ret = job_by_path(userdata, path);
        return *ret ? 1 : 0;
}

int job_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error) {
        struct manager *m = userdata;
        _cleanup_strv_free_ char **paths = NULL;
        struct job *j;

        LIST_FOREACH (j, &m->jobs, jobs) {
                char path[64];

                job_path(j, path);
                if (strv_extend(&paths, path) < 0)
                        return -ENOMEM;
        }
        *ret = TAKE_PTR(paths);
        return 0;
}

static int cancel_allowed(struct call *c, sd_bus_error *error) {
        struct job *j = job_by_path(c->manager, sd_bus_message_get_path(c->message));
        int r;

        if (!j)
                return sd_bus_error_set(error, BUS_ERROR_NO_SUCH_JOB, "The job is gone");
        r = options_read_flags(c->message, error);
        return r < 0 ? r : job_cancel(j, c->message);
}

static int method_cancel(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct job *j = userdata;

        return call_authorize(j->manager, message, VERB_BAKE, NULL, j->target, cancel_allowed);
}

static int get_type(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                    void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", "bake");
}

static int get_state(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                     void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", ((struct job *) userdata)->canceling ? "canceling" : "running");
}

#define CONST SD_BUS_VTABLE_PROPERTY_CONST
#define CHANGES SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE

const sd_bus_vtable job_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("Cancel", SD_BUS_ARGS("t", flags), SD_BUS_NO_RESULT, method_cancel,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_PROPERTY("Id", "u", NULL, offsetof(struct job, id), CONST),
        SD_BUS_PROPERTY("Type", "s", get_type, 0, CONST),
        SD_BUS_PROPERTY("Target", "s", NULL, offsetof(struct job, target), CONST),
        SD_BUS_PROPERTY("Owner", "u", NULL, offsetof(struct job, owner), CONST),
        SD_BUS_PROPERTY("Unit", "s", NULL, offsetof(struct job, unit), CONST),
        SD_BUS_PROPERTY("State", "s", get_state, 0, CHANGES),
        SD_BUS_PROPERTY("Progress", "d", NULL, offsetof(struct job, progress), CHANGES),
        SD_BUS_PROPERTY("Status", "s", NULL, offsetof(struct job, status), CHANGES),
        SD_BUS_VTABLE_END,
};
