/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "process.h"

#include <ctype.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

/* How long a program may take to clean up after itself when it is asked to end. */
#define END_TIMEOUT_USEC (10 * USEC_PER_SEC)

extern char **environ;

int interrupt_open(void) {
        sigset_t mask;
        int fd;

        sigemptyset(&mask);
        sigaddset(&mask, SIGTERM);
        sigaddset(&mask, SIGINT);
        sigaddset(&mask, SIGHUP);
        if (sigprocmask(SIG_BLOCK, &mask, NULL) < 0)
                return -errno;
        fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
        return fd < 0 ? -errno : fd;
}

int interrupt_wait(int interrupt_fd, int fd, uint64_t until_usec) {
        for (;;) {
                struct pollfd p[] = { { .fd = interrupt_fd, .events = POLLIN }, { .fd = fd, .events = POLLIN } };
                uint64_t now = now_boottime_usec();
                int timeout = -1, n;

                if (until_usec != USEC_INFINITY)
                        timeout = until_usec <= now ? 0 : (int) MIN((until_usec - now) / USEC_PER_MSEC + 1, 3600000U);
                n = poll(p, ELEMENTSOF(p), timeout);
                if (n < 0 && errno != EINTR)
                        return -errno;
                if (n > 0 && p[0].revents)
                        return -ECANCELED;
                if (n > 0)
                        return 1;
                if (n == 0 && now_boottime_usec() >= until_usec)
                        return 0;
        }
}

char *text_tail(char *text, size_t max) {
        size_t n = strlen(text);
        char *start = text;

        while (n > 0 && isspace((unsigned char) text[n - 1]))
                text[--n] = 0;
        if (n > max) {
                char *newline;

                start = text + n - max;
                newline = strchr(start, '\n');
                start = newline ? newline + 1 : start;
        }
        while (isspace((unsigned char) *start))
                start++;
        for (char *p = start; *p; p++)
                if ((unsigned char) *p < 32 && *p != '\n')
                        *p = ' ';
        return memmove(text, start, strlen(start) + 1);
}

/* Keeps the end of what was written. */
struct tail {
        char data[2 * PROCESS_TAIL_SIZE];
        size_t size;
};

/* Returns 1, 0 at the end, or an error. */
static int tail_read(struct tail *t, int fd) {
        ssize_t n;

        if (t->size > PROCESS_TAIL_SIZE) {
                memmove(t->data, t->data + t->size - PROCESS_TAIL_SIZE, PROCESS_TAIL_SIZE);
                t->size = PROCESS_TAIL_SIZE;
        }
        n = read(fd, t->data + t->size, sizeof(t->data) - t->size);
        if (n < 0)
                return errno == EINTR ? 1 : -errno;
        t->size += (size_t) n;
        return n > 0;
}

static int tail_take(const struct tail *t, char **ret) {
        char *text = strndup(t->data, t->size);

        if (!text)
                return -ENOMEM;
        *ret = text_tail(text, PROCESS_TAIL_SIZE);
        return 0;
}

static int spawn(char *const *argv, int output_fd, pid_t *ret) {
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t none;
        int r;

        sigemptyset(&none);
        r = posix_spawn_file_actions_init(&actions);
        if (r != 0)
                return -r;
        r = posix_spawnattr_init(&attributes);
        if (r != 0) {
                posix_spawn_file_actions_destroy(&actions);
                return -r;
        }
        (void) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
        (void) posix_spawnattr_setsigmask(&attributes, &none);
        r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, output_fd, STDERR_FILENO);
        if (r == 0)
                r = posix_spawnp(ret, argv[0], &actions, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&actions);
        return -r;
}

/* The group gets a chance to take its mounts and files back before it is killed. Its leader stays unreaped until the
 * end, so that the group's number can't be another's. */
static void end_group(pid_t pid) {
        uint64_t until = now_boottime_usec() + END_TIMEOUT_USEC;
        siginfo_t info = {};

        (void) kill(-pid, SIGTERM);
        while (now_boottime_usec() < until) {
                if (waitid(P_PID, (id_t) pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == pid)
                        break;
                (void) usleep(20000);
        }
        (void) kill(-pid, SIGKILL);
}

static int reap(pid_t pid) {
        int status;

        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;
        return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPROTO;
}

int process_run(int interrupt_fd, char *const *argv, uint64_t timeout_usec, char **ret_tail) {
        uint64_t until = timeout_usec == USEC_INFINITY ? USEC_INFINITY : now_boottime_usec() + timeout_usec;
        _cleanup_close_ int read_fd = -1, write_fd = -1;
        struct tail tail = {};
        int fds[2], r, k;
        pid_t pid;

        *ret_tail = NULL;
        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        read_fd = fds[0];
        write_fd = fds[1];
        r = spawn(argv, write_fd, &pid);
        if (r < 0)
                return r;
        write_fd = close_fd(write_fd);
        do {
                r = interrupt_wait(interrupt_fd, read_fd, until);
                if (r == 0)
                        r = -ETIMEDOUT;
                if (r > 0)
                        r = tail_read(&tail, read_fd);
        } while (r > 0);
        if (r < 0)
                end_group(pid);
        k = reap(pid);
        if (tail_take(&tail, ret_tail) < 0 && r >= 0)
                r = -ENOMEM;
        return r < 0 ? r : k;
}
