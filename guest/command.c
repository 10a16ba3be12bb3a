/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Commands from EXEC to EXITED, and what they leave behind.
 *
 * A command is over when its leader has exited and what was in its pipes then has been sent. Its cgroup, and the read
 * ends of its pipes, stay as long as other processes of its tree run. Nothing is freed but in commands_sweep(). */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "command.h"

#define PIPE_BYTES (256 * 1024)
#define KEPT_MAX (2 * AGENT_COMMANDS_MAX) /* commands with those that only left processes behind */
#define SETTLE_USEC (500 * USEC_PER_MSEC)
#define SETTLE_STEP_USEC (2 * USEC_PER_MSEC)
#define SWEEP_ANYWAY 64 /* without waiting for an idle moment */

static struct command *commands;
static unsigned sweep_wanted; /* roughly how many have ended since the last sweep */

static struct command *find_stream(uint32_t stream) {
        for (struct command *c = commands; c; c = c->next)
                if (c->stream == stream && !c->over)
                        return c;
        return NULL;
}

static void close_all(struct command *c) {
        source_drop(&c->report);
        c->report.fd = close_fd(c->report.fd);
        input_close(&c->input);
        for (size_t i = 0; i < ELEMENTSOF(c->outputs); i++)
                output_close(&c->outputs[i]);
}

static void command_over(struct command *c) {
        c->over = true;
        c->stream = 0;
        input_close(&c->input);
        sweep_wanted++;
}

/* ---- the end ---- */

static void command_report_exit(struct command *c) {
        struct agent_exited m = {
                .kind = c->timed_out             ? AGENT_EXIT_TIMEOUT
                        : WIFSIGNALED(c->status) ? AGENT_EXIT_SIGNAL
                                                 : AGENT_EXIT_CODE,
                .status = (uint32_t) (WIFSIGNALED(c->status) ? WTERMSIG(c->status) : WEXITSTATUS(c->status)),
                .leftovers = cgroup_count(c->cgroup_fd),
        };

        if (c->timed_out)
                m.status = SIGKILL;
        cgroup_usage(c->cgroup_fd, &m.cpu_usec, &m.memory_peak);
        (void) agent_put_exited(port_queue(IN_ORDER), c->stream, &m);
}

/* A killed tree has a moment to vanish, so that the next command doesn't find its processes. */
static bool command_is_settled(const struct command *c) {
        return !c->killed || now_usec() >= c->settle_by || !cgroup_is_populated(c->cgroup_fd);
}

static void command_maybe_over(struct command *c) {
        if (c->over || COMMAND_IS_DETACHED(c) || c->pid > 0 || !c->outputs[0].ended || !c->outputs[1].ended)
                return;
        if (!command_is_settled(c))
                return; /* commands_tick() comes back */
        command_report_exit(c);
        command_over(c);
}

void command_output_ended(struct command *c) {
        command_maybe_over(c);
}

/* execve has happened, or the child has said why not. */
static void report_ready(struct source *s, uint32_t events _unused_) {
        struct command *c = (struct command *) ((char *) s - offsetof(struct command, report));
        struct spawn_failure failure;
        ssize_t n = read(s->fd, &failure, sizeof(failure));

        if (n < 0 && errno == EAGAIN)
                return;
        source_drop(s);
        s->fd = close_fd(s->fd);
        if (n == sizeof(failure)) {
                failure.message[sizeof(failure.message) - 1] = 0;
                if (!COMMAND_IS_DETACHED(c))
                        (void) agent_put_status(port_queue(NOW), AGENT_EXEC_FAILED, c->stream,
                                                (uint32_t) failure.error, failure.message);
                return command_over(c);
        }

        c->started = true;
        if (!COMMAND_IS_DETACHED(c))
                (void) agent_put_started(port_queue(NOW), c->stream, (uint32_t) c->pid);
        for (size_t i = 0; i < ELEMENTSOF(c->outputs); i++)
                output_start(&c->outputs[i]);
}

