/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "units.h"

#include <stdio.h>
#include <sys/queue.h>

#include "log.h"

#define SYSTEMD "org.freedesktop.systemd1"
#define SYSTEMD_PATH "/org/freedesktop/systemd1"
#define SYSTEMD_MANAGER "org.freedesktop.systemd1.Manager"

/* Jobs here are starts that wait for nothing and stops that become kills after a few seconds. */
#define JOB_TIMEOUT_USEC (60 * USEC_PER_SEC)

/* A job that systemd has queued for us, or is about to. */
struct operation {
        LIST_ENTRY(operation) operations;
        struct units *units;
        char *job; /* its path; NULL until systemd has replied */
        unit_handler_t handler;
        void *userdata;
        bool stop;
        sd_bus_slot *call;
        sd_event_source *timer;
};

struct units {
        sd_bus *bus;
        sd_bus_slot *job_removed;
        LIST_HEAD(, operation) operations;
};

static void operation_free(struct operation *o) {
        sd_bus_slot_unref(o->call);
        sd_event_source_disable_unref(o->timer);
        free(o->job);
        free(o);
}

static void operation_finish(struct operation *o, int error, const char *message) {
        LIST_REMOVE(o, operations);
        o->handler(error, message, o->userdata);
        operation_free(o);
}

static int on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        operation_finish(userdata, -ETIMEDOUT, "systemd hasn't ended its job in time");
        return 0;
}

static int on_job_removed(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        struct units *u = userdata;
        const char *path, *unit, *result;
        struct operation *o;
        uint32_t id;
        int r;

        r = sd_bus_message_read(m, "uoss", &id, &path, &unit, &result);
        if (r < 0)
                return r;
        LIST_FOREACH (o, &u->operations, operations)
                if (streq_ptr(o->job, path))
                        break;
        if (!o)
                return 0;
        if (streq(result, "done"))
                operation_finish(o, 0, NULL);
        else {
                char text[256];

                snprintf(text, sizeof(text), "systemd's job for %s ended with result \"%s\"", unit, result);
                operation_finish(o, -EIO, text);
        }
        return 0;
}

static int on_job_queued(sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        struct operation *o = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(reply);
        const char *job;

        if (e) {
                bool gone = sd_bus_error_has_name(e, SYSTEMD ".NoSuchUnit");

                operation_finish(o, o->stop && gone ? 0 : -sd_bus_error_get_errno(e), e->message);
                return 0;
        }
        if (sd_bus_message_read(reply, "o", &job) < 0 || !(o->job = strdup(job)))
                operation_finish(o, -EIO, "systemd's reply makes no sense");
        return 0;
}

static int call_new(struct units *u, const char *member, sd_bus_message **ret) {
        return sd_bus_message_new_method_call(u->bus, ret, SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, member);
}

static int operation_start(struct units *u, sd_bus_message *call, bool stop, unit_handler_t handler, void *userdata) {
        struct operation *o = calloc(1, sizeof(*o));
        int r;

        if (!o)
                return -ENOMEM;
        *o = (struct operation){ .units = u, .handler = handler, .userdata = userdata, .stop = stop };
        r = sd_bus_call_async(u->bus, &o->call, call, on_job_queued, o, JOB_TIMEOUT_USEC);
        if (r >= 0)
                r = sd_event_add_time_relative(sd_bus_get_event(u->bus), &o->timer, CLOCK_MONOTONIC, JOB_TIMEOUT_USEC,
                                               0, on_timeout, o);
        if (r < 0) {
                operation_free(o);
                return r;
        }
        LIST_INSERT_HEAD(&u->operations, o, operations);
        return 0;
}

