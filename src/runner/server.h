/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The runner's side of the control channel: one controller at a time, never waited for. */

#include <systemd/sd-event.h>

#include "control.h"

typedef struct Server Server;

struct server_callbacks {
        /* A controller came; what is sent from here comes first. */
        void (*connected)(void *userdata);
        /* The message stays the server's; its descriptors may be taken. */
        void (*request)(struct control_message *m, void *userdata);
};

/* Takes over listen_fd. */
int server_new(sd_event *event, int listen_fd, const struct server_callbacks *callbacks, void *userdata, Server **ret);
void server_free(Server *s);
DEFINE_CLEANUP(Server *, server_free)

/* Numbers connections, so that an answer goes to nobody but the one who asked. 0: none. */
uint64_t server_connection(const Server *s);
/* Sends or queues, or drops the connection: nobody is waited for, and a new controller hears all that matters. Takes
 * over body; fds are duplicated. Without a controller it's lost. */
void server_send(Server *s, json_t *body, const char *const *names, const int *fds, size_t n_fds);
/* Tries once more to send what is queued. */
void server_flush(Server *s);
