/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* From the kernel's first process in the initrd to a mounted root: modules, disk, mounts, and what init systems do for
 * a machine that has none. Everything here runs once, at a bake; a restore starts behind it. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "agent.h"

#define ROOT_DEVICE "/dev/vda"
#define DISK_WAIT_USEC (10 * USEC_PER_SEC)

int proc_fd = -1, sys_fd = -1, cgroup_fd = -1;

static void mount_or_warn(const char *what, const char *where, const char *type, unsigned long flags,
                          const char *options) {
        (void) mkdir(where, 0755);
        if (mount(what, where, type, flags, options) < 0 && errno != EBUSY)
                warn("cannot mount %s on %s: %s", type, where, strerror(errno));
}

static void mount_kernel(void) {
        mount_or_warn("devtmpfs", "/dev", "devtmpfs", MS_NOSUID | MS_STRICTATIME, "mode=0755");
        mount_or_warn("proc", "/proc", "proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
        mount_or_warn("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);

        /* The kernel found no /dev/console in the initrd: without this, pipes would become 0, 1 and 2. */
        for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd < 2;)
                fd = dup(fd);
}

static void load_modules(void) {
        char order[4096], path[300];
        char *save = NULL;

        if (read_small(AT_FDCWD, "/modules/order", order, sizeof(order)) < 0)
                return; /* a kernel with everything built in */

        for (char *name = strtok_r(order, "\n", &save); name; name = strtok_r(NULL, "\n", &save)) {
                snprintf(path, sizeof(path), "/modules/%s", name);
                int fd = open(path, O_RDONLY | O_CLOEXEC);
                if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST))
                        warn("cannot load module %s: %s", name, strerror(errno));
                close_fd(fd);
                (void) unlink(path);
        }
        (void) unlink("/modules/order");
}

static void mount_root(void) {
        uint64_t deadline = now_usec() + DISK_WAIT_USEC;

        while (!file_exists(ROOT_DEVICE)) {
                if (now_usec() > deadline)
                        die("no disk: " ROOT_DEVICE " didn't appear within 10 s");
                nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
        }
        (void) mkdir("/sysroot", 0755);
        if (mount(ROOT_DEVICE, "/sysroot", "ext4", MS_NOATIME, NULL) < 0)
                die("cannot mount " ROOT_DEVICE " as ext4: %s", strerror(errno));
}

static void switch_root(void) {
        static const char *const moved[] = { "dev", "proc", "sys" };
        char from[16], to[32];

        for (size_t i = 0; i < ELEMENTSOF(moved); i++) {
                snprintf(from, sizeof(from), "/%s", moved[i]);
                snprintf(to, sizeof(to), "/sysroot/%s", moved[i]);
                (void) mkdir(to, 0755);
                if (mount(from, to, NULL, MS_MOVE, NULL) < 0)
                        die("cannot move %s into the root: %s", from, strerror(errno));
        }
        /* What is left in the initramfs is memory that nobody could give back later. This binary's pages stay. */
        (void) unlink("/init");
        (void) rmdir("/modules");
        if (chdir("/sysroot") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
                die("cannot switch to the root: %s", strerror(errno));
}

static void mount_rest(void) {
        static const char *const links[][2] = {
                { "/proc/self/fd", "/dev/fd" },
                { "/proc/self/fd/0", "/dev/stdin" },
                { "/proc/self/fd/1", "/dev/stdout" },
                { "/proc/self/fd/2", "/dev/stderr" },
        };

        /* As init systems have it: a mount shows up in the namespaces of containers too. */
        if (mount(NULL, "/", NULL, MS_REC | MS_SHARED, NULL) < 0)
                warn("cannot share the mounts: %s", strerror(errno));
        for (size_t i = 0; i < ELEMENTSOF(links); i++)
                (void) symlink(links[i][0], links[i][1]);
        mount_or_warn("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=0620,ptmxmode=0666,gid=5");
        mount_or_warn("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
        mount_or_warn("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
        (void) mkdir("/run/lock", 01777);
        (void) chmod("/run/lock", 01777);
        mount_or_warn("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);

        proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
        sys_fd = open("/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
        cgroup_fd = open("/sys/fs/cgroup", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (proc_fd < 0 || sys_fd < 0 || cgroup_fd < 0)
                die("cannot open /proc, /sys or /sys/fs/cgroup: %s", strerror(errno));
}

static void sysctls(void) {
        static const char *const values[][2] = {
                { "kernel/sysrq", "0" },
                { "fs/inotify/max_user_watches", "524288" },     /* development servers watch whole trees */
                { "net/ipv4/ping_group_range", "0 2147483647" }, /* ping without privileges */
                { "net/ipv6/conf/default/disable_ipv6", "1" },   /* until egress has rules for it; lo keeps ::1 */
        };
        char path[80];

        for (size_t i = 0; i < ELEMENTSOF(values); i++) {
                snprintf(path, sizeof(path), "sys/%s", values[i][0]);
                (void) write_kernel_file(proc_fd, path, values[i][1]);
        }
}

void boot(void) {
        mount_kernel();
        load_modules();
        mount_root();
        switch_root();
        mount_rest();

        /* No oom_score_adj: the kernel never chooses PID 1, and its children would have to reset it. */
        (void) reboot(RB_DISABLE_CAD);
        (void) setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 16384, 524288 });
        umask(022);

        sysctls();
        if (sethostname("sandbox", 7) < 0)
                warn("cannot set the hostname: %s", strerror(errno));
        if (network_loopback_up() < 0)
                warn("cannot bring up lo");
        if (make_published_dir() < 0)
                warn("cannot make /run/sandbox: %s", strerror(errno));
        say("the root is mounted after %u ms", (unsigned) (now_usec() / USEC_PER_MSEC));
}
