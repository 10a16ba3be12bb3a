/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A sandbox on the bus. */

#include <signal.h>
#include <stddef.h>
#include <stdio.h>

#include "agent-protocol.h"
#include "authorize.h"
#include "bus-util.h"
#include "cgroup.h"
#include "link.h"
#include "options.h"
#include "process.h"

#define TTL_TIMEOUT_USEC (10 * USEC_PER_SEC)
#define REMOVES_MAX 64U

void sandbox_path(const struct sandbox *s, char ret[64]) {
        snprintf(ret, 64, BUS_PATH_SANDBOX "/%s", s->id);
}

void sandbox_changed(struct sandbox *s, const char *property) {
        char path[64];

        sandbox_path(s, path);
        sd_bus_emit_properties_changed(s->manager->bus, path, BUS_INTERFACE_SANDBOX, property, NULL);
}

int sandbox_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret,
                 sd_bus_error *error) {
        const char *id;

        if (strncmp(path, BUS_PATH_SANDBOX "/", strlen(BUS_PATH_SANDBOX "/")) != 0)
                return 0;
        id = path + strlen(BUS_PATH_SANDBOX "/");
        *ret = sandbox_by_id(userdata, id);
        return *ret ? 1 : 0;
}

int sandbox_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error) {
        struct manager *m = userdata;
        _cleanup_strv_free_ char **paths = NULL;
        struct sandbox *s;

        LIST_FOREACH (s, &m->sandboxes, sandboxes)
                if (strv_extendf(&paths, BUS_PATH_SANDBOX "/%s", s->id) < 0)
                        return -ENOMEM;
        *ret = TAKE_PTR(paths);
        return 0;
}

static int method_exec(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct sandbox *s = userdata;

        return call_authorize(s->manager, message, VERB_EXEC, s, NULL, process_exec);
}

static int method_run(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct sandbox *s = userdata;

        return call_authorize(s->manager, message, VERB_EXEC, s, NULL, process_run);
}

static int kill_allowed(struct call *c, sd_bus_error *error) {
        int signal, r;

        r = sd_bus_message_read(c->message, "i", &signal);
        if (r >= 0)
                r = options_read_flags(c->message, error);
        return r < 0 ? r : process_signal(c->sandbox, NULL, signal, true, c->message, error);
}

static int method_kill(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct sandbox *s = userdata;

        return call_authorize(s->manager, message, VERB_EXEC, s, NULL, kill_allowed);
}

static int remove_allowed(struct call *c, sd_bus_error *error) {
        struct sandbox *s = c->sandbox;
        int r;

        r = options_read_flags(c->message, error);
        if (r >= 0 && s->n_remove_calls >= REMOVES_MAX)
                r = sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED, "%u calls wait for the removal already",
                                      REMOVES_MAX);
        if (r >= 0)
                r = bus_calls_add(&s->remove_calls, &s->n_remove_calls, c->message);
        if (r >= 0)
                sandbox_end(s, "removed");
        return r;
}

static int method_remove(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct sandbox *s = userdata;

        return call_authorize(s->manager, message, VERB_MANAGE, s, NULL, remove_allowed);
}

/* A new deadline on its way to the runner, who keeps it. */
struct ttl {
        struct manager *manager;
        char sandbox[ID_SIZE];
        uint64_t deadline_boot_usec;
        sd_bus_message *call;
};

static void on_ttl_set(int error, const char *message, struct control_message *reply, void *userdata) {
        _cleanup_free_ struct ttl *t = userdata;
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *call = t->call;
        struct sandbox *s = sandbox_by_id(t->manager, t->sandbox);

        if (error < 0 || !s) {
                sd_bus_reply_method_errorf(call, BUS_ERROR_UNAVAILABLE, "%s", s ? message : "The sandbox is gone");
                return;
        }
        s->deadline_boot_usec = t->deadline_boot_usec;
        (void) sandbox_record_save(s, NULL, NULL);
        sandbox_changed(s, "DeadlineUSec");
        sd_bus_reply_method_return(call, NULL);
}

