/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Copies what comes from one descriptor to another, as both get ready: the stand-in for a stream that can't be handed
 * to the service, which is a terminal or another device. At most one buffer is in flight, so a slow reader slows the
 * writer. */

#include <systemd/sd-event.h>

#include "util.h"

struct pump;

/* error: 0 at the end of the source, else the negative errno that ended it. Both descriptors are closed by then. */
typedef void (*pump_end_t)(struct pump *p, int error, void *userdata);

/* Takes over both descriptors, also when it fails. At least one of them must be non-blocking. */
int pump_new(sd_event *event, int source, int sink, pump_end_t end, void *userdata, struct pump **ret);
struct pump *pump_free(struct pump *p);
/* Nothing more comes: deliver what is there, then end as at the source's end. The source must be non-blocking. */
void pump_finish(struct pump *p);
bool pump_ended(const struct pump *p);
