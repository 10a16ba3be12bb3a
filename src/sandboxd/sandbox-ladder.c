/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The ladder. A creation climbs it rung by rung; failure, removal, the machine's own end and recovery after a crash
 * all walk the same rungs down. Each undo is idempotent and also undoes a begin that got only halfway, so that "begun"
 * is noted before a begin and an undo may run for a rung that never was. */

#include <stdio.h>

#include "log.h"
#include "process.h"
#include "sandbox.h"
#include "template.h"
#include "worker.h"

/* How long until an undo that failed (the ledger's disk is full, say) is tried again. */
#define RETRY_USEC (5 * USEC_PER_SEC)

static int rung_storage_begin(struct sandbox *s);
static int rung_storage_undo(struct sandbox *s);
static int rung_record_begin(struct sandbox *s);
static int rung_record_undo(struct sandbox *s);

/* begin: 1 done, 0 under way (sandbox_rung_begun() follows), or a negative errno. undo: 1 done, 0 under way
 * (sandbox_rung_undone() follows). */
static const struct {
        const char *name;
        int (*begin)(struct sandbox *s);
        int (*undo)(struct sandbox *s);
} rungs[] = {
        [RUNG_STORAGE] = { "storage", rung_storage_begin, rung_storage_undo },
        [RUNG_UNIT] = { "unit", rung_unit_begin, rung_unit_undo },
        [RUNG_VMM] = { "vmm", rung_vmm_begin, rung_vmm_undo },
        [RUNG_RECORD] = { "record", rung_record_begin, rung_record_undo },
};

static void on_cloned(int error, const char *message, struct control_message *reply, void *userdata) {
        struct sandbox *s = userdata;

        if (error >= 0) {
                s->disk_fd = control_message_take_fd(reply, "disk");
                s->memory_fd = control_message_take_fd(reply, "memory");
                s->devices_fd = control_message_take_fd(reply, "devices");
        }
        sandbox_rung_begun(s, error, message);
}

static int rung_storage_begin(struct sandbox *s) {
        json_t *record;
        int r;

        r = sandbox_record_to_json(s, &record);
        if (r < 0)
                return r;
        return worker_call(s->manager->maker,
                           json_pack("{s:s,s:s,s:s,s:I,s:o}", "op", "clone", "id", s->id, "snapshot", s->snapshot,
                                     "disk_size", (json_int_t) s->disk_size, "record", record),
                           on_cloned, s);
}

static int on_retry(sd_event_source *source, uint64_t usec, void *userdata) {
        struct sandbox *s = userdata;

        s->retry = sd_event_source_disable_unref(s->retry);
        if (rung_storage_undo(s) > 0)
                sandbox_rung_undone(s);
        return 0;
}

static void reply_to_removers(struct sandbox *s, const char *failure) {
        for (size_t i = 0; i < s->n_remove_calls; i++) {
                if (failure)
                        sd_bus_reply_method_errorf(s->remove_calls[i], BUS_ERROR_UNAVAILABLE, "%s", failure);
                else
                        sd_bus_reply_method_return(s->remove_calls[i], NULL);
                sd_bus_message_unref(s->remove_calls[i]);
        }
        s->n_remove_calls = 0;
}

static void on_ended(int error, const char *message, struct control_message *reply, void *userdata) {
        struct sandbox *s = userdata;

        if (error >= 0) {
                sandbox_rung_undone(s);
                return;
        }
        log_error("Sandbox %s can't be cleaned up yet: %s", s->id, message);
        reply_to_removers(s, message);
        if (sd_event_add_time_relative(s->manager->event, &s->retry, CLOCK_MONOTONIC, RETRY_USEC, 0, on_retry, s) < 0)
                log_oom();
}

/* The usage goes to the ledger before anything that proves the sandbox's existence goes. */
static int rung_storage_undo(struct sandbox *s) {
        json_t *usage = NULL;
        int r = 0;

        s->disk_fd = close_fd(s->disk_fd);
        s->memory_fd = close_fd(s->memory_fd);
        s->devices_fd = close_fd(s->devices_fd);
        if (s->handed_out)
                r = sandbox_usage_to_json(s, &usage);
        else
                usage = json_null();
        if (r >= 0)
                r = worker_call(s->manager->sweeper,
                                json_pack("{s:s,s:s,s:o}", "op", "end", "id", s->id, "usage", usage), on_ended, s);
        if (r < 0)
                on_ended(r, "The storage worker can't be reached", NULL, s);
        return 0;
}

static void on_recorded(int error, const char *message, struct control_message *reply, void *userdata) {
        struct sandbox *s = userdata;

        if (error >= 0 && s->pidfd < 0) {
                error = -ECONNRESET;
                message = "the runner ended";
        }
        sandbox_rung_begun(s, error, message);
}

static int rung_record_begin(struct sandbox *s) {
        int r;

        /* So says the record; here it becomes true when the caller is told. */
        s->handed_out = true;
        r = sandbox_record_save(s, on_recorded, s);
        s->handed_out = false;
        return r;
}

/* The record itself goes with the storage. */
static int rung_record_undo(struct sandbox *s) {
        return 1;
}

