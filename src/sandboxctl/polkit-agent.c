/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "polkit-agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define AGENT_TIMEOUT_MSEC 5000

struct polkit_agent {
        pid_t pid;
};

/* In the child; doesn't return. */
static void agent_exec(pid_t parent, int notify_fd) {
        char fd[16];
        sigset_t none;

        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        /* Never outlive the one whose requests it answers. */
        if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent || fcntl(notify_fd, F_SETFD, 0) < 0)
                _exit(EXIT_FAILURE);
        /* Its prompt belongs on the terminal, and the command's output to whoever reads that. */
        dup2(STDERR_FILENO, STDOUT_FILENO);
        snprintf(fd, sizeof(fd), "%d", notify_fd);
        execlp("pkttyagent", "pkttyagent", "--notify-fd", fd, "--fallback", NULL);
        _exit(EXIT_FAILURE);
}

int polkit_agent_start(struct polkit_agent **ret) {
        _cleanup_close_ int reader = -1, writer = -1;
        struct polkit_agent *a;
        pid_t parent = getpid();
        int fds[2];

        *ret = NULL;
        if (geteuid() == 0 || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
                return 0;
        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        reader = fds[0];
        writer = fds[1];
        a = malloc(sizeof(*a));
        if (!a)
                return -ENOMEM;
        a->pid = fork();
        if (a->pid < 0) {
                free(a);
                return -errno;
        }
        if (a->pid == 0)
                agent_exec(parent, writer);
        writer = close_fd(writer);
        /* Its end closes when it has registered with polkit, or can't; asking before would be refused at once. */
        (void) poll(&(struct pollfd){ .fd = reader, .events = POLLIN }, 1, AGENT_TIMEOUT_MSEC);
        *ret = a;
        return 0;
}

struct polkit_agent *polkit_agent_stop(struct polkit_agent *a) {
        if (!a)
                return NULL;
        kill(a->pid, SIGTERM);
        kill(a->pid, SIGCONT); /* it may have been stopped for reading the terminal from the background */
        while (waitpid(a->pid, NULL, 0) < 0 && errno == EINTR)
                ;
        free(a);
        return NULL;
}
