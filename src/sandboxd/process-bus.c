/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A command on the bus. */

#include <signal.h>
#include <stddef.h>
#include <stdio.h>

#include "authorize.h"
#include "bus-util.h"
#include "options.h"
#include "process.h"

/* A held call holds memory, and descriptors that came with it. */
#define WAITS_MAX 256U

void process_path(const struct process *p, char ret[96]) {
        snprintf(ret, 96, BUS_PATH_SANDBOX "/%s/process/%u", p->sandbox->id, p->id);
}

/* /org/sandboxd1/sandbox/ID/process/N */
static struct process *process_by_path(struct manager *m, const char *path) {
        char id[ID_SIZE] = "";
        struct sandbox *s;
        uint64_t number;
        const char *p;

        if (strncmp(path, BUS_PATH_SANDBOX "/", strlen(BUS_PATH_SANDBOX "/")) != 0)
                return NULL;
        p = path + strlen(BUS_PATH_SANDBOX "/");
        if (strnlen(p, ID_SIZE) < ID_SIZE)
                return NULL;
        memcpy(id, p, ID_SIZE - 1);
        p += ID_SIZE - 1;
        s = sandbox_by_id(m, id);
        if (!s || strncmp(p, "/process/", 9) != 0 || parse_uint64(p + 9, &number) < 0 || number > UINT32_MAX)
                return NULL;
        return process_by_id(s, (uint32_t) number);
}

int process_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret,
                 sd_bus_error *error) {
        *ret = process_by_path(userdata, path);
        return *ret ? 1 : 0;
}

int process_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error) {
        struct manager *m = userdata;
        _cleanup_strv_free_ char **paths = NULL;
        struct sandbox *s;
        struct process *p;

        LIST_FOREACH (s, &m->sandboxes, sandboxes)
                LIST_FOREACH (p, &s->processes, processes)
                        if (strv_extendf(&paths, BUS_PATH_SANDBOX "/%s/process/%u", s->id, p->id) < 0)
                                return -ENOMEM;
        *ret = TAKE_PTR(paths);
        return 0;
}

/* The process may have been dropped while the caller's rights were looked up: it is found again by the call's path. */
static struct process *process_of_call(struct call *c, sd_bus_error *error) {
        struct process *p = process_by_path(c->manager, sd_bus_message_get_path(c->message));

        if (!p)
                sd_bus_error_set(error, BUS_ERROR_NO_SUCH_PROCESS, "The process is gone");
        return p;
}

static int signal_allowed(struct call *c, sd_bus_error *error) {
        struct process *p = process_of_call(c, error);
        int signal, r;

        if (!p)
                return -ESRCH;
        r = sd_bus_message_read(c->message, "i", &signal);
        if (r >= 0)
                r = options_read_flags(c->message, error);
        return r < 0 ? r : process_signal(c->sandbox, p, signal, false, c->message, error);
}

static int method_signal(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct process *p = userdata;

        return call_authorize(p->sandbox->manager, message, VERB_EXEC, p->sandbox, NULL, signal_allowed);
}

static int wait_allowed(struct call *c, sd_bus_error *error) {
        struct process *p = process_of_call(c, error);
        int r;

        if (!p)
                return -ESRCH;
        r = options_read_flags(c->message, error);
        if (r < 0)
                return r;
        if (p->ended)
                return sd_bus_reply_method_return(c->message, "sitt", p->result, p->status, p->cpu_usec,
                                                  p->memory_peak);
        if (c->sandbox->n_waits >= WAITS_MAX)
                return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED, "%u calls wait for this sandbox already",
                                         WAITS_MAX);
        r = bus_calls_add(&p->wait_calls, &p->n_wait_calls, c->message);
        if (r >= 0)
                c->sandbox->n_waits++;
        return r;
}

static int method_wait(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct process *p = userdata;

        return call_authorize(p->sandbox->manager, message, VERB_EXEC, p->sandbox, NULL, wait_allowed);
}

static int get_sandbox(sd_bus *bus, const char *path, const char *interface, const char *property,
                       sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        char sandbox[64];

        sandbox_path(((struct process *) userdata)->sandbox, sandbox);
        return sd_bus_message_append(reply, "o", sandbox);
}

static int get_argv(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                    void *userdata, sd_bus_error *error) {
        return sd_bus_message_append_strv(reply, ((struct process *) userdata)->argv);
}

static int get_state(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                     void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", ((struct process *) userdata)->ended ? "ended" : "running");
}

static int get_result(sd_bus *bus, const char *path, const char *interface, const char *property,
                      sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", strempty(((struct process *) userdata)->result));
}

static int get_cpu(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                   void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "t", ((struct process *) userdata)->cpu_usec * NSEC_PER_USEC);
}

#define CONST SD_BUS_VTABLE_PROPERTY_CONST
/* Signals go to everybody: they say that something changed, and whoever may see it asks. */
#define CHANGES SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION

const sd_bus_vtable process_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("Signal", SD_BUS_ARGS("i", signal, "t", flags), SD_BUS_NO_RESULT, method_signal,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("Wait", SD_BUS_ARGS("t", flags),
                                SD_BUS_RESULT("s", result, "i", status, "t", cpu_usec, "t", memory_peak), method_wait,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_PROPERTY("Id", "u", NULL, offsetof(struct process, id), CONST),
        SD_BUS_PROPERTY("Sandbox", "o", get_sandbox, 0, CONST),
        SD_BUS_PROPERTY("Argv", "as", get_argv, 0, CONST),
        SD_BUS_PROPERTY("User", "s", NULL, offsetof(struct process, user), CONST),
        SD_BUS_PROPERTY("PID", "u", NULL, offsetof(struct process, pid), CONST),
        SD_BUS_PROPERTY("StartedUSec", "t", NULL, offsetof(struct process, started_usec), CONST),
        SD_BUS_PROPERTY("State", "s", get_state, 0, CHANGES),
        SD_BUS_PROPERTY("Result", "s", get_result, 0, CHANGES),
        SD_BUS_PROPERTY("Status", "i", NULL, offsetof(struct process, status), CHANGES),
        SD_BUS_PROPERTY("EndedUSec", "t", NULL, offsetof(struct process, ended_usec), CHANGES),
        SD_BUS_PROPERTY("CPUUsageNSec", "t", get_cpu, 0, CHANGES),
        SD_BUS_PROPERTY("MemoryPeak", "t", NULL, offsetof(struct process, memory_peak), CHANGES),
        SD_BUS_PROPERTY("Leftovers", "u", NULL, offsetof(struct process, leftovers), CHANGES),
        SD_BUS_VTABLE_END,
};
