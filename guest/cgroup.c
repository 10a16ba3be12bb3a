/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* /sys/fs/cgroup/sandbox is the workload, all that isn't this process; sandbox/cN one command. The numbers are the
 * agent's own: a restored machine's host counts its streams from 1 again while older commands still run. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "agent.h"

#define FREEZE_WAIT_USEC (2 * USEC_PER_SEC)
#define DEPTH_MAX 16 /* of what a command may have made below its cgroup */

static int sandbox_fd = -1;

static int open_dir(int at, const char *name) {
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? -errno : fd;
}

/* One by one: a kernel without one of them still gives the others. */
static void enable_controllers(int fd) {
        static const char *const controllers[] = { "+cpu", "+memory", "+pids" };

        for (size_t i = 0; i < ELEMENTSOF(controllers); i++)
                if (write_kernel_file(fd, "cgroup.subtree_control", controllers[i]) < 0)
                        say("no cgroup controller %s", controllers[i] + 1);
}

int cgroup_setup(void) {
        enable_controllers(cgroup_fd);
        if (mkdirat(cgroup_fd, "sandbox", 0755) < 0 && errno != EEXIST)
                return -errno;
        sandbox_fd = open_dir(cgroup_fd, "sandbox");
        if (sandbox_fd < 0)
                return sandbox_fd;
        enable_controllers(sandbox_fd);
        cgroup_prepare();
        return 0;
}

static void command_name(uint64_t number, char ret[32]) {
        snprintf(ret, 32, "c%llu", (unsigned long long) number);
}

static int make(uint64_t *ret_number, int *ret_fd) {
        static uint64_t last_number;
        char name[32];
        int fd;

        command_name(++last_number, name);
        if (mkdirat(sandbox_fd, name, 0755) < 0)
                return -errno;
        fd = open_dir(sandbox_fd, name);
        if (fd < 0) {
                (void) unlinkat(sandbox_fd, name, AT_REMOVEDIR);
                return fd;
        }
        *ret_number = last_number;
        *ret_fd = fd;
        return 0;
}

/* Making a cgroup costs the kernel more than starting a process; so there is one ahead, also in a captured machine. */
static struct {
        uint64_t number;
        int fd;
} spare = { .fd = -1 };

void cgroup_prepare(void) {
        if (spare.fd < 0 && make(&spare.number, &spare.fd) < 0)
                spare.fd = -1;
}

int cgroup_take(uint64_t *ret_number, int *ret_fd) {
        if (spare.fd < 0)
                return make(ret_number, ret_fd);
        *ret_number = spare.number;
        *ret_fd = TAKE_FD(spare.fd);
        return 0;
}

/* Removes an empty cgroup with the empty ones below it. */
static int remove_tree(int at, const char *name, unsigned depth) {
        struct dirent *entry;
        DIR *d;
        int fd;

        if (unlinkat(at, name, AT_REMOVEDIR) >= 0 || errno == ENOENT)
                return 0;
        if (depth >= DEPTH_MAX || (fd = open_dir(at, name)) < 0)
                return -EBUSY;
        d = fdopendir(fd);
        if (!d) {
                close(fd);
                return -ENOMEM;
        }
        while ((entry = readdir(d)))
                if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
                        (void) remove_tree(dirfd(d), entry->d_name, depth + 1);
        closedir(d);
        return unlinkat(at, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

int cgroup_remove(uint64_t number) {
        char name[32];

        command_name(number, name);
        return remove_tree(sandbox_fd, name, 0);
}

int cgroup_kill(int fd) {
        return write_kernel_file(fd, "cgroup.kill", "1");
}

/* Walks the pids of a cgroup, sending them a signal unless it is 0; returns how many there are. */
static unsigned walk(int fd, int signal) {
        _cleanup_close_ int procs = openat(fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
        FILE *f = procs >= 0 ? fdopen(procs, "re") : NULL;
        unsigned count = 0;
        int pid;

        if (!f)
                return 0;
        TAKE_FD(procs);
        while (fscanf(f, "%d", &pid) == 1) {
                count++;
                /* 0 is a process outside of our pid namespace, of which there are none. */
                if (signal > 0 && pid > 1)
                        (void) kill(pid, signal);
        }
        fclose(f);
        return count;
}

int cgroup_signal(int fd, int signal) {
        return walk(fd, signal) > 0 ? 0 : -ESRCH;
}

unsigned cgroup_count(int fd) {
        return walk(fd, 0);
}

/* The number behind `key` in a file of "key number" lines. */
static int read_key(int fd, const char *file, const char *key, uint64_t *ret) {
        char text[1024], *p;
        size_t n = strlen(key);
        int r = read_small(fd, file, text, sizeof(text));

        if (r < 0)
                return r;
        for (p = text; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
                if (strncmp(p, key, n) == 0 && p[n] == ' ') {
                        *ret = strtoull(p + n + 1, NULL, 10);
                        return 0;
                }
        return -ENODATA;
}

bool cgroup_is_populated(int fd) {
        uint64_t value = 0;

        return read_key(fd, "cgroup.events", "populated", &value) >= 0 && value != 0;
}

void cgroup_usage(int fd, uint64_t *ret_cpu_usec, uint64_t *ret_memory_peak) {
        char text[64];

        *ret_cpu_usec = *ret_memory_peak = 0;
        (void) read_key(fd, "cpu.stat", "usage_usec", ret_cpu_usec);
        if (read_small(fd, "memory.peak", text, sizeof(text)) > 0)
                *ret_memory_peak = strtoull(text, NULL, 10);
}

int cgroup_freeze(bool freeze) {
        uint64_t deadline = now_usec() + FREEZE_WAIT_USEC, is_frozen = 0;
        _cleanup_close_ int events = -1;
        int r;

        r = write_kernel_file(sandbox_fd, "cgroup.freeze", freeze ? "1" : "0");
        if (r < 0 || !freeze)
                return r;

        events = openat(sandbox_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
        if (events < 0)
                return -errno;
        for (;;) {
                char c;
                uint64_t now = now_usec();

                /* Reading this descriptor arms its poll; the second reading is for the value. */
                (void) !pread(events, &c, 1, 0);
                r = read_key(sandbox_fd, "cgroup.events", "frozen", &is_frozen);
                if (r < 0 || is_frozen)
                        return r;
                if (now >= deadline)
                        return -ETIMEDOUT;
                (void) poll(&(struct pollfd){ .fd = events, .events = POLLPRI }, 1,
                            (int) ((deadline - now) / 1000 + 1));
        }
}

int cgroup_limit(uint64_t memory_max) {
        char text[32];

        if (memory_max == 0) {
                int r = write_kernel_file(sandbox_fd, "memory.max", "max");
                return r == -ENOENT ? 0 : r; /* no controller, no limit */
        }
        snprintf(text, sizeof(text), "%llu", (unsigned long long) memory_max);
        return write_kernel_file(sandbox_fd, "memory.max", text);
}

/* For programs that the agent itself runs during SETUP, while the workload is frozen. */
int cgroup_make_helper(int *ret_fd) {
        int fd;

        if (mkdirat(cgroup_fd, "agent-helper", 0755) < 0 && errno != EEXIST)
                return -errno;
        fd = open_dir(cgroup_fd, "agent-helper");
        if (fd < 0)
                return fd;
        *ret_fd = fd;
        return 0;
}
