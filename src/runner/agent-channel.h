/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The runner's end of the agent protocol: the handshake after a start, the freeze before a capture, and frames of
 * commands in between. The guest may say anything; what breaks the rules breaks the channel. */

#include <systemd/sd-event.h>

#include "agent-protocol.h"
#include "util.h"

typedef struct AgentChannel AgentChannel;

/* Above this the sources of DATA pause until the guest has taken what was sent. */
#define AGENT_CHANNEL_CONGESTED (512U * 1024U)

struct agent_channel_callbacks {
        /* The guest acknowledged everything: its workload runs. The receipt's message isn't to be used. */
        void (*open)(const struct agent_receipt *receipt, void *userdata);
        /* A frame of a command. A negative errno breaks the channel. */
        int (*frame)(const struct agent_header *header, const uint8_t *payload, void *userdata);
        /* Less than AGENT_CHANNEL_CONGESTED waits again. */
        void (*drained)(void *userdata);
        /* FROZEN; error is the guest's errno, 0 on success. */
        void (*frozen)(int error, void *userdata);
        /* The channel is of no use any more. Last call. closed: it just ended, as when QEMU exits. */
        void (*broken)(bool closed, const char *message, void *userdata);
};

/* Takes over fd. */
int agent_channel_new(sd_event *event, int fd, const struct agent_channel_callbacks *callbacks, void *userdata,
                      AgentChannel **ret);
void agent_channel_free(AgentChannel *a);
DEFINE_CLEANUP(AgentChannel *, agent_channel_free)

/* Sends HELLO, and SETUP once that is answered; setup is borrowed until then. Nonce, seed and time are filled in. */
int agent_channel_open(AgentChannel *a, struct agent_setup *setup);
/* How long the guest may take from now to open, 0: no limit. */
int agent_channel_set_timeout(AgentChannel *a, uint64_t usec);
/* Sends FREEZE. -EBUSY unless the channel is open. */
int agent_channel_freeze(AgentChannel *a, uint64_t timeout_usec);
bool agent_channel_is_open(const AgentChannel *a);

/* Where agent_put_…() append; agent_channel_flush() afterwards. */
struct agent_buffer *agent_channel_buffer(AgentChannel *a);
void agent_channel_flush(AgentChannel *a);
bool agent_channel_is_congested(const AgentChannel *a);