static int set_ttl_allowed(struct call *c, sd_bus_error *error) {
        struct sandbox *s = c->sandbox;
        struct ttl *t;
        uint64_t ttl;
        int r;

        r = sd_bus_message_read(c->message, "t", &ttl);
        if (r >= 0)
                r = options_read_flags(c->message, error);
        if (r < 0)
                return r;
        if (s->state != SANDBOX_RUNNING || !s->link)
                return sd_bus_error_setf(error, BUS_ERROR_WRONG_STATE, "Sandbox %s is %s", s->id,
                                         sandbox_state_to_string(s->state));
        if (ttl > INT64_MAX / 2)
                return sd_bus_error_set(error, BUS_ERROR_INVALID_ARGUMENT, "The ttl is too large");
        t = malloc(sizeof(*t));
        if (!t)
                return -ENOMEM;
        *t = (struct ttl){ .manager = c->manager,
                           .deadline_boot_usec = ttl > 0 ? now_boottime_usec() + ttl : 0,
                           .call = c->message };
        memcpy(t->sandbox, s->id, ID_SIZE);
        r = link_request(s->link,
                         json_pack("{s:s,s:I}", "type", "ttl", "deadline_usec", (json_int_t) t->deadline_boot_usec),
                         NULL, NULL, 0, TTL_TIMEOUT_USEC, on_ttl_set, t);
        if (r < 0) {
                free(t);
                return r;
        }
        sd_bus_message_ref(c->message);
        return 0;
}

static int method_set_ttl(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct sandbox *s = userdata;

        return call_authorize(s->manager, message, VERB_MANAGE, s, NULL, set_ttl_allowed);
}

static int append_process(sd_bus_message *reply, struct process *p) {
        char path[96];
        int r;

        process_path(p, path);
        r = sd_bus_message_open_container(reply, 'r', "uasssito");
        if (r >= 0)
                r = sd_bus_message_append(reply, "u", p->id);
        if (r >= 0)
                r = sd_bus_message_append_strv(reply, p->argv);
        if (r >= 0)
                r = sd_bus_message_append(reply, "ssito", p->ended ? "ended" : "running", strempty(p->result),
                                          p->status, p->started_usec, path);
        return r < 0 ? r : sd_bus_message_close_container(reply);
}

static int list_processes_allowed(struct call *c, sd_bus_error *error) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        struct process *p;
        int r;

        r = options_read_flags(c->message, error);
        if (r >= 0)
                r = sd_bus_message_new_method_return(c->message, &reply);
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'a', "(uasssito)");
        if (r < 0)
                return r;
        LIST_FOREACH (p, &c->sandbox->processes, processes) {
                r = append_process(reply, p);
                if (r < 0)
                        return r;
        }
        r = sd_bus_message_close_container(reply);
        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

static int method_list_processes(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct sandbox *s = userdata;

        return call_authorize(s->manager, message, VERB_INSPECT, s, NULL, list_processes_allowed);
}

static int get_id(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                  void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", ((struct sandbox *) userdata)->id);
}

static int get_state(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                     void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", sandbox_state_to_string(((struct sandbox *) userdata)->state));
}

static int get_deadline(sd_bus *bus, const char *path, const char *interface, const char *property,
                        sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        const struct sandbox *s = userdata;
        /* The runner counts boot time, callers real time. */
        uint64_t deadline =
                s->deadline_boot_usec == 0 ? 0 : now_realtime_usec() + s->deadline_boot_usec - now_boottime_usec();

        return sd_bus_message_append(reply, "t", deadline);
}

static int get_runtime_max(sd_bus *bus, const char *path, const char *interface, const char *property,
                           sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        const struct sandbox *s = userdata;

        return sd_bus_message_append(reply, "t", s->runtime_max_usec == USEC_INFINITY ? 0 : s->runtime_max_usec);
}

static int get_metadata(sd_bus *bus, const char *path, const char *interface, const char *property,
                        sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return bus_append_dict(reply, ((struct sandbox *) userdata)->metadata);
}