static int append_scope(sd_bus_message *m, const struct scope_spec *s) {
        int r;

        r = sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)(sv)(sv)(sv)", "Description", "s", s->description, "Slice",
                                  "s", s->slice, "AddRef", "b", 1, "CollectMode", "s", "inactive-or-failed",
                                  "CPUAccounting", "b", 1, "MemoryAccounting", "b", 1, "TasksAccounting", "b", 1,
                                  "PIDFDs", "ah", 1, s->pidfd);
        if (r < 0)
                return r;
        /* Nobody in it has anything to save: a stop that isn't obeyed at once is a kill. */
        r = sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)", "TimeoutStopUSec", "t", (uint64_t) (2 * USEC_PER_SEC),
                                  "MemoryMax", "t", s->memory_max, "MemorySwapMax", "t", UINT64_C(0), "TasksMax", "t",
                                  s->tasks_max, "DevicePolicy", "s", "closed");
        /* Its disk must be there until it has ended. */
        if (r >= 0)
                r = sd_bus_message_append(m, "(sv)", "After", "as", 1, "sandboxd-storage.service");
        if (r >= 0 && s->cpu_usec_per_sec != USEC_INFINITY)
                r = sd_bus_message_append(m, "(sv)", "CPUQuotaPerSecUSec", "t", s->cpu_usec_per_sec);
        if (r >= 0 && s->runtime_max_usec != USEC_INFINITY)
                r = sd_bus_message_append(m, "(sv)", "RuntimeMaxUSec", "t", s->runtime_max_usec);
        if (r >= 0)
                r = sd_bus_message_append(m, "(sv)", "DeviceAllow", "a(ss)", s->kvm ? 2 : 1, "/dev/net/tun", "rw",
                                          "/dev/kvm", "rw");
        return r;
}

/* StartTransientUnit, up to its properties, and what follows them. */
static int transient_begin(struct units *u, const char *name, sd_bus_message **ret) {
        int r;

        r = call_new(u, "StartTransientUnit", ret);
        if (r >= 0)
                r = sd_bus_message_append(*ret, "ss", name, "fail");
        return r < 0 ? r : sd_bus_message_open_container(*ret, 'a', "(sv)");
}

static int transient_start(struct units *u, sd_bus_message *m, unit_handler_t handler, void *userdata) {
        int r;

        r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_append(m, "a(sa(sv))", 0);
        return r < 0 ? r : operation_start(u, m, false, handler, userdata);
}

int units_start_scope(struct units *u, const struct scope_spec *spec, unit_handler_t handler, void *userdata) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        int r;

        r = transient_begin(u, spec->name, &m);
        if (r >= 0)
                r = append_scope(m, spec);
        return r < 0 ? r : transient_start(u, m, handler, userdata);
}

static int append_exec_start(sd_bus_message *m, char *const *argv) {
        int r;

        r = sd_bus_message_open_container(m, 'r', "sv");
        if (r >= 0)
                r = sd_bus_message_append(m, "s", "ExecStart");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'v', "a(sasb)");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "(sasb)");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'r', "sasb");
        if (r >= 0)
                r = sd_bus_message_append(m, "s", argv[0]);
        if (r >= 0)
                r = sd_bus_message_append_strv(m, (char **) argv);
        if (r >= 0)
                r = sd_bus_message_append(m, "b", 0);
        for (int i = 0; r >= 0 && i < 4; i++)
                r = sd_bus_message_close_container(m);
        return r;
}

int units_start_service(struct units *u, const struct service_spec *spec, unit_handler_t handler, void *userdata) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        int r;

        r = transient_begin(u, spec->name, &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)(sv)", "Description", "s", spec->description,
                                          "Slice", "s", spec->slice, "AddRef", "b", 1, "CollectMode", "s",
                                          "inactive-or-failed", "Type", "s", "exec", "NotifyAccess", "s", "main");
        if (r >= 0)
                r = sd_bus_message_append(m, "(sv)(sv)(sv)", "TimeoutStopUSec", "t", (uint64_t) (20 * USEC_PER_SEC),
                                          "KillMode", "s", "mixed", "PrivateTmp", "b", 1);
        /* 3: there was nothing to do. */
        if (r >= 0)
                r = sd_bus_message_append(m, "(sv)", "SuccessExitStatus", "(aiai)", 1, 3, 0);
        if (r >= 0)
                r = append_exec_start(m, spec->argv);
        return r < 0 ? r : transient_start(u, m, handler, userdata);
}

int units_stop(struct units *u, const char *name, unit_handler_t handler, void *userdata) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        int r;

        r = call_new(u, "StopUnit", &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "ss", name, "replace");
        return r < 0 ? r : operation_start(u, m, true, handler, userdata);
}

