/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The storage worker's side: see worker.h for what it is asked. Single requests, in order, blocking freely. */

#include <btrfsutil.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "log.h"
#include "manifest.h"
#include "sandboxd-names.h"
#include "usage.h"
#include "worker.h"

#define LEDGER_PATH STORAGE_PATH "/usage.jsonl"

struct result {
        char message[512];
        int fds[3];
        const char *names[3];
        size_t n_fds;
};

static int fail(struct result *result, int error, const char *what, const char *path) {
        snprintf(result->message, sizeof(result->message), "Failed to %s %s: %s", what, path, strerror(-error));
        return error;
}

static int fail_btrfs(struct result *result, enum btrfs_util_error error, const char *what, const char *path) {
        int e = errno > 0 ? -errno : -EIO;

        snprintf(result->message, sizeof(result->message), "Failed to %s %s: %s: %s", what, path,
                 btrfs_util_strerror(error), strerror(-e));
        return e;
}

static int open_snapshot_file(struct result *result, const char *snapshot, const char *file) {
        char path[512];
        int fd;

        snprintf(path, sizeof(path), STORAGE_PATH "/snapshots/%s/%s", snapshot, file);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? fail(result, -errno, "open", path) : fd;
}

/* Makes DIR/disk.raw a reflink of source, of at least `size` bytes. */
static int clone_disk(struct result *result, const char *directory, int source, uint64_t size, int *ret) {
        _cleanup_close_ int fd = -1;
        char path[512];
        struct stat st;

        snprintf(path, sizeof(path), "%s/" SNAPSHOT_DISK, directory);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
                return fail(result, -errno, "create", path);
        if (ioctl(fd, FICLONE, source) < 0)
                return fail(result, -errno, "clone the template's disk to", path);
        if (fstat(fd, &st) < 0)
                return fail(result, -errno, "look at", path);
        if (size > (uint64_t) st.st_size && ftruncate(fd, (off_t) size) < 0)
                return fail(result, -errno, "enlarge", path);
        *ret = TAKE_FD(fd);
        return 0;
}

static int remove_subvolume(struct result *result, const char *path) {
        enum btrfs_util_error e;
        struct stat st;

        if (lstat(path, &st) < 0)
                return errno == ENOENT ? 0 : fail(result, -errno, "look at", path);
        e = btrfs_util_delete_subvolume(path, BTRFS_UTIL_DELETE_SUBVOLUME_RECURSIVE);
        if (e == BTRFS_UTIL_ERROR_SUBVOLUME_NOT_FOUND || (e != BTRFS_UTIL_OK && errno == ENOENT))
                return 0;
        return e == BTRFS_UTIL_OK ? 0 : fail_btrfs(result, e, "remove", path);
}

/* replace: only where there is one. It may be gone by now, removed by the other worker, and must not come back then.
 */
static int write_record(struct result *result, const char *id, json_t *record, bool replace) {
        _cleanup_free_ char *text = json_dumps(record, JSON_INDENT(2));
        char path[512], temporary[520];
        _cleanup_close_ int fd = -1;
        int r;

        snprintf(path, sizeof(path), STORAGE_PATH "/sandboxes/%s.json", id);
        snprintf(temporary, sizeof(temporary), "%s.tmp", path);
        if (!text)
                return fail(result, -ENOMEM, "write", path);
        /* Not synced: after a crash of the host the machine is gone too, and the sweep finds its subvolume. */
        fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0)
                return fail(result, -errno, "create", temporary);
        r = write_all(fd, text, strlen(text));
        if (r >= 0 && renameat2(AT_FDCWD, temporary, AT_FDCWD, path, replace ? RENAME_EXCHANGE : 0) < 0)
                r = replace && errno == ENOENT ? 0 : -errno;
        if (r < 0 || replace)
                unlink(temporary);
        return r < 0 ? fail(result, r, "write", path) : 0;
}

static int op_clone(json_t *request, struct result *result) {
        const char *id = NULL, *snapshot = NULL;
        _cleanup_close_ int source = -1, disk = -1, memory = -1, devices = -1;
        enum btrfs_util_error e;
        json_int_t size = 0;
        json_t *record = NULL;
        char path[256];
        int r;

        if (json_unpack(request, "{s:s,s:s,s:I,s:o}", "id", &id, "snapshot", &snapshot, "disk_size", &size, "record",
                        &record) < 0)
                return fail(result, -EINVAL, "read", "the request");
        source = open_snapshot_file(result, snapshot, SNAPSHOT_DISK);
        memory = open_snapshot_file(result, snapshot, SNAPSHOT_MEMORY);
        devices = open_snapshot_file(result, snapshot, SNAPSHOT_DEVICES);
        if (source < 0 || memory < 0 || devices < 0)
                return MIN(source, MIN(memory, devices));
        snprintf(path, sizeof(path), STORAGE_PATH "/sandboxes/%s", id);
        /* The record comes first: what has a record is undone by it. */
        r = write_record(result, id, record, false);
        if (r < 0)
                return r;
        e = btrfs_util_create_subvolume(path, 0, NULL, NULL);
        if (e != BTRFS_UTIL_OK)
                return fail_btrfs(result, e, "create the subvolume", path);
        if (chmod(path, 0700) < 0)
                return fail(result, -errno, "set the mode of", path);
        r = clone_disk(result, path, source, (uint64_t) size, &disk);
        if (r < 0)
                return r;
        result->fds[0] = TAKE_FD(disk);
        result->names[0] = "disk";
        result->fds[1] = TAKE_FD(memory);
        result->names[1] = "memory";
        result->fds[2] = TAKE_FD(devices);
        result->names[2] = "devices";
        result->n_fds = 3;
        return 0;
}

