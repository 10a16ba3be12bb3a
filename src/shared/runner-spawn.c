/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The child is a copy of a privileged daemon, so between clone and execve it only makes plain system calls, on memory
 * that was prepared before. CLONE_VFORK holds the parent until the child has become another program or failed: the
 * answer is then in the pipe, and nobody waits for it. */

#include "runner-spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "control.h"

/* The exit status of a child that could not become the runner. */
#define EXIT_SPAWN 127

struct spawn {
        const char *program;
        char *const *argv;
        char *const *environment;
        int listen_fd;
        int report_fd; /* an errno comes out of it if execve was not reached */
};

/* Handlers and the mask are the daemon's; a program expects neither. */
static void reset_signals(void) {
        sigset_t none;

        for (int s = 1; s < NSIG; s++)
                if (s != SIGKILL && s != SIGSTOP)
                        (void) signal(s, SIG_DFL);
        sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Leaves stderr, the listening socket at its place and the report pipe behind it, which closes on exec. Either may sit
 * on a number that is needed, so both go above all of those first. */
static int arrange_fds(struct spawn *s) {
        int null, listen_fd, report_fd;

        report_fd = fcntl(s->report_fd, F_DUPFD_CLOEXEC, CONTROL_LISTEN_FD + 2);
        if (report_fd < 0)
                return -errno;
        s->report_fd = report_fd;
        listen_fd = fcntl(s->listen_fd, F_DUPFD_CLOEXEC, CONTROL_LISTEN_FD + 2);
        null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (listen_fd < 0 || null < 0)
                return -errno;
        if (dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0)
                return -errno;
        if (dup2(listen_fd, CONTROL_LISTEN_FD) < 0 || dup3(report_fd, CONTROL_LISTEN_FD + 1, O_CLOEXEC) < 0)
                return -errno;
        s->report_fd = CONTROL_LISTEN_FD + 1;
        if (close_range(CONTROL_LISTEN_FD + 2, ~0U, 0) < 0)
                return -errno;
        return 0;
}

__attribute__((noreturn)) static void child(struct spawn *s) {
        int r;

        reset_signals();
        r = setsid() < 0 ? -errno : 0;
        if (r >= 0)
                r = arrange_fds(s);
        if (r >= 0) {
                (void) umask(077);
                execve(s->program, s->argv, s->environment);
                r = -errno;
        }
        (void) !write(s->report_fd, &r, sizeof(r));
        _exit(EXIT_SPAWN);
}

static void reap(pid_t pid) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
}

int runner_spawn(const char *program, const char *id, int listen_fd, pid_t *ret_pid, int *ret_pidfd) {
        _cleanup_close_ int read_fd = -1, write_fd = -1;
        _cleanup_free_ char *option = NULL;
        int pidfd = -1, error, pipe_fds[2];
        long pid;

        if (asprintf(&option, "--id=%s", id) < 0)
                return -ENOMEM;
        if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
                return -errno;
        read_fd = pipe_fds[0];
        write_fd = pipe_fds[1];

        struct spawn s = {
                .program = program,
                .argv = (char *[]){ (char *) "sandbox-runner", option, NULL },
                .environment =
                        (char *[]){ (char *) "PATH=/usr/sbin:/usr/bin:/sbin:/bin", (char *) "LANG=C.UTF-8", NULL },
                .listen_fd = listen_fd,
                .report_fd = write_fd,
        };
        /* The old call takes all that is needed, and there are kernels without clone3(). */
        pid = syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD | CLONE_VFORK | SIGCHLD,
                      NULL, &pidfd, NULL, 0UL);
        if (pid < 0)
                return -errno;
        if (pid == 0)
                child(&s);

        if (read(read_fd, &error, sizeof(error)) == (ssize_t) sizeof(error)) {
                close_fd(pidfd);
                reap((pid_t) pid);
                return error;
        }
        *ret_pid = (pid_t) pid;
        *ret_pidfd = pidfd;
        return 0;
}
