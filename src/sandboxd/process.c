/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "process.h"

#include <signal.h>

#include "bus-util.h"
#include "link.h"
#include "log.h"

#define SIGNAL_TIMEOUT_USEC (10 * USEC_PER_SEC)
/* A runner has 1024 commands at once and keeps as many exits. */
#define RESUMED_MAX 2048U

int process_new(struct sandbox *s, uint32_t id, struct process **ret) {
        struct process *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->sandbox = s;
        p->id = id;
        p->status = -1;
        p->started_usec = now_realtime_usec();
        LIST_INSERT_HEAD(&s->processes, p, processes);
        s->n_running++;
        *ret = p;
        return 0;
}

void process_announce(struct process *p) {
        char path[96];

        process_path(p, path);
        bus_emit_added(p->sandbox->manager->bus, path, BUS_INTERFACE_PROCESS);
}

struct process *process_free(struct process *p) {
        char path[96];

        if (!p)
                return NULL;
        process_path(p, path);
        sd_bus_emit_interfaces_removed(p->sandbox->manager->bus, path, BUS_INTERFACE_PROCESS, NULL);
        LIST_REMOVE(p, processes);
        if (p->ended)
                p->sandbox->n_ended--;
        else
                p->sandbox->n_running--;
        p->sandbox->n_waits -= p->n_wait_calls;
        for (size_t i = 0; i < p->n_wait_calls; i++)
                sd_bus_message_unref(p->wait_calls[i]);
        free(p->wait_calls);
        sd_bus_message_unref(p->run_call);
        strv_free(p->argv);
        free(p->user);
        free(p->result);
        free(p);
        return NULL;
}

struct process *process_by_id(struct sandbox *s, uint32_t id) {
        struct process *p;

        LIST_FOREACH (p, &s->processes, processes)
                if (p->id == id)
                        return p;
        return NULL;
}

/* Ended ones are put first as they end: what is dropped is the last of them, which ended longest ago. */
static void drop_oldest_ended(struct sandbox *s) {
        struct process *p, *oldest = NULL;

        LIST_FOREACH (p, &s->processes, processes)
                if (p->ended)
                        oldest = p;
        process_free(oldest);
}

static void process_end(struct process *p, const char *result, int status) {
        struct sandbox *s = p->sandbox;
        char path[96];

        p->ended = true;
        p->result = strdup(result);
        p->status = status;
        p->ended_usec = now_realtime_usec();
        s->n_running--;
        s->n_ended++;
        LIST_REMOVE(p, processes);
        LIST_INSERT_HEAD(&s->processes, p, processes);
        process_path(p, path);
        sd_bus_emit_properties_changed(s->manager->bus, path, BUS_INTERFACE_PROCESS, "State", "Result", "Status",
                                       "EndedUSec", "CPUUsageNSec", "MemoryPeak", "Leftovers", NULL);
        for (size_t i = 0; i < p->n_wait_calls; i++) {
                sd_bus_reply_method_return(p->wait_calls[i], "sitt", result, status, p->cpu_usec, p->memory_peak);
                sd_bus_message_unref(p->wait_calls[i]);
        }
        s->n_waits -= p->n_wait_calls;
        p->n_wait_calls = 0;
        while (s->n_ended > PROCESSES_KEPT)
                drop_oldest_ended(s);
}

static void forget(struct sandbox *s, uint32_t id) {
        if (s->link)
                (void) link_request(s->link, json_pack("{s:s,s:I}", "type", "forget", "process", (json_int_t) id),
                                    NULL, NULL, 0, 0, NULL, NULL);
}

/* A command that the runner is to forget once its number can't be given out again. */
struct forgetting {
        LIST_ENTRY(forgetting) forgettings;
        struct manager *manager;
        char sandbox[ID_SIZE];
        uint32_t process;
};

static void forgetting_free(struct forgetting *f) {
        LIST_REMOVE(f, forgettings);
        free(f);
}

void forgettings_free(struct manager *m) {
        while (LIST_FIRST(&m->forgettings))
                forgetting_free(LIST_FIRST(&m->forgettings));
}

static void on_recorded(int error, const char *message, struct control_message *reply, void *userdata) {
        struct forgetting *f = userdata;
        struct sandbox *s = sandbox_by_id(f->manager, f->sandbox);

        if (error < 0)
                log_warning("%s", message);
        else if (s)
                forget(s, f->process);
        forgetting_free(f);
}

/* The record says how many commands there were. Until it does, the runner's hello is what tells a later start. */
static void record_and_forget(struct sandbox *s, uint32_t id) {
        struct forgetting *f = malloc(sizeof(*f));

        if (!f)
                return;
        *f = (struct forgetting){ .manager = s->manager, .process = id };
        memcpy(f->sandbox, s->id, ID_SIZE);
        LIST_INSERT_HEAD(&s->manager->forgettings, f, forgettings);
        if (sandbox_record_save(s, on_recorded, f) < 0)
                forgetting_free(f);
}