struct usage_query {
        unit_usage_handler_t handler;
        void *userdata;
};

static int read_usage_property(sd_bus_message *m, const char *name, struct unit_usage *usage) {
        const char *s;
        int r;

        if (streq(name, "CPUUsageNSec"))
                return sd_bus_message_read(m, "v", "t", &usage->cpu_nsec);
        if (streq(name, "MemoryPeak"))
                return sd_bus_message_read(m, "v", "t", &usage->memory_peak);
        if (streq(name, "Result")) {
                r = sd_bus_message_read(m, "v", "s", &s);
                if (r >= 0)
                        snprintf(usage->result, sizeof(usage->result), "%s", s);
                return r;
        }
        return sd_bus_message_skip(m, "v");
}

static int on_usage(sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        _cleanup_free_ struct usage_query *q = userdata;
        struct unit_usage usage = { .cpu_nsec = UINT64_MAX, .memory_peak = UINT64_MAX };
        const char *name;
        int r = 0;

        if (!sd_bus_message_is_method_error(reply, NULL))
                r = sd_bus_message_enter_container(reply, 'a', "{sv}");
        else
                r = -sd_bus_message_get_errno(reply);
        while (r >= 0 && (r = sd_bus_message_enter_container(reply, 'e', "sv")) > 0) {
                r = sd_bus_message_read(reply, "s", &name);
                if (r >= 0)
                        r = read_usage_property(reply, name, &usage);
                if (r >= 0)
                        r = sd_bus_message_exit_container(reply);
        }
        if (r < 0)
                (void) log_at(LOG_DEBUG, r, "Failed to read a unit's usage");
        q->handler(&usage, q->userdata);
        return 0;
}

int units_usage(struct units *u, const char *name, unit_usage_handler_t handler, void *userdata) {
        _cleanup_free_ char *path = NULL;
        struct usage_query *q;
        int r;

        r = sd_bus_path_encode(SYSTEMD_PATH "/unit", name, &path);
        if (r < 0)
                return r;
        q = malloc(sizeof(*q));
        if (!q)
                return -ENOMEM;
        *q = (struct usage_query){ handler, userdata };
        r = sd_bus_call_method_async(u->bus, NULL, SYSTEMD, path, "org.freedesktop.DBus.Properties", "GetAll",
                                     on_usage, q, "s", "org.freedesktop.systemd1.Scope");
        if (r < 0)
                free(q);
        return r;
}

static int ignore_reply(sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return 0;
}

void units_release(struct units *u, const char *name) {
        (void) sd_bus_call_method_async(u->bus, NULL, SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "ResetFailedUnit",
                                        ignore_reply, NULL, "s", name);
        (void) sd_bus_call_method_async(u->bus, NULL, SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "UnrefUnit",
                                        ignore_reply, NULL, "s", name);
}

void units_hold(struct units *u, const char *name) {
        (void) sd_bus_call_method_async(u->bus, NULL, SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "RefUnit", ignore_reply,
                                        NULL, "s", name);
}

struct watch {
        struct units *units;
        unit_watch_t handler;
        void *userdata;
        char *path;
        sd_bus_slot *query; /* under way; goes with the watch */
};

static void watch_free(void *p) {
        struct watch *w = p;

        sd_bus_slot_unref(w->query);
        free(w->path);
        free(w);
}

static int on_watch_value(sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        struct watch *w = userdata;
        const char *name, *state = NULL, *status = NULL, *result = NULL;
        int r;

        if (sd_bus_message_is_method_error(reply, NULL)) {
                /* Collected already. */
                w->handler("inactive", NULL, NULL, w->userdata);
                return 0;
        }
        r = sd_bus_message_enter_container(reply, 'a', "{sv}");
        while (r >= 0 && (r = sd_bus_message_enter_container(reply, 'e', "sv")) > 0) {
                r = sd_bus_message_read(reply, "s", &name);
                if (r < 0)
                        break;
                if (streq(name, "ActiveState"))
                        r = sd_bus_message_read(reply, "v", "s", &state);
                else if (streq(name, "StatusText"))
                        r = sd_bus_message_read(reply, "v", "s", &status);
                else if (streq(name, "Result"))
                        r = sd_bus_message_read(reply, "v", "s", &result);
                else
                        r = sd_bus_message_skip(reply, "v");
                if (r >= 0)
                        r = sd_bus_message_exit_container(reply);
        }
        w->handler(strempty(state), status, result, w->userdata);
        return 0;
}

