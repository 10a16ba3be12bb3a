/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "streams.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "ctl.h"

static bool is_null_device(const struct stat *st) {
        return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

static bool can_be_given(const struct stat *st) {
        return S_ISFIFO(st->st_mode) || S_ISSOCK(st->st_mode) || S_ISREG(st->st_mode) || is_null_device(st);
}

static bool has_access(int fd, int other_way_only) {
        int flags = fcntl(fd, F_GETFL);

        return flags >= 0 && (flags & O_ACCMODE) != other_way_only && !(flags & O_PATH);
}

/* A terminal of our own description: whether it blocks isn't shared with the shell and others that have it open. Where
 * it can't be opened again (after su, say), the shared one must do, and a stopped terminal stops us. */
static int open_sink(int fd) {
        char path[32];
        int sink;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        sink = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (sink < 0)
                sink = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        return sink < 0 ? -errno : sink;
}

static void on_input_end(struct pump *p, int error, void *userdata) {
        /* A command that reads no further is no failure. */
        if (error < 0 && error != -EPIPE)
                complain("Failed to read standard input: %s", strerror(-error));
}

static void on_output_end(struct pump *p, int error, void *userdata) {
        if (error < 0 && error != -EIO) /* EIO: the terminal was closed; who would read it? */
                complain("Failed to write output: %s", strerror(-error));
}

static int add_pump(struct streams *s, sd_event *event, int fd) {
        bool input = fd == STDIN_FILENO;
        int pipe_fds[2], ours, r;

        if (pipe2(pipe_fds, O_CLOEXEC) < 0)
                return -errno;
        /* Only our end: the service decides about its own. */
        ours = pipe_fds[input ? 1 : 0];
        s->given[fd] = pipe_fds[input ? 0 : 1];
        r = fcntl(ours, F_SETFL, O_NONBLOCK) < 0 ? -errno : input ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : open_sink(fd);
        if (r < 0) {
                close_fd(ours);
                return r;
        }
        if (input)
                return pump_new(event, r, ours, on_input_end, s, &s->pumps[fd]);
        return pump_new(event, ours, r, on_output_end, s, &s->pumps[fd]);
}

static int open_input(struct streams *s, sd_event *event) {
        struct stat st;

        if (fstat(STDIN_FILENO, &st) < 0 || !has_access(STDIN_FILENO, O_WRONLY) || is_null_device(&st))
                return 0;
        if (!can_be_given(&st))
                return add_pump(s, event, STDIN_FILENO);
        s->given[STDIN_FILENO] = STDIN_FILENO;
        return 0;
}

static int open_output(struct streams *s, sd_event *event, int fd) {
        struct stat st, first;

        if (fstat(fd, &st) < 0 || !has_access(fd, O_RDONLY))
                return 0;
        if (can_be_given(&st)) {
                s->given[fd] = fd;
                return 0;
        }
        /* Both on one terminal: through one pipe, they stay in the order in which they came from the guest. */
        if (fd == STDERR_FILENO && s->pumps[STDOUT_FILENO] && fstat(STDOUT_FILENO, &first) >= 0 &&
            first.st_dev == st.st_dev && first.st_ino == st.st_ino) {
                s->given[fd] = s->given[STDOUT_FILENO];
                return 0;
        }
        return add_pump(s, event, fd);
}

int streams_open(struct streams *s, sd_event *event, bool input) {
        int r;

        *s = (struct streams){ .given = { -1, -1, -1 } };
        r = input ? open_input(s, event) : 0;
        for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && r >= 0; fd++)
                r = open_output(s, event, fd);
        return r;
}

void streams_close_given(struct streams *s) {
        for (int i = 0; i < 3; i++) {
                if (s->pumps[i])
                        close_fd(s->given[i]);
                s->given[i] = -1;
        }
}

void streams_done(struct streams *s) {
        streams_close_given(s);
        for (int i = 0; i < 3; i++)
                s->pumps[i] = pump_free(s->pumps[i]);
}

int streams_append(const struct streams *s, sd_bus_message *m) {
        static const char *const options[] = { "StandardInput", "StandardOutput", "StandardError" };
        int r = 0;

        for (int i = 0; i < 3 && r >= 0; i++)
                if (s->given[i] >= 0)
                        r = sd_bus_message_append(m, "{sv}", options[i], "h", s->given[i]);
        return r;
}

void streams_finish(struct streams *s) {
        for (int i = STDOUT_FILENO; i <= STDERR_FILENO; i++)
                if (s->pumps[i])
                        pump_finish(s->pumps[i]);
}

bool streams_delivered(const struct streams *s) {
        for (int i = STDOUT_FILENO; i <= STDERR_FILENO; i++)
                if (s->pumps[i] && !pump_ended(s->pumps[i]))
                        return false;
        return true;
}
