/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The controller's side of the channel to a runner (see control.h), for a program that does one thing at a time. */

#include "control.h"

/* How a command in the guest ended. */
struct guest_exit {
        uint64_t process;
        char *result; /* "exited", "signaled", "timeout", "lost" */
        uint64_t status;
        char *output; /* what was kept of stdout, then of stderr; never NULL */
};

struct guest {
        int interrupt_fd; /* borrowed */
        int listen_fd, control_fd, pidfd;
        pid_t pid;
        char *path; /* of the socket; removed at the end, with its folder */
        uint64_t serial, process;
        struct guest_exit *exits; /* not asked for yet */
        size_t n_exits;
        char *ended; /* why the runner says that it ends, or NULL */
};

/* Starts a runner with its socket in /run/sandboxd/NAME/, and connects. */
int guest_new(int interrupt_fd, const char *program, const char *name, const char *id, struct guest **ret);
/* Kills it and all that it runs. */
struct guest *guest_free(struct guest *g);
DEFINE_CLEANUP(struct guest *, guest_free)

/* Sends a request (body is consumed) and waits for its reply. Returns 0, the reply's error, -ETIMEDOUT, -ECANCELED, or
 * -ECONNRESET when the runner is gone. *ret_message: what it said of the error, may be NULL. */
int guest_call(struct guest *g, json_t *body, const char *const *names, const int *fds, size_t n_fds,
               uint64_t timeout_usec, char **ret_message);

/* A command of a shell. guest_run() waits for its end (at most timeout_usec in the guest). */
struct guest_command {
        const char *text;
        const char *user, *directory; /* NULL: root, home */
        char *const *environment;
        uint64_t timeout_usec; /* 0: none */
};
int guest_start(struct guest *g, const struct guest_command *c, uint64_t *ret_process, char **ret_message);
int guest_run(struct guest *g, const struct guest_command *c, struct guest_exit *ret, char **ret_message);
void guest_exit_done(struct guest_exit *e);
/* Takes in what has arrived. Returns 1 when that process has ended, 0, or an error. */
int guest_has_ended(struct guest *g, uint64_t process, struct guest_exit *ret);
