/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "job.h"

#include <stdio.h>

#include "log.h"
#include "template.h"
#include "units.h"
#include "worker.h"

#define BAKE_PROGRAM LIBEXECDIR "/sandboxd-bake"
#define BAKE_PREFIX "sandbox-bake-"
#define BAKE_SUFFIX ".service"
#define ERROR_PREFIX "error: "

static void on_change(const char *state, const char *status, const char *result, void *userdata);

void job_path(const struct job *j, char ret[64]) {
        snprintf(ret, 64, BUS_PATH_JOB "/%u", j->id);
}

struct job *job_by_target(struct manager *m, const char *target) {
        struct job *j;

        LIST_FOREACH (j, &m->jobs, jobs)
                if (streq(j->target, target))
                        return j;
        return NULL;
}

const char *job_parse_status(const char *text, double *ret_progress) {
        unsigned percent;
        int n = 0;

        if (sscanf(text, "%3u%%%n", &percent, &n) == 1 && n > 0 && percent <= 100) {
                *ret_progress = percent / 100.0;
                text += n;
                text += strspn(text, " ");
        }
        return text;
}

static void job_free(struct job *j) {
        LIST_REMOVE(j, jobs);
        sd_bus_slot_unref(j->watch);
        sd_bus_message_unref(j->start_call);
        for (size_t i = 0; i < j->n_cancel_calls; i++)
                sd_bus_message_unref(j->cancel_calls[i]);
        free(j->cancel_calls);
        free(j->target);
        free(j->unit);
        free(j->status);
        free(j->error);
        free(j);
}

void jobs_free(struct manager *m) {
        while (LIST_FIRST(&m->jobs))
                job_free(LIST_FIRST(&m->jobs));
}

/* Nothing of it is left but this object. */
static void job_close(struct job *j) {
        struct manager *m = j->manager;
        char path[64];

        (void) templates_reload(m);
        job_path(j, path);
        for (size_t i = 0; i < j->n_cancel_calls; i++)
                sd_bus_reply_method_return(j->cancel_calls[i], NULL);
        if (j->start_call)
                sd_bus_reply_method_errorf(j->start_call, BUS_ERROR_UNAVAILABLE, "%s", strempty(j->error));
        sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "JobRemoved", "uoss", j->id, path, j->result,
                           strempty(j->error));
        sd_bus_emit_interfaces_removed(m->bus, path, BUS_INTERFACE_JOB, NULL);
        job_free(j);
        snapshots_collect(m);
}

static void on_work_removed(int error, const char *message, struct control_message *reply, void *userdata) {
        if (error < 0)
                log_error("%s", message);
        job_close(userdata);
}

/* The bake publishes by itself; what it left halfway is removed here. result: a literal. */
static void job_finish(struct job *j, const char *result, const char *error) {
        struct manager *m = j->manager;
        _cleanup_free_ char *work = NULL;

        if (j->result)
                return;
        j->result = result;
        j->error = strdup(error);
        log_info("Bake of template %s: %s%s%s", j->target, result, *error ? ": " : "", error);
        j->watch = sd_bus_slot_unref(j->watch);
        units_release(m->units, j->unit);
        if (asprintf(&work, "bake-%s", j->target) < 0 ||
            worker_call(m->sweeper, json_pack("{s:s,s:s,s:s}", "op", "remove", "kind", "work", "name", work),
                        on_work_removed, j) < 0)
                job_close(j);
}

static void job_take_status(struct job *j, const char *status) {
        double progress = j->progress;
        const char *text = job_parse_status(status, &progress);
        char path[64];

        if (streq_ptr(j->status, text) && progress == j->progress)
                return;
        free(j->status);
        j->status = strdup(text);
        j->progress = progress;
        job_path(j, path);
        sd_bus_emit_properties_changed(j->manager->bus, path, BUS_INTERFACE_JOB, "Progress", "Status", NULL);
}

static void on_change(const char *state, const char *status, const char *result, void *userdata) {
        struct job *j = userdata;
        const char *text;

        if (!isempty(status))
                job_take_status(j, status);
        if (streq(state, "active") || streq(state, "activating")) {
                j->active = true;
                return;
        }
        if (!j->active || (!streq(state, "inactive") && !streq(state, "failed")))
                return;
        text = strempty(j->status);
        if (streq(state, "inactive") && streq_ptr(result, "success") && !j->canceling)
                job_finish(j, "done", "");
        else if (j->canceling)
                job_finish(j, "canceled", "Canceled");
        else if (strncmp(text, ERROR_PREFIX, strlen(ERROR_PREFIX)) == 0)
                job_finish(j, "failed", text + strlen(ERROR_PREFIX));
        else {
                char failure[512];

                snprintf(failure, sizeof(failure), "%s ended (%s) while it said: %s", j->unit, strempty(result), text);
                job_finish(j, "failed", failure);
        }
}

