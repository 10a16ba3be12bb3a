/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The connection to one runner: requests with their replies, and events. Knows no sandbox; see control.h for what is
 * said. */

#include <systemd/sd-event.h>

#include "control.h"

struct link;

/* reply: NULL when the connection broke or the time is over; error: 0 or a negative errno, message: a sentence. */
typedef void (*link_reply_t)(int error, const char *message, struct control_message *reply, void *userdata);

struct link_handlers {
        void (*event)(const char *type, struct control_message *m, void *userdata);
        void (*broken)(void *userdata); /* the link is dead and may be freed in here */
};

int link_new(sd_event *event, const char *path, const struct link_handlers *handlers, void *userdata,
             struct link **ret);
/* Pending requests are forgotten without a word. */
struct link *link_free(struct link *l);
/* Frees it after those that wait for a reply have been told that none will come. */
struct link *link_close(struct link *l);

/* Hands on what has arrived already, up to a bound: of a runner that has exited these are its last words. The link may
 * be gone after it. */
void link_drain(struct link *l);

/* request is consumed. timeout_usec 0: none. handler is called exactly once, later, unless the link is freed or -errno
 * is returned. The descriptors stay the caller's. */
int link_request(struct link *l, json_t *request, const char *const *names, const int *fds, size_t n_fds,
                 uint64_t timeout_usec, link_reply_t handler, void *userdata);