static int watch_ask(struct watch *w) {
        w->query = sd_bus_slot_unref(w->query);
        return sd_bus_call_method_async(w->units->bus, &w->query, SYSTEMD, w->path, "org.freedesktop.DBus.Properties",
                                        "GetAll", on_watch_value, w, "s", "");
}

static int on_watch_changed(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        struct watch *w = userdata;

        /* The signal has only some of the properties: ask for all. */
        return watch_ask(w);
}

int units_watch(struct units *u, const char *name, unit_watch_t handler, void *userdata, sd_bus_slot **ret) {
        _cleanup_(sd_bus_slot_unrefp) sd_bus_slot *slot = NULL;
        struct watch *w = calloc(1, sizeof(*w));
        int r;

        if (!w)
                return -ENOMEM;
        *w = (struct watch){ .units = u, .handler = handler, .userdata = userdata };
        r = sd_bus_path_encode(SYSTEMD_PATH "/unit", name, &w->path);
        if (r >= 0)
                r = sd_bus_match_signal_async(u->bus, &slot, SYSTEMD, w->path, "org.freedesktop.DBus.Properties",
                                              "PropertiesChanged", on_watch_changed, NULL, w);
        if (r < 0) {
                watch_free(w);
                return r;
        }
        sd_bus_slot_set_destroy_callback(slot, watch_free);
        r = watch_ask(w);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(slot);
        return 0;
}

int units_list(struct units *u, const char *pattern, char ***ret) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *call = NULL, *reply = NULL;
        _cleanup_strv_free_ char **names = NULL;
        const char *name, *state;
        int r;

        r = call_new(u, "ListUnitsByPatterns", &call);
        if (r >= 0)
                r = sd_bus_message_append(call, "asas", 0, 1, pattern);
        if (r >= 0)
                r = sd_bus_call(u->bus, call, 0, &error, &reply);
        if (r < 0)
                return log_error_errno(r, "Failed to list systemd's units: %s", strempty(error.message));
        r = sd_bus_message_enter_container(reply, 'a', "(ssssssouso)");
        while (r >= 0 && (r = sd_bus_message_read(reply, "(ssssssouso)", &name, NULL, NULL, &state, NULL, NULL, NULL,
                                                  NULL, NULL, NULL)) > 0)
                if (!streq(state, "inactive"))
                        r = strv_extend(&names, name);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(names);
        return 0;
}

int units_new(sd_event *event, struct units **ret) {
        struct units *u = calloc(1, sizeof(*u));
        int r;

        if (!u)
                return -ENOMEM;
        LIST_INIT(&u->operations);
        r = sd_bus_open_system(&u->bus);
        if (r >= 0)
                r = sd_bus_set_exit_on_disconnect(u->bus, true);
        if (r >= 0)
                r = sd_bus_attach_event(u->bus, event, SD_EVENT_PRIORITY_NORMAL);
        /* Matched before any job is queued, so that none ends unheard. */
        if (r >= 0)
                r = sd_bus_match_signal(u->bus, &u->job_removed, SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "JobRemoved",
                                        on_job_removed, u);
        if (r >= 0)
                r = sd_bus_call_method(u->bus, SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "Subscribe", NULL, NULL, NULL);
        if (r < 0) {
                units_free(u);
                return log_error_errno(r, "Failed to subscribe to systemd's signals");
        }
        *ret = u;
        return 0;
}

struct units *units_free(struct units *u) {
        struct operation *o;

        if (!u)
                return NULL;
        while ((o = LIST_FIRST(&u->operations))) {
                LIST_REMOVE(o, operations);
                operation_free(o);
        }
        sd_bus_slot_unref(u->job_removed);
        sd_bus_flush_close_unref(u->bus);
        free(u);
        return NULL;
}
