/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "template.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

#include "log.h"
#include "machine.h"
#include "sandbox.h"
#include "worker.h"

#define TEMPLATES_PATH STORAGE_PATH "/templates"
#define SNAPSHOTS_PATH STORAGE_PATH "/snapshots"

static void template_free(struct template *t) {
        if (!t)
                return;
        manifest_free(t->manifest);
        free(t->mismatch);
        free(t);
}

struct template *template_by_name(struct manager *m, const char *name) {
        struct template *t;

        LIST_FOREACH (t, &m->templates, templates)
                if (streq(t->manifest->name, name))
                        return t;
        return NULL;
}

char *template_path(const struct template *t) {
        char *path = NULL;

        return sd_bus_path_encode(BUS_PATH_TEMPLATE, t->manifest->name, &path) < 0 ? NULL : path;
}

unsigned template_users(const struct template *t) {
        struct sandbox *s;
        unsigned n = 0;

        LIST_FOREACH (s, &t->manager->sandboxes, sandboxes)
                n += streq(s->snapshot, t->manifest->id);
        return n;
}

/* Says in one sentence which field keeps this host from restoring it, or NULL. */
static char *find_mismatch(const struct host *h, const struct manifest *f) {
        char *text = NULL;
        int r = 0;

        if (!streq(f->accelerator, host_accelerator(h)))
                r = asprintf(&text, "accelerator is %s, here %s", f->accelerator, host_accelerator(h));
        else if (!streq(f->vmm_version, h->vmm_version))
                r = asprintf(&text, "VMM version is %s, here %s", f->vmm_version, h->vmm_version);
        else if (f->machine != MACHINE_VERSION)
                r = asprintf(&text, "machine layout is %u, here %u", f->machine, MACHINE_VERSION);
        else if (!streq(f->cpu_model, h->cpu_model))
                r = asprintf(&text, "CPU model is %s, here %s", f->cpu_model, h->cpu_model);
        return r < 0 ? NULL : text;
}

static int template_load(struct manager *m, const char *name, struct template **ret) {
        _cleanup_free_ char *path = NULL, *message = NULL;
        _cleanup_(manifest_freep) struct manifest *manifest = NULL;
        struct template *t;
        const char *snapshot = NULL;
        json_t *published;
        int r = -EBADMSG;

        if (asprintf(&path, TEMPLATES_PATH "/%s.json", name) < 0)
                return -ENOMEM;
        published = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
        if (json_unpack(published, "{s:s}", "snapshot", &snapshot) >= 0 && !strchr(snapshot, '/')) {
                _cleanup_free_ char *directory = NULL;

                r = asprintf(&directory, SNAPSHOTS_PATH "/%s", snapshot) < 0
                            ? -ENOMEM
                            : manifest_read_at(AT_FDCWD, directory, &manifest, &message);
                if (r >= 0 && (!streq(manifest->id, snapshot) || !streq(strempty(manifest->name), name)))
                        r = -EBADMSG;
        }
        json_decref(published);
        if (r < 0)
                return log_error_errno(r, "Template %s can't be used%s%s", name, message ? ": " : "",
                                       strempty(message));
        t = calloc(1, sizeof(*t));
        if (!t)
                return -ENOMEM;
        t->manager = m;
        t->mismatch = find_mismatch(m->host, manifest);
        t->manifest = TAKE_PTR(manifest);
        *ret = t;
        return 0;
}

static void announce(struct template *t, bool added) {
        _cleanup_free_ char *path = template_path(t);

        if (!path)
                return;
        if (added)
                sd_bus_emit_interfaces_added(t->manager->bus, path, BUS_INTERFACE_TEMPLATE, NULL);
        else
                sd_bus_emit_interfaces_removed(t->manager->bus, path, BUS_INTERFACE_TEMPLATE, NULL);
}

/* Puts what was loaded in the place of what was known; either may be NULL. */
static void template_replace(struct manager *m, struct template *old, struct template *loaded) {
        if (old && loaded && streq(old->manifest->id, loaded->manifest->id)) {
                template_free(loaded);
                return;
        }
        if (old) {
                LIST_REMOVE(old, templates);
                announce(old, false);
                template_free(old);
        }
        if (!loaded)
                return;
        LIST_INSERT_HEAD(&m->templates, loaded, templates);
        announce(loaded, true);
        log_info("Template %s is version %.12s%s%s", loaded->manifest->name, loaded->manifest->version,
                 loaded->mismatch ? "; it must be baked again: " : "", strempty(loaded->mismatch));
}

int templates_reload(struct manager *m) {
        struct template *t, *next;
        struct dirent *e;
        DIR *d;

        d = opendir(TEMPLATES_PATH);
        if (!d)
                return log_error_errno(-errno, "Failed to read " TEMPLATES_PATH);
        m->templates_unreadable = false;
        for (t = LIST_FIRST(&m->templates); t; t = next) {
                char file[300];

                next = LIST_NEXT(t, templates);
                snprintf(file, sizeof(file), "%s.json", t->manifest->name);
                if (faccessat(dirfd(d), file, F_OK, 0) < 0)
                        template_replace(m, t, NULL);
        }
        while ((e = readdir(d))) {
                char *suffix = strrchr(e->d_name, '.');
                struct template *loaded = NULL;

                if (!suffix || !streq(suffix, ".json"))
                        continue;
                *suffix = 0;
                if (!name_is_valid(e->d_name))
                        continue;
                if (template_load(m, e->d_name, &loaded) >= 0)
                        template_replace(m, template_by_name(m, e->d_name), loaded);
                else
                        m->templates_unreadable = true;
        }
        closedir(d);
        return 0;
}

void templates_free(struct manager *m) {
        struct template *t;

        while ((t = LIST_FIRST(&m->templates))) {
                LIST_REMOVE(t, templates);
                template_free(t);
        }
}

int template_remove(struct template *t) {
        _cleanup_free_ char *path = NULL;
        struct manager *m = t->manager;

        if (asprintf(&path, TEMPLATES_PATH "/%s.json", t->manifest->name) < 0)
                return -ENOMEM;
        if (unlink(path) < 0 && errno != ENOENT)
                return -errno;
        template_replace(m, t, NULL);
        snapshots_collect(m);
        return 0;
}

static bool snapshot_in_use(struct manager *m, const char *id) {
        struct template *t;
        struct sandbox *s;

        LIST_FOREACH (t, &m->templates, templates)
                if (streq(t->manifest->id, id))
                        return true;
        LIST_FOREACH (s, &m->sandboxes, sandboxes)
                if (streq(s->snapshot, id))
                        return true;
        return false;
}

void snapshots_collect(struct manager *m) {
        struct dirent *e;
        DIR *d;

        /* What a template that can't be read is made of isn't known. A bake's snapshot is there a moment before its
         * name is: what looks unused may be new. */
        if (!LIST_EMPTY(&m->jobs) || m->templates_unreadable)
                return;
        d = opendir(SNAPSHOTS_PATH);
        if (!d)
                return;
        while ((e = readdir(d))) {
                if (e->d_name[0] == '.' || snapshot_in_use(m, e->d_name))
                        continue;
                log_info("Snapshot %s is used no more, removing it", e->d_name);
                (void) worker_call(m->sweeper,
                                   json_pack("{s:s,s:s,s:s}", "op", "remove", "kind", "snapshots", "name", e->d_name),
                                   NULL, NULL);
        }
        closedir(d);
}
