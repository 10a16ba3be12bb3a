/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int open_in_root(int root_fd, const char *path, uint64_t flags) {
        struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
        long fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));

        return fd < 0 ? -errno : (int) fd;
}

int tree_open_folder(int root_fd, const char *path) {
        return open_in_root(root_fd, path, O_RDONLY | O_DIRECTORY);
}

/* Opens the folder that path is in; its last part is *ret_name. create: makes what is missing. */
static int open_parent(int root_fd, const char *path, bool create, const char **ret_name) {
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
        _cleanup_free_ char *parent = strndup(path, (size_t) (name - path));
        int fd;

        if (!parent)
                return -ENOMEM;
        if (!*name || streq(name, ".") || streq(name, ".."))
                return -EINVAL;
        *ret_name = name;
        fd = tree_open_folder(root_fd, *parent ? parent : ".");
        if (fd != -ENOENT || !create)
                return fd;
        while (*parent && parent[strlen(parent) - 1] == '/')
                parent[strlen(parent) - 1] = 0;
        if (!*parent)
                return -ENOENT;
        fd = tree_mkdir(root_fd, parent, 0755);
        return fd < 0 ? fd : tree_open_folder(root_fd, parent);
}

int tree_mkdir(int root_fd, const char *path, mode_t mode) {
        _cleanup_close_ int fd = -1, parent_fd = -1;
        const char *name;

        fd = open_in_root(root_fd, path, O_PATH | O_DIRECTORY);
        if (fd >= 0 || fd != -ENOENT)
                return fd < 0 ? fd : 0;
        parent_fd = open_parent(root_fd, path, true, &name);
        if (parent_fd < 0)
                return parent_fd;
        if (mkdirat(parent_fd, name, 0700) < 0 || fchmodat(parent_fd, name, mode, 0) < 0)
                return -errno;
        return 0;
}

int tree_remove(int root_fd, const char *path) {
        _cleanup_close_ int parent_fd = -1;
        const char *name;

        parent_fd = open_parent(root_fd, path, false, &name);
        if (parent_fd < 0)
                return parent_fd == -ENOENT || parent_fd == -ENOTDIR ? 0 : parent_fd;
        return unlinkat(parent_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* A new file in an open folder, in place of what has its name. */
static int create_at(int parent_fd, const char *name, mode_t mode) {
        _cleanup_close_ int fd = -1;

        if (unlinkat(parent_fd, name, 0) < 0 && errno != ENOENT)
                return -errno;
        fd = openat(parent_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 || fchmod(fd, mode) < 0)
                return -errno;
        return TAKE_FD(fd);
}

int tree_write(int root_fd, const char *path, const void *data, size_t size, mode_t mode) {
        _cleanup_close_ int parent_fd = -1, fd = -1;
        const char *name;

        parent_fd = open_parent(root_fd, path, true, &name);
        if (parent_fd < 0)
                return parent_fd;
        fd = create_at(parent_fd, name, mode);
        return fd < 0 ? fd : write_all(fd, data, size);
}

static int copy_file(int from_fd, int parent_fd, const char *name, mode_t mode) {
        _cleanup_close_ int fd = create_at(parent_fd, name, mode);

        if (fd < 0)
                return fd;
        for (;;) {
                ssize_t n = sendfile(fd, from_fd, NULL, 1U << 30);

                if (n <= 0)
                        return n < 0 ? -errno : 0;
        }
}

static int copy_link(int from_fd, const char *from, int parent_fd, const char *name) {
        char target[4096];
        ssize_t n = readlinkat(from_fd, from, target, sizeof(target) - 1);

        if (n < 0)
                return -errno;
        target[n] = 0;
        if (unlinkat(parent_fd, name, 0) < 0 && errno != ENOENT)
                return -errno;
        return symlinkat(target, parent_fd, name) < 0 ? -errno : 0;
}

static int copy_at(int from_fd, const char *from, int parent_fd, const char *name, mode_t mode);

static int copy_folder(int from_fd, int parent_fd, const char *name, mode_t mode) {
        _cleanup_close_ int fd = -1;
        struct dirent *entry;
        DIR *dir;
        int r = 0;

        if (mkdirat(parent_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fchmod(fd, mode) < 0)
                return -errno;
        from_fd = fcntl(from_fd, F_DUPFD_CLOEXEC, 3);
        dir = from_fd < 0 ? NULL : fdopendir(from_fd);
        if (!dir) {
                r = -errno;
                close_fd(from_fd);
                return r;
        }
        while (r >= 0 && (errno = 0, entry = readdir(dir)))
                if (!streq(entry->d_name, ".") && !streq(entry->d_name, ".."))
                        r = copy_at(dirfd(dir), entry->d_name, fd, entry->d_name, (mode_t) -1);
        if (r >= 0 && errno != 0)
                r = -errno;
        closedir(dir);
        return r;
}

/* Special files aren't copied: -EMEDIUMTYPE. */
static int copy_at(int from_fd, const char *from, int parent_fd, const char *name, mode_t mode) {
        _cleanup_close_ int fd = openat(from_fd, from, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        struct stat st;

        if (fd < 0)
                return errno == ELOOP ? copy_link(from_fd, from, parent_fd, name) : -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (S_ISDIR(st.st_mode))
                return copy_folder(fd, parent_fd, name, mode == (mode_t) -1 ? st.st_mode & 07777 : mode);
        if (!S_ISREG(st.st_mode))
                return -EMEDIUMTYPE;
        return copy_file(fd, parent_fd, name, mode == (mode_t) -1 ? st.st_mode & 07777 : mode);
}

int tree_copy(int root_fd, const char *path, const char *from, mode_t mode) {
        _cleanup_close_ int parent_fd = -1;
        const char *name;

        parent_fd = open_parent(root_fd, path, true, &name);
        if (parent_fd < 0)
                return parent_fd;
        return copy_at(AT_FDCWD, from, parent_fd, name, mode);
}