static void command_exited(struct command *c, int status) {
        /* The report is decided by now: its other end went with the process. */
        if (c->report.fd >= 0)
                report_ready(&c->report, EPOLLIN);
        c->pid = 0;
        c->status = status;
        sweep_wanted++;
        if (c->over)
                return;
        if (COMMAND_IS_DETACHED(c))
                return command_over(c); /* what its tree still writes goes on being dropped */
        if (c->killed)
                c->settle_by = now_usec() + SETTLE_USEC;
        input_close(&c->input);
        for (size_t i = 0; i < ELEMENTSOF(c->outputs); i++)
                output_drain(&c->outputs[i]);
        command_maybe_over(c);
}

void commands_reap(void) {
        int status;
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
                struct command *c = commands;

                while (c && c->pid != pid)
                        c = c->next;
                if (c)
                        command_exited(c, status);
                else
                        sweep_wanted++; /* an orphan: it may have been the last of a tree */
        }
}

void commands_sweep(bool idle) {
        if (sweep_wanted < (idle ? 1 : SWEEP_ANYWAY))
                return;
        sweep_wanted = 0;

        for (struct command **p = &commands; *p;) {
                struct command *c = *p;

                if (!c->over || c->pid > 0 || cgroup_is_populated(c->cgroup_fd) || cgroup_remove(c->number) < 0) {
                        p = &c->next;
                        continue;
                }
                *p = c->next;
                close_all(c);
                close_fd(c->cgroup_fd);
                free(c);
        }
}

static void command_kill_tree(struct command *c) {
        (void) cgroup_kill(c->cgroup_fd);
        /* In case that it has moved itself elsewhere, as root can. */
        if (c->pid > 0)
                (void) kill(c->pid, SIGKILL);
        c->killed = true;
}

uint64_t commands_tick(void) {
        uint64_t now = now_usec(), next = USEC_INFINITY;

        for (struct command *c = commands; c; c = c->next) {
                if (c->over)
                        continue;
                if (c->pid > 0 && !c->timed_out) {
                        if (now >= c->deadline) {
                                c->timed_out = true;
                                command_kill_tree(c);
                        } else
                                next = MIN(next, c->deadline);
                } else if (c->pid == 0 && c->killed && c->outputs[0].ended && c->outputs[1].ended) {
                        command_maybe_over(c);
                        if (!c->over)
                                next = MIN(next, now + SETTLE_STEP_USEC);
                }
        }
        return next;
}

/* ---- the beginning ---- */

/* Our end doesn't block; the command's does, as it expects. */
static int make_pipe(int *ret_ours, int *ret_theirs, bool we_write) {
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        *ret_ours = fds[we_write];
        *ret_theirs = fds[!we_write];
        (void) fcntl(*ret_ours, F_SETFL, O_NONBLOCK);
        (void) fcntl(*ret_ours, F_SETPIPE_SZ, PIPE_BYTES);
        return 0;
}

static int command_new(struct command **ret) {
        unsigned live = 0, kept = 0;

        for (struct command *c = commands; c; c = c->next) {
                live += !c->over;
                kept++;
        }
        if (live >= AGENT_COMMANDS_MAX || kept >= KEPT_MAX)
                return -EAGAIN;

        struct command *c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        *c = (struct command){
                .cgroup_fd = -1,
                .deadline = USEC_INFINITY,
                .report = { .fd = -1, .loop = -1, .ready = report_ready },
        };
        input_init(&c->input, c, -1);
        output_init(&c->outputs[0], c, AGENT_STDOUT, -1);
        output_init(&c->outputs[1], c, AGENT_STDERR, -1);
        *ret = c;
        return 0;
}

static int command_start(struct command *c, const struct agent_exec *exec, const struct user *user) {
        _cleanup_close_ int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1, report_fd = -1;
        int r, input_fd = -1;

        r = cgroup_take(&c->number, &c->cgroup_fd);
        if (r < 0)
                return r;
        if (exec->flags & AGENT_EXEC_STDIN) {
                r = make_pipe(&input_fd, &stdin_fd, true);
                if (r < 0)
                        return r;
                input_init(&c->input, c, input_fd);
        }
        r = make_pipe(&c->outputs[0].source.fd, &stdout_fd, false);
        if (r >= 0)
                r = make_pipe(&c->outputs[1].source.fd, &stderr_fd, false);
        if (r >= 0)
                r = make_pipe(&c->report.fd, &report_fd, false);
        if (r < 0)
                return r;

        c->pid = spawn(&(struct spawn){
                .exec = exec,
                .user = user,
                .cgroup_fd = c->cgroup_fd,
                .stdin_fd = stdin_fd,
                .stdout_fd = stdout_fd,
                .stderr_fd = stderr_fd,
                .report_fd = report_fd,
        });
        if (c->pid < 0) {
                r = c->pid;
                c->pid = 0;
                return r;
        }
        source_watch(&c->report, work_loop, EPOLLIN);
        return 0;
}

