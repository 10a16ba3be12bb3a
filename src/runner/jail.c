/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Isolation in stages, each of which gives something up for good:
 *   namespaces  the host's mounts as they change, and every network. (Its processes, IPC objects and host name went
 * when this process was made.) files       every path of the host: what is left is a small read-only tree with QEMU's
 * program, libraries and firmware, /dev/null, /dev/urandom, and a /proc that shows nobody but QEMU itself to QEMU
 *   limits      core dumps, locked memory, more processes and descriptors than the job needs
 *   identity    root, groups, all capabilities for ever, and set-user-id programs
 *   filter      the system calls that none of the above should make possible anyway
 * The first two are most of the work and depend on nothing in "start", so they are prepared before it comes. */

#include "jail.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <systemd/sd-journal.h>

#include "log.h"

/* Where the new root is put together; what was there is of no use to us any more. */
#define NEW_ROOT "/run"

struct Jail {
        void *filter;
};

#define fail(what, error)                                                                                             \
        ({                                                                                                            \
                *ret_what = (what);                                                                                   \
                (error);                                                                                              \
        })

/* With the journal's socket out of sight, a stream to it stays. systemd's own stderr of the controller is one too, but
 * what is written there is filed under the controller's unit. */
static void open_journal(void) {
        _cleanup_close_ int fd = -1;
        struct stat st;

        if (fstat(STDERR_FILENO, &st) < 0 || !S_ISSOCK(st.st_mode))
                return;
        fd = sd_journal_stream_fd("sandbox-runner", LOG_INFO, 1);
        if (fd < 0 || dup3(fd, STDERR_FILENO, 0) < 0)
                return;
}

static int enter_namespaces(const char **ret_what) {
        if (unshare(CLONE_NEWNS | CLONE_NEWNET) < 0)
                return fail("leave the host's namespaces", -errno);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                return fail("make mounts private", -errno);
        return 0;
}

/* Makes the folders above path, below the new root. */
static int make_parents(const char *path) {
        _cleanup_free_ char *copy = NULL;

        if (asprintf(&copy, NEW_ROOT "%s", path) < 0)
                return -ENOMEM;
        for (char *p = copy + strlen(NEW_ROOT "/"); (p = strchr(p, '/')); p++) {
                *p = 0;
                if (mkdir(copy, 0755) < 0 && errno != EEXIST)
                        return -errno;
                *p = '/';
        }
        return 0;
}

/* Shows the host's file or folder at the same path inside, with the given attributes. -ENOENT when there is none. */
static int show(const char *path, uint64_t attributes) {
        struct mount_attr attr = { .attr_set = attributes };
        _cleanup_free_ char *target = NULL;
        _cleanup_close_ int tree = -1;
        struct stat st;
        int r;

        /* Not recursive: a mount below would bring what nobody listed. */
        tree = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (tree < 0)
                return -errno;
        if (mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
                return -errno;
        if (fstat(tree, &st) < 0)
                return -errno;

        r = make_parents(path);
        if (r < 0)
                return r;
        if (asprintf(&target, NEW_ROOT "%s", path) < 0)
                return -ENOMEM;
        if (S_ISDIR(st.st_mode))
                r = mkdir(target, 0755) < 0 && errno != EEXIST ? -errno : 0;
        else
                r = mknod(target, S_IFREG | 0444, 0) < 0 ? -errno : 0;
        if (r < 0)
                return r;
        if (move_mount(tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return -errno;
        return 0;
}

#define FILES_READ_ONLY (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)

static int show_libraries(const char **ret_what) {
        static const char *const paths[] = {
                "/usr/lib/x86_64-linux-gnu", /* Debian's libraries, QEMU's modules */
                "/usr/lib64",                /* the loader; elsewhere the libraries */
                "/usr/share/qemu",           /* firmware */
                "/usr/share/seabios",
        };

        for (size_t i = 0; i < ELEMENTSOF(paths); i++) {
                int r = show(paths[i], FILES_READ_ONLY);

                if (r < 0 && r != -ENOENT)
                        return fail("show QEMU its libraries", r);
        }
        if (symlink("usr/lib", NEW_ROOT "/lib") < 0 || symlink("usr/lib64", NEW_ROOT "/lib64") < 0)
                return fail("show QEMU its libraries", -errno);
        return 0;
}

static int make_root(const char **ret_what) {
        int r;

        umask(022);
        if (mount("sandbox", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64") <
            0)
                return fail("mount a new root", -errno);
        r = show_libraries(ret_what);
        if (r < 0)
                return r;

        r = show("/dev/null", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
        if (r >= 0)
                r = show("/dev/urandom", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY);
        if (r < 0)
                return fail("make devices", r);

        /* QEMU needs its own entry, to open descriptors anew; the runner isn't dumpable, so QEMU doesn't see it. */
        if (mkdir(NEW_ROOT "/proc", 0755) < 0 ||
            mount("proc", NEW_ROOT "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC,
                  "subset=pid,hidepid=ptraceable") < 0)
                return fail("mount /proc", -errno);
        return 0;
}

int jail_prepare(Jail **ret, const char **ret_what) {
        _cleanup_(jail_freep) Jail *j = calloc(1, sizeof(*j));
        int r;

        if (!j)
                return fail("allocate memory", -ENOMEM);
        open_journal();
        r = enter_namespaces(ret_what);
        if (r < 0)
                return r;
        r = make_root(ret_what);
        if (r < 0)
                return r;
        r = jail_filter_new(&j->filter, ret_what);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(j);
        return 0;
}

void jail_free(Jail *j) {
        if (!j)
                return;
        jail_filter_free(j->filter);
        free(j);
}

/* From here on no path leads to the host. The old root goes as a whole, with all that is mounted on it. */
static int switch_root(const char *vmm, const char **ret_what) {
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY };
        int r;

        r = show(vmm, FILES_READ_ONLY);
        if (r < 0)
                return fail("show QEMU's program", r);
        if (mount_setattr(AT_FDCWD, NEW_ROOT, 0, &attr, sizeof(attr)) < 0)
                return fail("make the new root read-only", -errno);
        if (chdir(NEW_ROOT) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
                return fail("change to the new root", -errno);
        if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
                return fail("leave the host's files", -errno);
        return 0;
}

int jail_enter(Jail *j, const struct jail_spec *spec, int *ret_kvm_fd, const char **ret_what) {
        _cleanup_close_ int kvm_fd = -1;
        int r;

        /* Opened inside the scope, whose device policy decides. */
        if (spec->kvm) {
                kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
                if (kvm_fd < 0)
                        return fail("open /dev/kvm", -errno);
        }
        if (sethostname(spec->hostname, strlen(spec->hostname)) < 0)
                return fail("set the host name", -errno);

        r = switch_root(spec->vmm, ret_what);
        if (r >= 0)
                r = jail_limits(ret_what);
        if (r >= 0)
                r = jail_identity(spec->uid, ret_what);
        if (r >= 0)
                r = jail_filter_load(j->filter, ret_what);
        if (r < 0)
                return r;

        *ret_kvm_fd = TAKE_FD(kvm_fd);
        return 0;
}
