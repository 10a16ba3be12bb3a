/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A client of QEMU's monitor protocol as a state machine without I/O: bytes go in, calls come out; commands go in,
 * bytes come out. QEMU is the side that a guest might have taken over, so every message is bounded and has to fit. */

#include <jansson.h>

#include "util.h"

#define QMP_MESSAGE_MAX (256U * 1024U)
#define QMP_PENDING_MAX 64U

typedef struct Qmp Qmp;

/* result: "return", or NULL with error, QEMU's sentence. Both are borrowed. */
typedef void (*qmp_reply_t)(json_t *result, const char *error, void *userdata);
/* name is "" for the greeting, once QEMU has come up. */
typedef void (*qmp_event_t)(const char *name, json_t *data, void *userdata);

int qmp_new(qmp_event_t event, void *userdata, Qmp **ret);
/* Pending commands are forgotten, without a call. */
void qmp_free(Qmp *q);
DEFINE_CLEANUP(Qmp *, qmp_free)

/* Takes over arguments (NULL: none), also on failure. fd (or -1) goes along with the command and is taken over. */
int qmp_execute(Qmp *q, const char *command, json_t *arguments, int fd, qmp_reply_t reply, void *userdata);

/* What is to be sent next, and the descriptor to send with its first byte, or -1. Returns 0 when there is nothing. */
size_t qmp_output(Qmp *q, const char **ret_data, int *ret_fd);
void qmp_output_sent(Qmp *q, size_t size);

/* Returns 0, -EBADMSG on what isn't QMP, -EMSGSIZE, -ENOMEM. Callbacks may call qmp_execute(), not qmp_free(). */
int qmp_feed(Qmp *q, const void *data, size_t size);
