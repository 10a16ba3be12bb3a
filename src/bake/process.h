/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Programs that a bake runs on the host, and what every wait of it has in common: it ends at once when the bake is
 * asked to end. The bake is one sequence of steps, so waiting is all that it does between them. */

#include "util.h"

#define PROCESS_TAIL_SIZE 4096U

/* Blocks the signals that end a bake and returns a descriptor that becomes readable with one. */
int interrupt_open(void);

/* Waits until fd is readable (fd -1: never). Returns 1, 0 when until_usec (CLOCK_BOOTTIME, USEC_INFINITY: none) has
 * passed, or -ECANCELED after a signal. */
int interrupt_wait(int interrupt_fd, int fd, uint64_t until_usec);

/* Runs argv (found in PATH), with /dev/null as stdin, in a process group of its own, and waits for it. *ret_tail: the
 * end of its stdout and stderr, at most PROCESS_TAIL_SIZE, when it started. Returns 0; -ENOENT: there is no such
 * program; -EPROTO: it failed; -ETIMEDOUT; -ECANCELED; the group has been ended then. */
int process_run(int interrupt_fd, char *const *argv, uint64_t timeout_usec, char **ret_tail);

/* The last lines of a text, without what the terminal would do with control characters; at most max bytes. In place.
 */
char *text_tail(char *text, size_t max);
