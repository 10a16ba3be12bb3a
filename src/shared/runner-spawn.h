/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Starts sandbox-runner in fresh pid, ipc and uts namespaces, as their first process: whoever kills it kills all of
 * the sandbox. It does nothing until it is told "start" over the socket that it inherits. */

#include "util.h"

/* program: absolute path of sandbox-runner. listen_fd: from control_listen(); stays the caller's. The child gets
 * nothing else of this process but stderr. Returns 0, or a negative errno with nothing started. */
int runner_spawn(const char *program, const char *id, int listen_fd, pid_t *ret_pid, int *ret_pidfd);