void command_exec(uint32_t stream, const struct agent_exec *exec) {
        const struct user *user;
        char message[200];
        struct command *c;
        int r;

        if (find_stream(stream))
                return port_fail(stream, EPROTO, "stream %u is in use", stream);
        r = user_find(exec->user.text, &user);
        if (r < 0) {
                if (r == -ENOENT)
                        snprintf(message, sizeof(message), "no such user: %s", exec->user.text);
                else
                        snprintf(message, sizeof(message), "cannot read the users of this machine: %s", strerror(-r));
                (void) agent_put_status(port_queue(NOW), AGENT_EXEC_FAILED, stream, (uint32_t) -r, message);
                return;
        }

        r = command_new(&c);
        if (r >= 0) {
                c->stream = stream;
                r = command_start(c, exec, user);
                if (r < 0) {
                        close_all(c);
                        if (c->cgroup_fd >= 0) {
                                close_fd(c->cgroup_fd);
                                (void) cgroup_remove(c->number);
                        }
                        free(c);
                }
        }
        if (r < 0) {
                snprintf(message, sizeof(message), "cannot start a process: %s",
                         r == -EAGAIN ? "too many commands run or have left processes behind" : strerror(-r));
                (void) agent_put_status(port_queue(NOW), AGENT_EXEC_FAILED, stream, (uint32_t) -r, message);
                return;
        }

        if (exec->timeout_usec > 0) {
                uint64_t now = now_usec();
                c->deadline = exec->timeout_usec > USEC_INFINITY - now ? USEC_INFINITY : now + exec->timeout_usec;
        }
        c->next = commands;
        commands = c;
}

/* ---- what the host says about a running one ---- */

int command_data(uint32_t stream, const uint8_t *data, size_t size) {
        struct command *c = find_stream(stream);
        return c && c->pid > 0 ? input_add(&c->input, data, size) : -ENOENT;
}

int command_eof(uint32_t stream) {
        struct command *c = find_stream(stream);

        if (!c || c->pid == 0)
                return -ENOENT;
        input_finish(&c->input);
        return 0;
}

int command_close(uint32_t stream, unsigned channel) {
        struct command *c = find_stream(stream);

        if (!c)
                return -ENOENT;
        /* The command's next write gets SIGPIPE, as at the end of a pipeline. */
        output_close(&c->outputs[channel - AGENT_STDOUT]);
        output_end(&c->outputs[channel - AGENT_STDOUT]);
        return 0;
}

int command_credit(uint32_t stream, unsigned channel, uint32_t bytes) {
        struct command *c = find_stream(stream);
        return c ? output_credit(&c->outputs[channel - AGENT_STDOUT], bytes) : -ENOENT;
}

static void signal_one(struct command *c, int signal, uint32_t flags) {
        if (signal == SIGKILL && (flags & AGENT_SIGNAL_TREE))
                command_kill_tree(c);
        else if (flags & AGENT_SIGNAL_TREE)
                (void) cgroup_signal(c->cgroup_fd, signal);
        else if (c->pid > 0)
                (void) kill(c->pid, signal);
}

void command_signal(uint32_t stream, int signal, uint32_t flags) {
        for (struct command *c = commands; c; c = c->next)
                if (!c->over && !COMMAND_IS_DETACHED(c) && (stream == 0 || c->stream == stream))
                        signal_one(c, signal, flags);
}

void commands_detach(void) {
        for (struct command *c = commands; c; c = c->next) {
                if (c->over || COMMAND_IS_DETACHED(c))
                        continue;
                c->stream = 0;
                input_close(&c->input);
                if (c->started)
                        for (size_t i = 0; i < ELEMENTSOF(c->outputs); i++)
                                output_start(&c->outputs[i]);
                if (c->pid == 0)
                        command_over(c);
        }
}
