/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What the host may say when. A connection begins with HELLO; commands run after a SETUP that succeeded whole.
 *
 * Frozen is a state of the machine and outlives connections: a HELLO that finds the workload frozen is another
 * machine's (or this one's, restored), and then only a complete SETUP thaws it; THAW, on the connection of FREEZE, is
 * the same machine going on. What the host still sent before it saw FROZEN is taken as ever, and its answers wait. */

#include <errno.h>
#include <stdio.h>
#include <sys/types.h>

#include "agent.h"

static enum {
        SESSION_NONE,    /* no HELLO yet */
        SESSION_GREETED, /* HELLO, but not (yet) a complete SETUP */
        SESSION_READY,   /* commands may run */
} session = SESSION_NONE;

static uint8_t nonce[AGENT_NONCE_SIZE];
static bool frozen;     /* FROZEN was said; silent until HELLO or THAW */
static bool setup_owed; /* the workload was captured: nothing but SETUP thaws it */

void session_lost(void) {
        /* While frozen nothing changes but the connection: the capture may happen right now. */
        if (frozen)
                return;
        session = SESSION_NONE;
        commands_detach();
}

static void unfreeze_self(void) {
        frozen = false;
        port_seal(false);
        work_suspend(false);
}

static void on_hello(const struct agent_header *h, const uint8_t *payload) {
        struct agent_hello m;

        if (agent_get_hello(payload, h->length, &m) < 0)
                return port_fail(0, EBADMSG, "HELLO can't be read");
        if (m.version != AGENT_PROTOCOL_VERSION)
                return port_fail(0, EPROTONOSUPPORT, "the host speaks version %u, this agent %u", m.version,
                                 AGENT_PROTOCOL_VERSION);

        if (frozen) {
                setup_owed = true;
                unfreeze_self();
        }
        commands_detach();
        port_clear(false);
        memcpy(nonce, m.nonce, sizeof(nonce));
        session = SESSION_GREETED;
        m.features = 0;
        (void) agent_put_hello(port_queue(NOW), AGENT_HELLO_REPLY, &m);
}

static void on_setup(const struct agent_header *h, const uint8_t *payload) {
        struct agent_receipt receipt = {};
        struct agent_setup m;
        char message[256] = "";

        if (agent_get_setup(payload, h->length, &m) < 0)
                return port_fail(0, EBADMSG, "SETUP can't be read");
        if (frozen || session == SESSION_NONE || memcmp(m.nonce, nonce, sizeof(nonce)) != 0)
                return port_fail(0, EPROTO, "SETUP without HELLO of the same nonce");

        setup_perform(&m, &receipt, message, sizeof(message));
        if (receipt.steps == AGENT_STEPS_ALL) {
                setup_owed = false;
                session = SESSION_READY;
        } else
                session = SESSION_GREETED;
        receipt.message = (struct agent_string){ message, (uint32_t) strlen(message) };
        (void) agent_put_receipt(port_queue(NOW), &receipt);
}

static void on_freeze(uint16_t flags) {
        int r;

        if (frozen || session == SESSION_NONE)
                return port_fail(0, EPROTO, "FREEZE out of order");

        do_chores(); /* rather now than in each machine that is restored from this one */

        /* Most of it is written while the workload still runs; the second pass has little to do. */
        if (flags & AGENT_FREEZE_SYNC)
                sync();
        r = cgroup_freeze(true);
        if (r < 0) {
                (void) agent_put_status(port_queue(IN_ORDER), AGENT_FROZEN, 0, (uint32_t) -r,
                                        "the workload can't be frozen");
                if (!setup_owed)
                        (void) cgroup_freeze(false);
                return;
        }
        if (flags & AGENT_FREEZE_SYNC)
                sync();
        frozen = true;
        work_suspend(true);
        (void) agent_put_status(port_queue(IN_ORDER), AGENT_FROZEN, 0, 0, NULL);
        port_seal(true);
}

static void on_thaw(void) {
        int r = 0;

        if (!frozen)
                return (void) agent_put_status(port_queue(NOW), AGENT_THAWED, 0, EINVAL, "not frozen by FREEZE");

        if (setup_owed)
                r = -EPERM;
        else
                r = cgroup_freeze(false);
        unfreeze_self();
        (void) agent_put_status(port_queue(NOW), AGENT_THAWED, 0, (uint32_t) -r,
                                r == -EPERM ? "only a complete SETUP thaws a restored machine"
                                : r < 0     ? "the workload can't be thawed"
                                            : NULL);
}

static void on_exec(const struct agent_header *h, const uint8_t *payload) {
        struct agent_exec m;

        if (agent_get_exec(payload, h->length, &m) < 0)
                return port_fail(h->stream, EBADMSG, "EXEC can't be read");
        if (frozen)
                return port_fail(h->stream, EPROTO, "EXEC in a frozen machine");
        if (session != SESSION_READY)
                return (void) agent_put_status(port_queue(NOW), AGENT_EXEC_FAILED, h->stream, EAGAIN,
                                               "the machine isn't set up");
        command_exec(h->stream, &m);
}

static void on_signal(const struct agent_header *h, const uint8_t *payload) {
        struct agent_signal m;

        if (agent_get_signal(payload, h->length, &m) < 0 || m.signal < 1 || m.signal > 64)
                return port_fail(h->stream, EBADMSG, "SIGNAL can't be read");
        command_signal(h->stream, (int) m.signal, m.flags);
}

/* The frames that belong to a command's channels. */
static void on_channel(const struct agent_header *h, const uint8_t *payload) {
        struct agent_credit credit;
        int r;

        switch (h->type) {
        case AGENT_DATA:
                r = h->flags == AGENT_STDIN ? command_data(h->stream, payload, h->length) : -EPROTO;
                break;
        case AGENT_EOF:
                r = h->flags == AGENT_STDIN ? command_eof(h->stream) : -EPROTO;
                break;
        case AGENT_CLOSE:
                r = h->flags != AGENT_STDIN ? command_close(h->stream, h->flags) : -EPROTO;
                break;
        default:
                r = agent_get_credit(payload, h->length, &credit);
                if (r >= 0)
                        r = h->flags != AGENT_STDIN ? command_credit(h->stream, h->flags, credit.bytes) : -EPROTO;
        }
        /* -ENOENT: the command has ended, and the host sent this before it knew. */
        if (r < 0 && r != -ENOENT)
                port_fail(h->stream, r, "frame %u on channel %u of stream %u breaks the rules", h->type, h->flags,
                          h->stream);
}

void session_frame(const struct agent_header *h, const uint8_t *payload) {
        if (session == SESSION_NONE && !frozen && h->type != AGENT_HELLO)
                return port_fail(h->stream, EPROTO, "frame %u before HELLO", h->type);

        switch (h->type) {
        case AGENT_HELLO:
                return on_hello(h, payload);
        case AGENT_SETUP:
                return on_setup(h, payload);
        case AGENT_FREEZE:
                return on_freeze(h->flags);
        case AGENT_THAW:
                return on_thaw();
        case AGENT_EXEC:
                return on_exec(h, payload);
        case AGENT_SIGNAL:
                return on_signal(h, payload);
        case AGENT_PING:
                return (void) agent_put_frame(port_queue(NOW), AGENT_PONG, 0, 0, payload, h->length);
        case AGENT_DATA:
        case AGENT_EOF:
        case AGENT_CLOSE:
        case AGENT_CREDIT:
                return on_channel(h, payload);
        default:
                return port_fail(h->stream, EPROTO, "frame %u is not for a guest", h->type);
        }
}