static int op_record(json_t *request, struct result *result) {
        const char *id = NULL;
        json_t *record = NULL;

        if (json_unpack(request, "{s:s,s:o}", "id", &id, "record", &record) < 0)
                return fail(result, -EINVAL, "read", "the request");
        return write_record(result, id, record, true);
}

/* One write of one whole line, then fdatasync: a record is there or it isn't. A line that was torn by a full disk is
 * cut off again. */
static int append_usage(struct result *result, json_t *usage) {
        _cleanup_free_ char *text = json_dumps(usage, JSON_COMPACT | JSON_PRESERVE_ORDER);
        _cleanup_free_ char *line = NULL;
        _cleanup_close_ int fd = -1;
        struct stat st;
        char last;
        int r = 0;

        if (!text || asprintf(&line, "%s\n", text) < 0)
                return fail(result, -ENOMEM, "write", LEDGER_PATH);
        fd = open(LEDGER_PATH, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fail(result, -errno, "open", LEDGER_PATH);
        /* After a crash of the host the last line may be torn: it must not take this one with it. */
        if (st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n')
                r = write_all(fd, "\n", 1);
        if (r >= 0)
                r = write_all(fd, line, strlen(line));
        if (r >= 0 && fdatasync(fd) < 0)
                r = -errno;
        if (r < 0) {
                (void) !ftruncate(fd, st.st_size);
                return fail(result, r, "append to", LEDGER_PATH);
        }
        return 0;
}

static int op_end(json_t *request, struct result *result) {
        const char *id = NULL;
        json_t *usage = NULL;
        char path[256];
        int r, storage;

        if (json_unpack(request, "{s:s,s:o}", "id", &id, "usage", &usage) < 0)
                return fail(result, -EINVAL, "read", "the request");
        snprintf(path, sizeof(path), STORAGE_PATH "/sandboxes/%s", id);
        /* Asked again after it had half succeeded, it must not add a second one. */
        r = json_is_null(usage) || usage_is_recorded(id) ? 0 : append_usage(result, usage);
        if (r == -ENOSPC || r == -EDQUOT) {
                /* Perhaps this very sandbox has filled the disk. Its record stays until the ledger has it. */
                r = remove_subvolume(result, path);
                storage = open(STORAGE_PATH, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                (void) syncfs(storage);
                close_fd(storage);
                if (r >= 0)
                        r = append_usage(result, usage);
        }
        if (r >= 0)
                r = remove_subvolume(result, path);
        if (r < 0)
                return r;
        snprintf(path, sizeof(path), STORAGE_PATH "/sandboxes/%s.json", id);
        if (unlink(path) < 0 && errno != ENOENT)
                return fail(result, -errno, "remove", path);
        return 0;
}

static int op_remove(json_t *request, struct result *result) {
        const char *kind = NULL, *name = NULL;
        char path[512];

        if (json_unpack(request, "{s:s,s:s}", "kind", &kind, "name", &name) < 0 || strchr(name, '/'))
                return fail(result, -EINVAL, "read", "the request");
        snprintf(path, sizeof(path), STORAGE_PATH "/%s/%s", kind, name);
        return remove_subvolume(result, path);
}

static int op_usage(json_t *request, struct result *result) {
        int r = usage_collect(request, &result->fds[0]);

        if (r < 0)
                return fail(result, r, "read", LEDGER_PATH);
        result->names[0] = "records";
        result->n_fds = 1;
        return 0;
}

static const struct {
        const char *name;
        int (*run)(json_t *request, struct result *result);
} operations[] = {
        { "clone", op_clone },   { "record", op_record }, { "end", op_end },
        { "remove", op_remove }, { "usage", op_usage },
};

static int run(json_t *request, struct result *result) {
        const char *op = strempty(json_string_value(json_object_get(request, "op")));

        for (size_t i = 0; i < ELEMENTSOF(operations); i++)
                if (streq(op, operations[i].name))
                        return operations[i].run(request, result);
        return fail(result, -EOPNOTSUPP, "do", op);
}

static int serve_one(int fd) {
        struct result result = {};
        struct control_message m = {};
        json_t *reply;
        int r, error;

        r = control_recv(fd, &m);
        if (r <= 0)
                return r == -EAGAIN ? 1 : r;
        error = run(m.body, &result);
        control_message_done(&m);
        reply = json_pack("{s:s,s:i,s:s}", "type", "reply", "error", -error, "message", result.message);
        r = reply ? control_send(fd, reply, result.names, result.fds, result.n_fds) : -ENOMEM;
        json_decref(reply);
        for (size_t i = 0; i < result.n_fds; i++)
                close_fd(result.fds[i]);
        return r < 0 ? r : 1;
}

int worker_main(int fd) {
        int r;

        prctl(PR_SET_NAME, "sandboxd-worker");
        do {
                struct pollfd p = { .fd = fd, .events = POLLIN };

                if (poll(&p, 1, -1) < 0 && errno != EINTR)
                        return -errno;
                r = serve_one(fd);
        } while (r > 0);
        return r;
}
