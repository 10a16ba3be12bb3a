/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Who sent a message: the uid behind a unique bus name, asked of the bus without waiting. Such a name is never given
 * out twice in the life of a bus, so what was learnt stays true. */

#include <systemd/sd-bus.h>

#include "util.h"

struct callers;

int callers_new(sd_bus *bus, struct callers **ret);
struct callers *callers_free(struct callers *c);

/* error: 0, or a negative errno when the bus doesn't know it (any more). */
typedef void (*caller_handler_t)(int error, uid_t uid, void *userdata);

/* Calls handler with the answer, at once where it is known. */
int callers_query(struct callers *c, const char *sender, caller_handler_t handler, void *userdata);