static const char *known_result(json_t *event) {
        static const char *const known[] = { "exited", "signaled", "timeout" };
        const char *result = strempty(json_string_value(json_object_get(event, "result")));

        for (size_t i = 0; i < ELEMENTSOF(known); i++)
                if (streq(result, known[i]))
                        return known[i];
        return "lost";
}

static uint64_t get_uint64(json_t *object, const char *key) {
        json_int_t v = json_integer_value(json_object_get(object, key));

        return v > 0 ? (uint64_t) v : 0;
}

static void take_end(struct process *p, json_t *event) {
        p->cpu_usec = get_uint64(event, "cpu_usec");
        p->memory_peak = get_uint64(event, "memory_peak");
        p->leftovers = (uint32_t) get_uint64(event, "leftovers");
}

void process_exited(struct sandbox *s, struct control_message *m) {
        uint32_t id = (uint32_t) get_uint64(m->body, "process");
        struct process *p = process_by_id(s, id);

        if (!p) {
                forget(s, id);
                return;
        }
        record_and_forget(s, id);
        if (p->ended)
                return;
        take_end(p, m->body);
        if (p->run_call)
                process_run_reply(p, m);
        process_end(p, known_result(m->body), (int) get_uint64(m->body, "status"));
}

/* The label is what this program said of the command when it started it. */
static int resume(struct sandbox *s, json_t *entry) {
        json_t *label = json_object_get(entry, "label"), *value;
        uint32_t id = (uint32_t) get_uint64(entry, "process");
        struct process *p = process_by_id(s, id);
        size_t i;
        int r;

        if (!p) {
                r = process_new(s, id, &p);
                if (r < 0)
                        return r;
                p->pid = (uint32_t) get_uint64(entry, "pid");
                p->started_usec = get_uint64(label, "started_usec");
                p->user = text_printable(json_string_value(json_object_get(label, "user")));
                json_array_foreach (json_object_get(label, "argv"), i, value)
                        if (strv_consume(&p->argv, text_printable(json_string_value(value))) < 0)
                                return -ENOMEM;
                s->n_commands = MAX(s->n_commands, id);
                process_announce(p);
        }
        if (streq(strempty(json_string_value(json_object_get(entry, "state"))), "exited") && !p->ended) {
                /* What was captured for a waiting Run follows as an event of its own. */
                if (p->run_call && json_object_get(entry, "stdout_size"))
                        return 0;
                if (p->run_call)
                        process_run_reply(p, NULL);
                take_end(p, entry);
                process_end(p, known_result(entry), (int) get_uint64(entry, "status"));
                record_and_forget(s, id);
        }
        return 0;
}

void processes_resume(struct sandbox *s, json_t *list) {
        json_t *entry;
        size_t i;

        if (json_array_size(list) > RESUMED_MAX) {
                log_error("The runner of sandbox %s speaks of %zu commands: it can't be right", s->id,
                          json_array_size(list));
                sandbox_end(s, "lost");
                return;
        }
        json_array_foreach (list, i, entry)
                if (resume(s, entry) < 0)
                        (void) log_oom();
}

static struct process *first_running(struct sandbox *s) {
        struct process *p;

        LIST_FOREACH (p, &s->processes, processes)
                if (!p->ended)
                        return p;
        return NULL;
}

/* Ending one may drop another: the walk starts afresh each time. */
void processes_lost(struct sandbox *s) {
        struct process *p;

        while ((p = first_running(s))) {
                if (p->run_call)
                        process_run_reply(p, NULL);
                process_end(p, "lost", SIGKILL);
        }
}

static void on_signaled(int error, const char *message, struct control_message *reply, void *userdata) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *call = userdata;

        if (error < 0)
                sd_bus_reply_method_errorf(call, error == -ESRCH ? BUS_ERROR_NO_SUCH_PROCESS : BUS_ERROR_UNAVAILABLE,
                                           "%s", message);
        else
                sd_bus_reply_method_return(call, NULL);
}

int process_signal(struct sandbox *s, struct process *p, int signal, bool tree, sd_bus_message *call,
                   sd_bus_error *error) {
        int r;

        if (signal < 1 || signal > SIGRTMAX)
                return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "%d isn't a signal", signal);
        if (p && p->ended)
                return sd_bus_error_setf(error, BUS_ERROR_NO_SUCH_PROCESS, "Process %u has ended", p->id);
        if (!s->link)
                return sd_bus_error_setf(error, BUS_ERROR_UNAVAILABLE, "Sandbox %s can't be reached", s->id);
        r = link_request(s->link,
                         json_pack("{s:s,s:I,s:i,s:b}", "type", "signal", "process", (json_int_t) (p ? p->id : 0),
                                   "signal", signal, "tree", tree || signal == SIGKILL),
                         NULL, NULL, 0, SIGNAL_TIMEOUT_USEC, on_signaled, call);
        if (r >= 0)
                sd_bus_message_ref(call);
        return r;
}
