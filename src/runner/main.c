/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* sandbox-runner: the first process of a sandbox's pid namespace. See runner.h for its parts, and control.h for what
 * it does. */

#include <fcntl.h>
#include <stdio.h>

#include "log.h"
#include "runner.h"

static const char *parse_id(int argc, char **argv) {
        static const char option[] = "--id=";

        if (argc != 2 || strncmp(argv[1], option, strlen(option)) != 0 || !id_is_valid(argv[1] + strlen(option)))
                return NULL;
        return argv[1] + strlen(option);
}

int main(int argc, char **argv) {
        _cleanup_(runner_freep) Runner *r = NULL;
        const char *id = parse_id(argc, argv);
        int error;

        log_setup("sandbox-runner");
        if (!id) {
                fprintf(stderr, "Usage: sandbox-runner --id=ID\n\nsandboxd starts it; see sandboxd(8).\n");
                return CONTROL_EXIT_FAILURE;
        }
        if (getpid() != 1) {
                log_error("This has to be the first process of a pid namespace.");
                return CONTROL_EXIT_FAILURE;
        }
        if (fcntl(CONTROL_LISTEN_FD, F_SETFD, FD_CLOEXEC) < 0) {
                log_error_errno(-errno, "There is no listening socket");
                return CONTROL_EXIT_FAILURE;
        }
        error = runner_new(id, CONTROL_LISTEN_FD, &r);
        if (error >= 0)
                error = runner_loop(r);
        if (error < 0) {
                log_error_errno(error, "Can't run");
                return CONTROL_EXIT_FAILURE;
        }
        return error;
}
