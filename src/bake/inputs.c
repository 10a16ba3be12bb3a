/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <fcntl.h>
#include <stdio.h>

#include "bake.h"
#include "machine.h"

static char *join(const char *folder, const char *path) {
        char *s = NULL;

        if (path[0] == '/')
                return strdup(path);
        return asprintf(&s, "%s/%s", folder, path) < 0 ? NULL : s;
}

static int find_definition(struct bake *b, char **ret) {
        static const char *const folders[] = { "/etc/sandboxd/templates", PKGDATADIR "/templates" };

        if (b->definition) {
                *ret = strdup(b->definition);
                return *ret ? 0 : -ENOMEM;
        }
        for (size_t i = 0; i < ELEMENTSOF(folders); i++) {
                _cleanup_free_ char *path = NULL;

                if (asprintf(&path, "%s/%s.yaml", folders[i], b->name) < 0) {
                        path = NULL;
                        return -ENOMEM;
                }
                if (access(path, F_OK) == 0) {
                        *ret = TAKE_PTR(path);
                        return 0;
                }
        }
        return bake_fail(b, ENOENT, "There is no %s.yaml in %s or %s", b->name, folders[0], folders[1]);
}

static int read_definition(struct bake *b, struct digest *d) {
        _cleanup_free_ char *path = NULL, *text = NULL, *message = NULL;
        const char *slash;
        size_t size;
        int r;

        r = find_definition(b, &path);
        if (r < 0)
                return r;
        r = read_file_at(AT_FDCWD, path, TEMPLATE_SIZE_MAX, &text, &size);
        if (r < 0)
                return bake_fail(b, r, "Can't read %s", path);
        r = template_parse(text, size, &b->template, &message);
        if (r < 0)
                return bake_fail(b, message ? -r : r, "%s%s%s", path, message ? ": " : "", strempty(message));
        slash = strrchr(path, '/');
        b->folder = slash ? strndup(path, (size_t) MAX(slash - path, 1)) : strdup(".");
        if (!b->folder)
                return -ENOMEM;
        return digest_add(d, "definition", text, size);
}

static int add_file(struct bake *b, struct digest *d, const char *name, const char *folder, const char *path) {
        _cleanup_free_ char *full = join(folder, path);
        int r;

        r = full ? digest_add_path(d, name, full) : -ENOMEM;
        return r < 0 ? bake_fail(b, r, "Can't read %s", strempty(full)) : 0;
}

static int add_files(struct bake *b, struct digest *d) {
        const struct template *t = b->template;
        int r = 0;

        if (t->rootfs)
                r = add_file(b, d, "rootfs", b->folder, t->rootfs);
        else
                r = digest_add_string(d, "suite", t->suite ?: b->conf->suite);
        for (size_t i = 0; i < t->n_copy && r >= 0; i++)
                r = add_file(b, d, "copy", b->folder, t->copy[i].from);
        if (r >= 0)
                r = add_file(b, d, "kernel", "", b->kernel);
        if (r >= 0)
                r = add_file(b, d, "agent", b->libexec, "sandbox-agent");
        if (r >= 0)
                r = add_file(b, d, "mkinitrd", b->libexec, "mkinitrd");
        return r;
}

static int add_machine(struct bake *b, struct digest *d) {
        char machine[16];
        int r;

        snprintf(machine, sizeof(machine), "%d", MACHINE_VERSION);
        r = digest_add_string(d, "machine", machine);
        if (r >= 0)
                r = digest_add_string(d, "vmm", b->host->vmm_version);
        if (r >= 0)
                r = digest_add_string(d, "accelerator", host_accelerator(b->host));
        if (r >= 0)
                r = digest_add_string(d, "cpu", b->host->cpu_model);
        if (r >= 0)
                r = digest_add_string(d, "release", b->release);
        return r;
}

static int find_host(struct bake *b) {
        _cleanup_free_ char *message = NULL;
        int r;

        r = host_probe(b->conf, &b->host, &message);
        if (r >= 0)
                r = host_find_kernel(b->conf, &b->kernel, &b->release, &message);
        if (r < 0)
                return bake_fail(b, message ? -r : r, "%s", message ?: "Can't find out what this host has");
        r = host_find_modules(b->kernel, b->release, &b->modules);
        return r < 0 ? bake_fail(b, r, "Can't find the modules of kernel %s", b->release) : 0;
}

int bake_inputs(struct bake *b) {
        _cleanup_(digest_freep) struct digest *d = NULL;
        int r;

        r = digest_new(&d);
        if (r >= 0)
                r = read_definition(b, d);
        if (r >= 0)
                r = find_host(b);
        if (r >= 0)
                r = add_files(b, d);
        if (r >= 0)
                r = add_machine(b, d);
        if (r >= 0)
                r = digest_end(d, b->version);
        return r < 0 ? bake_fail(b, r, "Can't read what the template is made of") : 0;
}

int bake_is_published(struct bake *b) {
        _cleanup_(manifest_freep) struct manifest *m = NULL;
        _cleanup_free_ char *path = NULL, *text = NULL, *message = NULL, *folder = NULL;
        const char *id;
        json_t *json;
        size_t size;
        int r = 0;

        if (asprintf(&path, "templates/%s.json", b->name) < 0) {
                path = NULL;
                return -ENOMEM;
        }
        if (read_file_at(b->storage_fd, path, 65536, &text, &size) < 0)
                return 0;
        json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
        id = json_string_value(json_object_get(json, "snapshot"));
        if (id && id_is_valid(id) && asprintf(&folder, "snapshots/%s", id) >= 0)
                r = manifest_read_at(b->storage_fd, folder, &m, &message) >= 0 && streq_ptr(m->version, b->version);
        json_decref(json);
        return r;
}
