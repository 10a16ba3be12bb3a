/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a new start does about what an earlier one left: living sandboxes are taken over, ended ones get their usage
 * record, half-made and half-removed ones are walked down the ladder, and what nobody has a record of is swept. Runs
 * before the name is owned, so it may wait where that is short. */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "job.h"
#include "log.h"
#include "manifest.h"
#include "sandbox.h"
#include "template.h"
#include "units.h"
#include "usage.h"
#include "worker.h"

#define RECORDS_PATH STORAGE_PATH "/sandboxes"
#define ADOPT_USEC USEC_PER_SEC

static void log_swept(const char *what, const char *name) {
        const char *fields[] = { "MESSAGE_ID=" MESSAGE_SWEPT, NULL };

        (void) log_fields(LOG_WARNING, 0, fields, "Removing the leftover %s %s", what, name);
}

/* Its machine is gone, or was never handed out: all rungs are undone, also those that weren't begun. */
static void bury(struct sandbox *s) {
        uint64_t boot = now_boottime_usec();

        s->ended_usec = now_realtime_usec();
        s->result = "lost";
        if (s->pidfd < 0)
                usage_from_journal(s);
        /* The runner ends at the deadline whoever watches. */
        if (s->deadline_boot_usec > 0 && s->deadline_boot_usec <= boot)
                s->result = "deadline";
        s->ending = true;
        s->state = SANDBOX_REMOVING;
        s->rung = _RUNG_MAX + 1;
        sandbox_rung_undone(s);
}

static void take_over(struct manager *m, const char *id) {
        struct sandbox *s;
        char path[256], aside[264];
        json_t *record;
        int r;

        snprintf(path, sizeof(path), RECORDS_PATH "/%s.json", id);
        record = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
        r = streq(strempty(json_string_value(json_object_get(record, "id"))), id) ? sandbox_record_load(m, record, &s)
                                                                                  : -EBADMSG;
        json_decref(record);
        if (r < 0) {
                /* Whatever it was, its name is all that is known: the sweep takes care of the rest. */
                log_error_errno(r, "The record %s can't be read, putting it aside", path);
                snprintf(aside, sizeof(aside), "%s.bad", path);
                (void) rename(path, aside);
                return;
        }
        (void) sd_notify(0, "EXTEND_TIMEOUT_USEC=30000000");
        r = sandbox_attach(s);
        if (r < 0 || !s->handed_out) {
                log_info("Sandbox %s has ended or was never usable, cleaning up", s->id);
                bury(s);
                return;
        }
        s->rung = _RUNG_MAX;
        s->state = SANDBOX_RUNNING;
        log_info("Sandbox %s of uid %u is running, taken over", s->id, (unsigned) s->owner);
}

static int for_each_entry(const char *directory, void (*handle)(struct manager *m, const char *name),
                          struct manager *m) {
        struct dirent *e;
        DIR *d;

        d = opendir(directory);
        if (!d)
                return errno == ENOENT ? 0 : log_error_errno(-errno, "Failed to read %s", directory);
        while ((e = readdir(d)))
                if (e->d_name[0] != '.')
                        handle(m, e->d_name);
        closedir(d);
        return 0;
}

static void on_record(struct manager *m, const char *name) {
        const char *suffix = strrchr(name, '.');
        char id[ID_SIZE] = "", path[512];

        if (suffix && streq(suffix, ".tmp")) {
                /* The worker was killed at its writing. */
                snprintf(path, sizeof(path), RECORDS_PATH "/%s", name);
                (void) unlink(path);
        }
        if (suffix && streq(suffix, ".json") && suffix - name == ID_SIZE - 1) {
                memcpy(id, name, ID_SIZE - 1);
                if (id_is_valid(id))
                        take_over(m, id);
        }
}

static void on_subvolume(struct manager *m, const char *name) {
        if (strchr(name, '.') || sandbox_by_id(m, name))
                return;
        log_swept("subvolume", name);
        (void) worker_call(m->sweeper, json_pack("{s:s,s:s,s:s}", "op", "remove", "kind", "sandboxes", "name", name),
                           NULL, NULL);
}

static void on_work(struct manager *m, const char *name) {
        if (strncmp(name, "bake-", 5) == 0 && job_by_target(m, name + 5))
                return;
        log_swept("work", name);
        (void) worker_call(m->sweeper, json_pack("{s:s,s:s,s:s}", "op", "remove", "kind", "work", "name", name), NULL,
                           NULL);
}

static void on_runtime_directory(struct manager *m, const char *name) {
        char path[512];

        if (id_is_valid(name) ? !!sandbox_by_id(m, name)
                              : strncmp(name, "bake-", 5) != 0 || job_by_target(m, name + 5))
                return;
        log_swept("directory", name);
        snprintf(path, sizeof(path), RUNTIME_PATH "/%s/control", name);
        (void) unlink(path);
        snprintf(path, sizeof(path), RUNTIME_PATH "/%s", name);
        (void) rmdir(path);
}

static void on_stopped(int error, const char *message, void *userdata) {
        if (error < 0)
                log_warning_errno(error, "Failed to stop a leftover unit: %s", strempty(message));
}

static int sweep_units(struct manager *m) {
        _cleanup_strv_free_ char **scopes = NULL;
        int r;

        r = units_list(m->units, "sandbox-*.scope", &scopes);
        for (char **name = scopes; r >= 0 && name && *name; name++) {
                char id[ID_SIZE] = "", ours[64];

                /* Somebody else's unit may be called alike. */
                if (sscanf(*name, "sandbox-%12[0-9a-f].scope", id) != 1 || !id_is_valid(id))
                        continue;
                snprintf(ours, sizeof(ours), "sandbox-%s.scope", id);
                if (!streq(*name, ours) || sandbox_by_id(m, id))
                        continue;
                log_swept("unit", *name);
                r = units_stop(m->units, *name, on_stopped, NULL);
        }
        return r;
}

static int adopt_jobs(struct manager *m) {
        _cleanup_strv_free_ char **services = NULL;
        int r;

        r = units_list(m->units, "sandbox-bake-*.service", &services);
        for (char **name = services; r >= 0 && name && *name; name++)
                r = job_adopt(m, *name);
        return r;
}

/* Living ones whose runner hasn't said hello yet. */
static size_t count_silent(struct manager *m) {
        struct sandbox *s;
        size_t n = 0;

        LIST_FOREACH (s, &m->sandboxes, sandboxes)
                n += s->state == SANDBOX_RUNNING && !s->receipt;
        return n;
}

int manager_adopt(struct manager *m) {
        uint64_t deadline = now_boottime_usec() + ADOPT_USEC, now;
        int r;

        r = templates_reload(m);
        if (r >= 0)
                r = for_each_entry(RECORDS_PATH, on_record, m);
        if (r >= 0)
                r = adopt_jobs(m);
        if (r >= 0)
                r = sweep_units(m);
        if (r >= 0)
                r = for_each_entry(RECORDS_PATH, on_subvolume, m);
        if (r >= 0)
                r = for_each_entry(STORAGE_PATH "/work", on_work, m);
        if (r >= 0)
                r = for_each_entry(RUNTIME_PATH, on_runtime_directory, m);
        while (r >= 0 && count_silent(m) > 0 && (now = now_boottime_usec()) < deadline)
                r = sd_event_run(m->event, deadline - now);
        snapshots_collect(m);
        return r < 0 ? r : 0;
}
