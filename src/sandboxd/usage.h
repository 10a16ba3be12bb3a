/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The ledger: an append-only file of JSON objects, one a line, one per ended sandbox. The storage worker writes it;
 * here it is read. The fields are described with Manager.GetUsage. */

#include "authorize.h"
#include "sandbox.h"

/* Is a record of this sandbox in the ledger already? Looks at its newest part only, where it must be. */
bool usage_is_recorded(const char *id);
/* What systemd wrote to the journal when the scope ended, for one that ended unwatched. */
void usage_from_journal(struct sandbox *s);
/* In the worker: what its request "usage" asks for, in a memfd, a record a line. */
int usage_collect(json_t *request, int *ret_fd);
/* Manager.GetUsage. all: records of every owner. */
int usage_reply(struct manager *m, sd_bus_message *call, uid_t uid, bool all, sd_bus_error *error);
