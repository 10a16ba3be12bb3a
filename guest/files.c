/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Small files in a file system that root in the guest could have prepared: symbolic links are never followed when
 * writing, and nothing is opened that could block (a FIFO in the place of /etc/hosts).
 *
 * What changes with every restore is in /run/sandbox, a small tmpfs of the agent's own: a full disk, an immutable file
 * or a read-only root can't make a machine impossible to restore, and a restore touches no disk. /etc/machine-id and
 * /etc/hostname are mounts of files there, as systemd does it with a machine id that isn't on the disk. The files stay
 * open; they are rewritten in place, so that mounts, and watches on them, go on showing the truth. While they are,
 * after a restore, the workload is frozen: nobody can read half a line. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "agent.h"

#define PUBLISHED "/run/sandbox"

static struct published {
        const char *name, *covers;
        int fd;
        bool covered;
} published[] = {
        [PUBLISHED_GENERATION] = { "generation", NULL, -1, false },
        [PUBLISHED_BOOT_TOKEN] = { "boot-token", NULL, -1, false },
        /* The kernel's own boot id was drawn once, at the bake, and programs take it for unique. */
        [PUBLISHED_BOOT_ID] = { "boot-id", "/proc/sys/kernel/random/boot_id", -1, false },
        [PUBLISHED_MACHINE_ID] = { "machine-id", "/etc/machine-id", -1, false },
        [PUBLISHED_HOSTNAME] = { "hostname", "/etc/hostname", -1, false },
};

/* From the kernel's interface; musl has no headers of Linux. */
struct open_how_v0 {
        uint64_t flags, mode, resolve;
};
#define RESOLVE_NO_MAGICLINKS_ 0x02
#define RESOLVE_NO_SYMLINKS_ 0x04
#ifndef SYS_openat2
#define SYS_openat2 437
#endif

/* Opens without following a link anywhere on the way. */
static int open_plain(const char *path, int flags, mode_t mode) {
        struct open_how_v0 how = {
                .flags = (uint64_t) (flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY),
                .mode = flags & O_CREAT ? mode : 0,
                .resolve = RESOLVE_NO_SYMLINKS_ | RESOLVE_NO_MAGICLINKS_,
        };
        int fd = (int) syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));

        return fd < 0 ? -errno : fd;
}

bool file_exists(const char *path) {
        struct stat st;
        return lstat(path, &st) >= 0;
}

int read_small(int dir_fd, const char *path, char *buffer, size_t size) {
        _cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        size_t n = 0;

        if (fd < 0)
                return -errno;
        while (n < size - 1) {
                ssize_t k = read(fd, buffer + n, size - 1 - n);
                if (k < 0)
                        return -errno;
                if (k == 0)
                        break;
                n += (size_t) k;
        }
        buffer[n] = 0;
        return (int) n;
}

int write_kernel_file(int dir_fd, const char *path, const char *text) {
        _cleanup_close_ int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC | O_NOCTTY);

        if (fd < 0)
                return -errno;
        if (write(fd, text, strlen(text)) < 0)
                return -errno;
        return 0;
}

static int write_fd(int fd, const void *data, size_t size) {
        struct stat st;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        if (size > 0) {
                ssize_t n = pwrite(fd, data, size, 0);
                if (n < 0)
                        return -errno;
                if ((size_t) n != size)
                        return -ENOSPC;
        }
        if ((size_t) st.st_size > size && ftruncate(fd, (off_t) size) < 0)
                return -errno;
        return 0;
}

/* Puts `size` bytes at path, which is made when it isn't there. */
int write_over(const char *path, const void *data, size_t size, mode_t mode) {
        _cleanup_close_ int fd = open_plain(path, O_WRONLY, 0);

        if (fd == -ENOENT || fd == -ELOOP || fd == -ENXIO) {
                (void) unlink(path);
                fd = open_plain(path, O_WRONLY | O_CREAT | O_EXCL, mode);
                if (fd >= 0)
                        (void) fchmod(fd, mode);
        }
        return fd < 0 ? fd : write_fd(fd, data, size);
}

int make_published_dir(void) {
        int r;

        (void) mkdir(PUBLISHED, 0755);
        /* Of its own size: a full /run doesn't touch it. */
        if (mount("tmpfs", PUBLISHED, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=256k") < 0)
                return -errno;
        for (size_t i = 0; i < _PUBLISHED_MAX; i++) {
                char path[100];

                snprintf(path, sizeof(path), PUBLISHED "/%s", published[i].name);
                published[i].fd = open_plain(path, O_RDWR | O_CREAT | O_EXCL, 0444);
                if (published[i].fd < 0)
                        return published[i].fd;
                (void) fchmod(published[i].fd, 0444);
        }
        r = write_over(PUBLISHED "/environment", "SANDBOX=1\n", 10, 0444);
        return r;
}

/* Mounts the published file where programs look for it. A root without such a file gets one. */
static int cover(struct published *p) {
        char file[100];

        snprintf(file, sizeof(file), PUBLISHED "/%s", p->name);
        if (!file_exists(p->covers))
                (void) write_over(p->covers, "", 0, 0444);
        if (mount(file, p->covers, NULL, MS_BIND, NULL) >= 0)
                p->covered = true;
        else if (errno != ENOENT) /* and couldn't be made: a machine without it doesn't carry another's */
                return -errno;
        return 0;
}

int write_published(enum published_file file, const char *text) {
        struct published *p = &published[file];
        int r = write_fd(p->fd, text, strlen(text));

        return r >= 0 && p->covers && !p->covered ? cover(p) : r;
}