static void on_unit_started(int error, const char *message, void *userdata) {
        struct job *j = userdata;
        char path[64];

        if (error < 0) {
                job_finish(j, "failed", message);
                return;
        }
        j->active = true;
        job_path(j, path);
        if (j->start_call)
                sd_bus_reply_method_return(j->start_call, "o", path);
        j->start_call = sd_bus_message_unref(j->start_call);
        if (units_watch(j->manager->units, j->unit, on_change, j, &j->watch) < 0)
                job_finish(j, "failed", "The bake's unit can't be watched");
}

static int job_new(struct manager *m, const char *target, uid_t owner, struct job **ret) {
        struct job *j = calloc(1, sizeof(*j));
        char path[64];

        if (!j)
                return -ENOMEM;
        j->manager = m;
        j->owner = owner;
        j->id = ++m->last_job;
        j->target = strdup(target);
        j->status = strdup("");
        LIST_INSERT_HEAD(&m->jobs, j, jobs);
        if (asprintf(&j->unit, BAKE_PREFIX "%s" BAKE_SUFFIX, target) < 0)
                j->unit = NULL;
        if (!j->target || !j->unit || !j->status) {
                job_free(j);
                return -ENOMEM;
        }
        job_path(j, path);
        sd_bus_emit_interfaces_added(m->bus, path, BUS_INTERFACE_JOB, NULL);
        *ret = j;
        return 0;
}

int job_start_bake(struct manager *m, const char *name, bool force, uid_t owner, sd_bus_message *call,
                   sd_bus_error *error) {
        const char *argv[] = { BAKE_PROGRAM, name, NULL, NULL };
        char description[128];
        struct job *j;
        int r;

        if (!name_is_valid(name))
                return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "\"%s\" can't be a template's name", name);
        if (job_by_target(m, name))
                return sd_bus_error_setf(error, BUS_ERROR_WRONG_STATE, "Template %s is being baked already", name);
        if (force) {
                argv[1] = "--force";
                argv[2] = name;
        }
        r = job_new(m, name, owner, &j);
        if (r < 0)
                return r;
        snprintf(description, sizeof(description), "Bake of sandbox template %s", name);
        r = units_start_service(m->units,
                                &(struct service_spec){ .name = j->unit,
                                                        .slice = "sandbox.slice",
                                                        .description = description,
                                                        .argv = (char *const *) argv },
                                on_unit_started, j);
        if (r < 0) {
                job_free(j);
                return r;
        }
        j->start_call = sd_bus_message_ref(call);
        return 0;
}

int job_adopt(struct manager *m, const char *unit) {
        size_t n = strlen(unit);
        char *target;
        struct job *j;
        int r;

        if (n <= strlen(BAKE_PREFIX) + strlen(BAKE_SUFFIX))
                return -EINVAL;
        target = strndupa(unit + strlen(BAKE_PREFIX), n - strlen(BAKE_PREFIX) - strlen(BAKE_SUFFIX));
        r = job_new(m, target, 0, &j);
        if (r < 0)
                return r;
        j->active = true;
        units_hold(m->units, unit);
        return units_watch(m->units, unit, on_change, j, &j->watch);
}

static void on_canceled(int error, const char *message, void *userdata) {
        /* The watch tells the rest. */
        if (error < 0)
                log_warning_errno(error, "Failed to cancel a bake: %s", strempty(message));
}

int job_cancel(struct job *j, sd_bus_message *call) {
        sd_bus_message **grown = reallocarray(j->cancel_calls, j->n_cancel_calls + 1, sizeof(*grown));
        int r;

        if (!grown)
                return -ENOMEM;
        j->cancel_calls = grown;
        if (!j->canceling && !j->result) {
                r = units_stop(j->manager->units, j->unit, on_canceled, NULL);
                if (r < 0)
                        return r;
        }
        j->cancel_calls[j->n_cancel_calls++] = sd_bus_message_ref(call);
        j->canceling = true;
        return 0;
}