static int get_leader(sd_bus *bus, const char *path, const char *interface, const char *property,
                      sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "u", (uint32_t) ((struct sandbox *) userdata)->leader);
}

static int get_uid(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                   void *userdata, sd_bus_error *error) {
        const struct sandbox *s = userdata;

        return sd_bus_message_append(reply, "u", (uint32_t) (s->manager->conf->uid_base + s->slot));
}

static const struct {
        uint32_t step;
        const char *name;
} steps[] = {
        { AGENT_STEP_CLOCK, "clock" },           { AGENT_STEP_ENTROPY, "entropy" },
        { AGENT_STEP_RESEED, "reseed" },         { AGENT_STEP_IDENTITY, "identity" },
        { AGENT_STEP_NETWORK, "network" },       { AGENT_STEP_RESOURCES, "resources" },
        { AGENT_STEP_GENERATION, "generation" }, { AGENT_STEP_THAW, "thaw" },
};

static int append_steps(sd_bus_message *reply, uint32_t done) {
        int r;

        r = sd_bus_message_open_container(reply, 'e', "sv");
        if (r >= 0)
                r = sd_bus_message_append(reply, "s", "steps");
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'v', "as");
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'a', "s");
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(steps); i++)
                if (done & steps[i].step)
                        r = sd_bus_message_append(reply, "s", steps[i].name);
        for (int i = 0; r >= 0 && i < 3; i++)
                r = sd_bus_message_close_container(reply);
        return r;
}

static int get_receipt(sd_bus *bus, const char *path, const char *interface, const char *property,
                       sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        json_t *receipt = ((struct sandbox *) userdata)->receipt;
        json_int_t generation, done, clock_step, entropy;
        int r;

        r = sd_bus_message_open_container(reply, 'a', "{sv}");
        if (r < 0)
                return r;
        if (json_unpack(receipt, "{s:I,s:I,s:I,s:I}", "generation", &generation, "steps", &done, "clock_step_nsec",
                        &clock_step, "entropy_bytes", &entropy) >= 0) {
                r = sd_bus_message_append(reply, "{sv}{sv}{sv}", "generation", "t", (uint64_t) generation,
                                          "clock_step_nsec", "x", (int64_t) clock_step, "entropy_bytes", "u",
                                          (uint32_t) entropy);
                if (r >= 0)
                        r = append_steps(reply, (uint32_t) done);
                if (r < 0)
                        return r;
        }
        return sd_bus_message_close_container(reply);
}

static int get_timings(sd_bus *bus, const char *path, const char *interface, const char *property,
                       sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        const struct sandbox *s = userdata;
        const char *key;
        json_t *value;
        int r;

        r = sd_bus_message_open_container(reply, 'a', "{st}");
        if (r >= 0)
                r = sd_bus_message_append(reply, "{st}{st}{st}", "storage", s->timings_usec[RUNG_STORAGE], "unit",
                                          s->timings_usec[RUNG_UNIT], "total", s->total_usec);
        if (r < 0)
                return r;
        json_object_foreach (s->runner_timings, key, value) {
                r = sd_bus_message_append(reply, "{st}", key, (uint64_t) json_integer_value(value));
                if (r < 0)
                        return r;
        }
        return sd_bus_message_close_container(reply);
}

static int get_usage(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                     void *userdata, sd_bus_error *error) {
        const struct sandbox *s = userdata;
        uint64_t v = UINT64_MAX;

        if (s->cgroup && streq(property, "CPUUsageNSec"))
                (void) cgroup_cpu_nsec(s->cgroup, &v);
        else if (s->cgroup)
                (void) cgroup_read_uint64(s->cgroup, streq(property, "MemoryPeak") ? "memory.peak" : "memory.current",
                                          &v);
        return sd_bus_message_append(reply, "t", v);
}

static int get_lifetime(sd_bus *bus, const char *path, const char *interface, const char *property,
                        sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        const struct sandbox *s = userdata;

        return sd_bus_message_append(reply, "t", now_realtime_usec() - s->created_usec);
}

