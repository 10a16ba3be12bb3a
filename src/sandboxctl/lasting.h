/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A method call that outlives the service that it was made to. Sandboxes and their commands go on when sandboxd is
 * restarted, so whoever waits for their end asks again once it is back. */

#include "ctl.h"

/* How long the service may be away. */
#define LASTING_TIMEOUT_USEC (60 * USEC_PER_SEC)

struct lasting;

/* reply: the method's, or what made it fail in the end: an error of the service's own, or that it hasn't come back.
 * NULL: the bus itself is gone. */
typedef void (*lasting_done_t)(sd_bus_message *reply, void *userdata);

/* Of methods that take flags alone, and may be called twice. The bus must be attached to an event loop. done isn't
 * called from within. */
int lasting_call(struct ctl *c, const char *path, const char *interface, const char *member, lasting_done_t done,
                 void *userdata, struct lasting **ret);
/* Takes NULL; drops the call if it's still under way. Returns NULL. */
struct lasting *lasting_free(struct lasting *l);
DEFINE_CLEANUP(struct lasting *, lasting_free)
