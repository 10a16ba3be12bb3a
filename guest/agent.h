/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* sandbox-agent: PID 1 of every guest. One thread, one epoll loop.
 *
 * The one hard idea: two loops in one. The outer has the port and, while the machine may run, the inner one ("work":
 * children, pipes, deadlines). Between FROZEN and the next HELLO or THAW the inner loop is taken out, so that nothing
 * can be sent, reaped or started while the machine's state is captured, and everything that became ready meanwhile is
 * still ready afterwards. The pipes of output are a third, inside the second, taken out while the port's queue is
 * full.
 *
 * Root in the guest may do to this process what it likes: it harms its own machine only. The kernel's file systems
 * that the agent steers by are held open from before the first command ran, so that at least accidents (an unmounted
 * /proc) don't break a restore. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include "agent-protocol.h"
#include "util.h"

/* Something that epoll watches. */
struct source {
        int fd; /* owned by whoever embeds the source */
        void (*ready)(struct source *s, uint32_t events);
        int loop;        /* the epoll that it is in, -1: none */
        uint32_t events; /* what it is there for */
};

/* Directories of the kernel's own file systems. */
extern int proc_fd, sys_fd, cgroup_fd;

/* log.c: to the kernel's log, which the console shows */
void say(const char *format, ...) _printf_(1, 2);  /* only with a chatty console */
void warn(const char *format, ...) _printf_(1, 2); /* shown on the console */
_Noreturn void die(const char *format, ...) _printf_(1, 2);
uint64_t now_usec(void); /* CLOCK_MONOTONIC */

/* files.c: small files whose path, or file system, a guest may have tampered with. Negative errno. */
enum published_file {
        PUBLISHED_GENERATION, /* grows with every restore; watch it to learn of one */
        PUBLISHED_BOOT_TOKEN, /* new with every restore */
        PUBLISHED_BOOT_ID,    /* the same as an UUID, in the place of the kernel's */
        PUBLISHED_MACHINE_ID,
        PUBLISHED_HOSTNAME,
        _PUBLISHED_MAX,
};
int read_small(int dir_fd, const char *path, char *buffer, size_t size); /* NUL-terminated; returns the length */
int write_kernel_file(int dir_fd, const char *path, const char *text);
int write_over(const char *path, const void *data, size_t size, mode_t mode);
int write_published(enum published_file file, const char *text);
int make_published_dir(void);
bool file_exists(const char *path);

/* boot.c */
void boot(void);

/* main.c */
void source_watch(struct source *s, int loop, uint32_t events); /* moves it; events 0: only errors */
void source_drop(struct source *s);
extern int work_loop, output_loop;
void work_suspend(bool suspend);
void do_chores(void);

/* port.c */
enum priority { NOW, IN_ORDER }; /* in order: behind the data that is queued already */
struct agent_buffer *port_queue(enum priority p);
bool port_is_congested(void);
bool port_is_waiting(void); /* frames are ready to leave */
void port_seal(bool seal);  /* what is queued from now on stays until unsealed */
void port_clear(bool connection_lost);
void port_setup(int outer_loop);
bool port_read(void);     /* true: there may be more */
uint64_t port_tick(void); /* as commands_tick() */
void port_flush(void);
void port_fail(uint32_t stream, int error, const char *format, ...) _printf_(3, 4);

/* session.c: what the host may say when */
void session_frame(const struct agent_header *h, const uint8_t *payload);
void session_lost(void);

/* cgroup.c */
int cgroup_setup(void);
int cgroup_take(uint64_t *ret_number, int *ret_fd); /* a fresh one for a command */
void cgroup_prepare(void);                          /* one ahead, for the next */
int cgroup_remove(uint64_t number);
int cgroup_kill(int fd);
int cgroup_signal(int fd, int signal);
unsigned cgroup_count(int fd);
bool cgroup_is_populated(int fd);
void cgroup_usage(int fd, uint64_t *ret_cpu_usec, uint64_t *ret_memory_peak);
int cgroup_freeze(bool freeze);
int cgroup_limit(uint64_t memory_max);
int cgroup_make_helper(int *ret_fd);

/* user.c */
#define USER_GROUPS_MAX 1024
struct user {
        uid_t uid;
        gid_t gid;
        gid_t groups[USER_GROUPS_MAX]; /* gid among them */
        size_t n_groups;
        char name[64], home[1024], shell[1024];
};
int user_find(const char *name_or_uid, const struct user **ret); /* valid until the next call */

/* spawn.c */
struct spawn {
        const struct agent_exec *exec;
        const struct user *user;
        int cgroup_fd, stdin_fd, stdout_fd, stderr_fd, report_fd;
};
struct spawn_failure { /* what a child writes to report_fd when it can't become the command */
        int error;
        char message[252];
};
pid_t spawn(const struct spawn *s);
int run_helper(const char *const *argv, uint64_t limit_usec); /* waits for it; exit status or negative errno */

/* command.c */
void command_exec(uint32_t stream, const struct agent_exec *exec);
/* -ENOENT: no such stream (it may just have ended); -EPROTO: the host broke the rules */
int command_data(uint32_t stream, const uint8_t *data, size_t size);
int command_eof(uint32_t stream);
int command_close(uint32_t stream, unsigned channel);
int command_credit(uint32_t stream, unsigned channel, uint32_t bytes);
void command_signal(uint32_t stream, int signal, uint32_t flags);
void commands_detach(void); /* their host is gone: run on, output to nowhere */
void commands_reap(void);
uint64_t commands_tick(void);   /* returns when to be called next, USEC_INFINITY: not needed */
void commands_sweep(bool idle); /* frees what ended; not from within a source's callback */

/* setup.c */
void setup_perform(const struct agent_setup *m, struct agent_receipt *ret, char *message, size_t size);

/* identity.c, network.c, disk.c: negative errno, and a sentence in message */
int identity_renew(const struct agent_setup *m, char *message, size_t size);
void identity_renew_later(void); /* what isn't worth a restore's time */
int network_renew(const struct agent_setup *m, char *message, size_t size);
int network_loopback_up(void);
int disk_grow(uint64_t size, char *message, size_t message_size);