static void log_end(struct sandbox *s) {
        char id[64], owner[64], template[128], result[64], message_id[64], cpu[64];
        const char *fields[] = { message_id, id, owner, template, result, cpu, NULL };

        snprintf(message_id, sizeof(message_id), "MESSAGE_ID=%s",
                 s->failure ? MESSAGE_SANDBOX_FAILED : MESSAGE_SANDBOX_END);
        snprintf(id, sizeof(id), "SANDBOX_ID=%s", s->id);
        snprintf(owner, sizeof(owner), "SANDBOX_OWNER=%u", (unsigned) s->owner);
        snprintf(template, sizeof(template), "SANDBOX_TEMPLATE=%s", s->template_name);
        snprintf(result, sizeof(result), "SANDBOX_RESULT=%s", strempty(s->result));
        snprintf(cpu, sizeof(cpu), "SANDBOX_CPU_USAGE_NSEC=%llu",
                 s->usage.cpu_nsec == UINT64_MAX ? 0 : (unsigned long long) s->usage.cpu_nsec);
        if (s->failure)
                (void) log_fields(LOG_ERR, 0, fields, "Sandbox %s wasn't created: %s", s->id, s->failure);
        else
                (void) log_fields(LOG_INFO, 0, fields, "Sandbox %s ended (%s)", s->id, strempty(s->result));
}

/* Nothing of it is left. */
static void finalize(struct sandbox *s) {
        struct manager *m = s->manager;
        char path[64];

        log_end(s);
        if (s->create_call)
                sd_bus_reply_method_errorf(s->create_call, BUS_ERROR_START_FAILED, "%s",
                                           s->failure ? s->failure
                                                      : "The sandbox was removed while it was being created");
        reply_to_removers(s, NULL);
        sandbox_path(s, path);
        sd_bus_emit_interfaces_removed(m->bus, path, BUS_INTERFACE_SANDBOX, NULL);
        sandbox_free(s);
        snapshots_collect(m);
}

static void descend(struct sandbox *s) {
        while (s->rung > 0) {
                if (rungs[s->rung - 1].undo(s) == 0)
                        return;
                s->rung--;
        }
        finalize(s);
}

void sandbox_rung_undone(struct sandbox *s) {
        s->rung--;
        descend(s);
}

static void log_start(struct sandbox *s) {
        char id[64], owner[64], template[128], receipt[512];
        const char *fields[] = { "MESSAGE_ID=" MESSAGE_SANDBOX_START, id, owner, template, receipt, NULL };
        _cleanup_free_ char *text = json_dumps(s->receipt, JSON_COMPACT | JSON_SORT_KEYS);

        snprintf(id, sizeof(id), "SANDBOX_ID=%s", s->id);
        snprintf(owner, sizeof(owner), "SANDBOX_OWNER=%u", (unsigned) s->owner);
        snprintf(template, sizeof(template), "SANDBOX_TEMPLATE=%s", s->template_name);
        snprintf(receipt, sizeof(receipt), "SANDBOX_RECEIPT=%s", strempty(text));
        (void) log_fields(LOG_INFO, 0, fields, "Sandbox %s started from %s for uid %u in %.1f ms", s->id,
                          s->template_name, (unsigned) s->owner, (double) s->total_usec / USEC_PER_MSEC);
}

static void arrive(struct sandbox *s) {
        char path[64];

        s->total_usec = (now_monotonic_nsec() - s->climb_started) / NSEC_PER_USEC;
        s->handed_out = true;
        sandbox_set_state(s, SANDBOX_RUNNING);
        sandbox_path(s, path);
        sd_bus_reply_method_return(s->create_call, "so", s->id, path);
        s->create_call = sd_bus_message_unref(s->create_call);
        log_start(s);
}

/* Notes that the current rung's begin is over. False: it failed. */
static bool settle(struct sandbox *s, int error, const char *message) {
        unsigned i = s->rung - 1;

        s->climbing = false;
        s->timings_usec[i] = (now_monotonic_nsec() - s->rung_started) / NSEC_PER_USEC;
        if (error >= 0 && streq_ptr(s->manager->fail_rung, rungs[i].name)) {
                error = -EIO;
                message = "failed on request ($SANDBOXD_FAIL)";
        }
        if (error >= 0)
                return true;
        free(s->failure);
        if (asprintf(&s->failure, "rung \"%s\": %s", rungs[i].name, message ? message : strerror(-error)) < 0)
                s->failure = NULL;
        return false;
}

static void turn_back(struct sandbox *s, const char *result) {
        s->ending = true;
        s->result = result;
        s->ended_usec = now_realtime_usec();
        sandbox_set_state(s, SANDBOX_REMOVING);
        descend(s);
}

void sandbox_climb(struct sandbox *s) {
        while (s->rung < _RUNG_MAX) {
                int r;

                s->rung_started = now_monotonic_nsec();
                s->climbing = true;
                r = rungs[s->rung++].begin(s);
                if (r == 0)
                        return;
                if (!settle(s, r, NULL)) {
                        turn_back(s, "failed");
                        return;
                }
        }
        arrive(s);
}

void sandbox_rung_begun(struct sandbox *s, int error, const char *message) {
        bool ok = settle(s, error, message);

        if (s->ending)
                descend(s);
        else if (!ok)
                turn_back(s, "failed");
        else
                sandbox_climb(s);
}

void sandbox_end(struct sandbox *s, const char *result) {
        if (s->ending)
                return;
        s->ending = true;
        s->result = result;
        s->ended_usec = now_realtime_usec();
        sandbox_set_state(s, SANDBOX_REMOVING);
        if (!s->climbing)
                descend(s);
        else if (s->rung == RUNG_VMM + 1)
                /* Don't wait for a machine that nobody wants: without its runner the begin fails at once. */
                (void) rung_vmm_undo(s);
}