static int get_n_running(sd_bus *bus, const char *path, const char *interface, const char *property,
                         sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "u", (uint32_t) ((struct sandbox *) userdata)->n_running);
}

#define CONST SD_BUS_VTABLE_PROPERTY_CONST
#define CHANGES SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE

const sd_bus_vtable sandbox_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("Exec", SD_BUS_ARGS("as", argv, "a{sv}", options, "t", flags),
                                SD_BUS_RESULT("o", process, "u", id, "ah", pipes), method_exec,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("Run", SD_BUS_ARGS("as", argv, "a{sv}", options, "t", flags),
                                SD_BUS_RESULT("s", result, "i", status, "ay", stdout, "ay", stderr, "t",
                                              stdout_truncated, "t", stderr_truncated, "t", cpu_usec, "t",
                                              memory_peak),
                                method_run, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("Kill", SD_BUS_ARGS("i", signal, "t", flags), SD_BUS_NO_RESULT, method_kill,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("Remove", SD_BUS_ARGS("t", flags), SD_BUS_NO_RESULT, method_remove,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("SetTTL", SD_BUS_ARGS("t", ttl_usec, "t", flags), SD_BUS_NO_RESULT, method_set_ttl,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ListProcesses", SD_BUS_ARGS("t", flags), SD_BUS_RESULT("a(uasssito)", processes),
                                method_list_processes, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_PROPERTY("Id", "s", get_id, 0, CONST),
        SD_BUS_PROPERTY("Name", "s", NULL, offsetof(struct sandbox, name), CONST),
        SD_BUS_PROPERTY("Owner", "u", NULL, offsetof(struct sandbox, owner), CONST),
        SD_BUS_PROPERTY("Template", "s", NULL, offsetof(struct sandbox, template_name), CONST),
        SD_BUS_PROPERTY("TemplateVersion", "s", NULL, offsetof(struct sandbox, template_version), CONST),
        SD_BUS_PROPERTY("State", "s", get_state, 0, CHANGES),
        SD_BUS_PROPERTY("CreatedUSec", "t", NULL, offsetof(struct sandbox, created_usec), CONST),
        SD_BUS_PROPERTY("DeadlineUSec", "t", get_deadline, 0, CHANGES),
        SD_BUS_PROPERTY("RuntimeMaxUSec", "t", get_runtime_max, 0, CONST),
        SD_BUS_PROPERTY("MemoryMax", "t", NULL, offsetof(struct sandbox, memory_max), CONST),
        SD_BUS_PROPERTY("CPUs", "d", NULL, offsetof(struct sandbox, cpus), CONST),
        SD_BUS_PROPERTY("DiskSize", "t", NULL, offsetof(struct sandbox, disk_size), CONST),
        SD_BUS_PROPERTY("Hostname", "s", NULL, offsetof(struct sandbox, hostname), CONST),
        SD_BUS_PROPERTY("Metadata", "a{ss}", get_metadata, 0, CONST),
        SD_BUS_PROPERTY("Unit", "s", NULL, offsetof(struct sandbox, unit), CONST),
        SD_BUS_PROPERTY("Leader", "u", get_leader, 0, CONST),
        SD_BUS_PROPERTY("UID", "u", get_uid, 0, CONST),
        SD_BUS_PROPERTY("Receipt", "a{sv}", get_receipt, 0, CHANGES),
        SD_BUS_PROPERTY("TimingsUSec", "a{st}", get_timings, 0, CHANGES),
        SD_BUS_PROPERTY("CPUUsageNSec", "t", get_usage, 0, 0),
        SD_BUS_PROPERTY("MemoryCurrent", "t", get_usage, 0, 0),
        SD_BUS_PROPERTY("MemoryPeak", "t", get_usage, 0, 0),
        SD_BUS_PROPERTY("LifetimeUSec", "t", get_lifetime, 0, 0),
        SD_BUS_PROPERTY("NCommands", "u", NULL, offsetof(struct sandbox, n_commands), 0),
        SD_BUS_PROPERTY("NRunning", "u", get_n_running, 0, 0),
        SD_BUS_VTABLE_END,
};
