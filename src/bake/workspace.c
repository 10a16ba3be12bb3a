/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <btrfsutil.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "bake.h"
#include "log.h"

/* The library leaves errno as its system call did. */
static int btrfs_error(enum btrfs_util_error e) {
        return e == BTRFS_UTIL_OK ? 0 : errno > 0 ? -errno : -EIO;
}

static int delete_subvolume(const char *path) {
        return btrfs_error(btrfs_util_delete_subvolume(path, BTRFS_UTIL_DELETE_SUBVOLUME_RECURSIVE));
}

/* What a killed bake left behind isn't locked by anyone. */
static int remove_leftover(struct bake *b) {
        _cleanup_close_ int fd = open(b->work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r;

        if (fd < 0)
                return errno == ENOENT ? 0 : bake_fail(b, -errno, "Can't open %s", b->work);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0)
                return bake_fail(b, errno == EWOULDBLOCK ? EBUSY : -errno, "Another bake of %s is running", b->name);
        r = delete_subvolume(b->work);
        return r < 0 ? bake_fail(b, r, "Can't remove %s, which an earlier bake left behind", b->work) : 0;
}

int workspace_make(struct bake *b) {
        _cleanup_free_ char *root = NULL, *work = NULL;
        int r;

        if (asprintf(&work, STORAGE_PATH "/work/bake-%s", b->name) < 0) {
                work = NULL;
                return bake_fail(b, -ENOMEM, "Can't make a place to work in");
        }
        b->work = work;
        r = remove_leftover(b);
        b->work = NULL; /* nothing to undo yet */
        if (r < 0)
                return r;
        r = btrfs_error(btrfs_util_create_subvolume(work, 0, NULL, NULL));
        if (r < 0)
                return bake_fail(b, r, "Can't make the subvolume %s (is sandboxd-storage.service running?)", work);
        b->work = TAKE_PTR(work);
        b->work_fd = open(b->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (b->work_fd < 0 || flock(b->work_fd, LOCK_EX | LOCK_NB) < 0 || fchmod(b->work_fd, 0700) < 0)
                return bake_fail(b, -errno, "Can't open %s", b->work);
        if (asprintf(&root, "%s/root", b->work) < 0) {
                root = NULL;
                return bake_fail(b, -ENOMEM, "Can't make a place to work in");
        }
        /* A subvolume of its own: gone at once when the image is made of it. */
        r = btrfs_error(btrfs_util_create_subvolume(root, 0, NULL, NULL));
        return r < 0 ? bake_fail(b, r, "Can't make the subvolume %s", root) : 0;
}

int workspace_drop_root(struct bake *b) {
        _cleanup_free_ char *root = NULL;
        int r;

        if (asprintf(&root, "%s/root", b->work) < 0) {
                root = NULL;
                return bake_fail(b, -ENOMEM, "Can't remove the root");
        }
        r = delete_subvolume(root);
        return r < 0 ? bake_fail(b, r, "Can't remove %s", root) : 0;
}

void workspace_remove(struct bake *b) {
        int r;

        b->work_fd = close_fd(b->work_fd);
        if (!b->work)
                return;
        r = delete_subvolume(b->work);
        if (r < 0)
                log_warning_errno(r, "Can't remove %s", b->work);
        free(b->work);
        b->work = NULL;
}

/* The files as they stay: root's, for reading, and on the disk. */
static int seal_files(struct bake *b) {
        static const char *const names[] = { SNAPSHOT_DISK, SNAPSHOT_MEMORY, SNAPSHOT_DEVICES };
        static const char *const extra[] = { "initrd", "vmlinux", "vmlinux.zst" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                _cleanup_close_ int fd = openat(b->work_fd, names[i], O_RDWR | O_NOFOLLOW | O_CLOEXEC);

                if (fd < 0 || fchown(fd, 0, 0) < 0 || fchmod(fd, 0444) < 0 || fsync(fd) < 0)
                        return -errno;
        }
        for (size_t i = 0; i < ELEMENTSOF(extra); i++)
                if (unlinkat(b->work_fd, extra[i], 0) < 0 && errno != ENOENT)
                        return -errno;
        return 0;
}

static int write_manifest(struct bake *b, const struct manifest *m) {
        _cleanup_free_ char *text = NULL;
        json_t *json;
        int r;

        r = manifest_to_json(m, &json);
        if (r < 0)
                return r;
        text = json_dumps(json, JSON_INDENT(2));
        json_decref(json);
        return text ? write_file_atomic_at(b->work_fd, SNAPSHOT_MANIFEST, text, strlen(text), 0444) : -ENOMEM;
}

/* From here on the name means the new snapshot. */
static int write_template(struct bake *b) {
        _cleanup_free_ char *text = NULL, *path = NULL;
        json_t *json = json_pack("{s:s, s:s}", "name", b->name, "snapshot", b->id);

        text = json ? json_dumps(json, JSON_COMPACT) : NULL;
        json_decref(json);
        if (!text || asprintf(&path, "templates/%s.json", b->name) < 0)
                return -ENOMEM;
        return write_file_atomic_at(b->storage_fd, path, text, strlen(text), 0644);
}

int workspace_publish(struct bake *b, const struct manifest *m) {
        _cleanup_free_ char *snapshot = NULL;
        int r;

        bake_status(97, "Publishing");
        if (asprintf(&snapshot, STORAGE_PATH "/snapshots/%s", b->id) < 0) {
                snapshot = NULL;
                return bake_fail(b, -ENOMEM, "Can't publish the snapshot");
        }
        r = seal_files(b);
        if (r >= 0)
                r = write_manifest(b, m);
        if (r < 0)
                return bake_fail(b, r, "Can't write the snapshot");
        if (rename(b->work, snapshot) < 0)
                return bake_fail(b, -errno, "Can't move the snapshot to %s", snapshot);
        /* What is to be undone has this name now. Read-only comes after: such a subvolume can't be moved. */
        free(b->work);
        b->work = strdup(snapshot);
        if (!b->work)
                return bake_fail(b, -ENOMEM, "Can't publish the snapshot");
        r = btrfs_error(btrfs_util_set_subvolume_read_only(snapshot, true));
        if (r >= 0 && syncfs(b->storage_fd) < 0)
                r = -errno;
        if (r >= 0)
                r = write_template(b);
        if (r < 0)
                return bake_fail(b, r, "Can't publish the snapshot");
        free(b->work);
        b->work = NULL;
        return 0;
}
