/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* From the agent to a command: the child is born in its cgroup and becomes what EXEC asked for, or says what failed.
 */

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "agent.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* From the kernel's interface; musl has no headers of Linux. */
struct clone_args_v2 {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size,
                cgroup;
};
#define CLONE_INTO_CGROUP_ 0x200000000ULL
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define CLOSE_RANGE_CLOEXEC_ 4U

static pid_t clone_into(int cgroup) {
        struct clone_args_v2 args = {
                .flags = CLONE_INTO_CGROUP_,
                .exit_signal = SIGCHLD,
                .cgroup = (uint64_t) cgroup,
        };
        long r = syscall(SYS_clone3, &args, sizeof(args));

        return r < 0 ? -errno : (pid_t) r;
}

_Noreturn static void fail(int report_fd, int error, const char *format, ...) {
        struct spawn_failure f = { .error = error };
        va_list ap;

        va_start(ap, format);
        vsnprintf(f.message, sizeof(f.message), format, ap);
        va_end(ap);
        /* One write of less than PIPE_BUF: it arrives whole. */
        (void) !write(report_fd, &f, sizeof(f));
        _exit(127);
}

static char **copy_strings(struct agent_strings strings, size_t extra) {
        char **list = calloc((size_t) strings.count + extra + 1, sizeof(char *));
        struct agent_string s;
        size_t n = 0;

        while (list && agent_strings_next(&strings, &s) > 0)
                list[n++] = (char *) s.text;
        return list;
}

static const char *find_variable(char **environment, const char *name) {
        size_t n = strlen(name);

        for (char **e = environment; *e; e++)
                if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
                        return *e + n + 1;
        return NULL;
}

static char **make_environment(const struct agent_exec *exec, const struct user *who, int report_fd) {
        const char *const defaults[][2] = {
                { "PATH", PATH_DEFAULT }, { "HOME", who->home },   { "USER", who->name },
                { "LOGNAME", who->name }, { "SHELL", who->shell }, { "LANG", "C.UTF-8" },
        };
        char **environment = copy_strings(exec->environment, ELEMENTSOF(defaults));

        if (!environment)
                fail(report_fd, ENOMEM, "no memory for the environment");
        size_t n = 0;
        for (; environment[n]; n++)
                if (environment[n][0] == '=' || !strchr(environment[n], '='))
                        fail(report_fd, EINVAL, "not an environment variable: %s", environment[n]);
        for (size_t i = 0; i < ELEMENTSOF(defaults); i++) {
                if (find_variable(environment, defaults[i][0]))
                        continue;
                if (asprintf(&environment[n], "%s=%s", defaults[i][0], defaults[i][1]) < 0)
                        fail(report_fd, ENOMEM, "no memory for the environment");
                n++;
        }
        return environment;
}

static void become_user(const struct user *who, const char *directory, int report_fd) {
        if (setgroups(who->n_groups, who->groups) < 0 || setresgid(who->gid, who->gid, who->gid) < 0 ||
            setresuid(who->uid, who->uid, who->uid) < 0)
                fail(report_fd, errno, "cannot become user %s: %s", who->name, strerror(errno));

        if (!isempty(directory)) {
                if (chdir(directory) < 0)
                        fail(report_fd, errno, "directory %s: %s", directory, strerror(errno));
        } else if (chdir(who->home) < 0 && chdir("/") < 0) /* as login does for a user without a home */
                fail(report_fd, errno, "directory /: %s", strerror(errno));
}

/* As execvp(), with the PATH of the command. Returns the errno that says most. */
static int exec_by_path(char **argv, char **environment) {
        const char *path = find_variable(environment, "PATH");
        int error = ENOENT;
        struct stat st;

        if (strchr(argv[0], '/')) {
                execve(argv[0], argv, environment);
                return errno;
        }
        while (path && argv[0][0]) {
                char file[PATH_MAX];
                size_t n = strcspn(path, ":");

                if (snprintf(file, sizeof(file), "%.*s/%s", n ? (int) n : 1, n ? path : ".", argv[0]) <
                    (int) sizeof(file)) {
                        execve(file, argv, environment);
                        /* A file that is there but can't be run is worth telling; go on looking all the same. */
                        if (errno == EACCES && stat(file, &st) >= 0)
                                error = EACCES;
                        else if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                                return errno;
                }
                path = path[n] ? path + n + 1 : NULL;
        }
        return error;
}

/* The state of a fresh process, whatever PID 1 looks like. */
static void reset_process(int stdin_fd, int stdout_fd, int stderr_fd) {
        static const struct rlimit files = { 1024, 524288 };

        (void) setsid();
        for (int i = 1; i <= 64; i++)
                (void) signal(i, SIG_DFL);
        (void) setrlimit(RLIMIT_NOFILE, &files);
        if (stdin_fd < 0)
                stdin_fd = open("/dev/null", O_RDONLY | O_CLOEXEC | O_NOCTTY);
        (void) dup2(stdin_fd, STDIN_FILENO);
        (void) dup2(stdout_fd, STDOUT_FILENO);
        (void) dup2(stderr_fd, STDERR_FILENO);
        (void) syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC_);
}

static void unblock_signals(void) {
        sigset_t none;

        /* What was sent since the birth arrives here, and ends the child as it would have ended the command. */
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
}

_Noreturn static void child(const struct spawn *s) {
        int r;

        reset_process(s->stdin_fd, s->stdout_fd, s->stderr_fd);

        char **environment = make_environment(s->exec, s->user, s->report_fd);
        char **argv = copy_strings(s->exec->argv, 0);
        if (!argv)
                fail(s->report_fd, ENOMEM, "no memory for the arguments");

        become_user(s->user, s->exec->directory.text, s->report_fd);
        unblock_signals();
        r = exec_by_path(argv, environment);
        if (r == ENOENT)
                fail(s->report_fd, r, "%s: not found", argv[0]);
        fail(s->report_fd, r, "%s: %s", argv[0], strerror(r));
}

pid_t spawn(const struct spawn *s) {
        pid_t pid = clone_into(s->cgroup_fd);

        if (pid == 0)
                child(s);
        return pid;
}

static int wait_until(pid_t pid, uint64_t deadline) {
        int status;

        for (;;) {
                pid_t p = waitpid(pid, &status, WNOHANG);
                if (p < 0)
                        return -errno;
                if (p == pid)
                        return WIFEXITED(status) ? WEXITSTATUS(status) : -EPIPE;
                if (now_usec() >= deadline)
                        return -ETIMEDOUT;
                nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
        }
}

/* A program of the guest's, run during SETUP: in a cgroup of its own, of which nothing is left when this returns. */
int run_helper(const char *const *argv, uint64_t limit_usec) {
        static const char *const environment[] = { "PATH=" PATH_DEFAULT, "HOME=/root", "LANG=C.UTF-8", NULL };
        _cleanup_close_ int cgroup = -1;
        int r, null;

        r = cgroup_make_helper(&cgroup);
        if (r < 0)
                return r;

        pid_t pid = clone_into(cgroup);
        if (pid < 0)
                return pid;
        if (pid == 0) {
                null = open("/dev/null", O_RDWR | O_CLOEXEC | O_NOCTTY);
                reset_process(null, null, null);
                unblock_signals();
                execve(argv[0], (char *const *) argv, (char *const *) environment);
                _exit(127);
        }
        r = wait_until(pid, now_usec() + limit_usec);
        (void) cgroup_kill(cgroup);
        if (r == -ETIMEDOUT)
                (void) waitpid(pid, NULL, 0);
        return r;
}
