/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "agent-channel.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>

#include "tail.h"

/* How much is read at once: two full DATA frames and their headers. */
#define READ_SIZE (2 * (AGENT_DATA_MAX + AGENT_HEADER_SIZE))
/* What the guest may say about itself in an error. */
#define GUEST_MESSAGE_MAX 200

enum agent_state {
        AGENT_CLOSED,    /* nothing was sent yet: the guest has nothing to say */
        AGENT_GREETED,   /* HELLO and SETUP are out, HELLO_REPLY is due */
        AGENT_SETTING,   /* RECEIPT is due */
        AGENT_OPEN,      /* commands */
        AGENT_FREEZING,  /* FROZEN is due; commands still speak */
        AGENT_IS_FROZEN, /* the guest is silent */
        AGENT_BROKEN,
};

struct AgentChannel {
        const struct agent_channel_callbacks *callbacks;
        void *userdata;
        enum agent_state state;
        int fd; /* owned */
        sd_event_source *io, *timer;
        struct agent_reader reader;
        struct agent_buffer buffer; /* from `sent` on it waits for the socket */
        size_t sent;
        uint8_t nonce[AGENT_NONCE_SIZE];
        uint64_t generation;
        struct agent_setup *setup; /* borrowed until it has been sent */
};

static void broken(AgentChannel *a, bool closed, const char *format, ...) _printf_(3, 4);
static void broken(AgentChannel *a, bool closed, const char *format, ...) {
        char message[512];
        va_list ap;

        if (a->state == AGENT_BROKEN)
                return;
        a->state = AGENT_BROKEN;
        a->io = sd_event_source_disable_unref(a->io);
        a->timer = sd_event_source_disable_unref(a->timer);
        va_start(ap, format);
        (void) vsnprintf(message, sizeof(message), format, ap);
        va_end(ap);
        a->callbacks->broken(closed, message, a->userdata);
}

/* What the guest says about an error, for people. */
static void guest_message(const struct agent_string *s, char ret[GUEST_MESSAGE_MAX + 1]) {
        _cleanup_free_ char *text = text_sanitise(s->text, s->length, GUEST_MESSAGE_MAX);

        (void) snprintf(ret, GUEST_MESSAGE_MAX + 1, "%s", isempty(text) ? "no reason given" : text);
}

/* Not together with HELLO: a guest fresh from a snapshot takes its time to read it (under TCG 400 ms on a busy host),
 * and by so much its clock would be late. After its first answer it is awake. And who hasn't shown our nonce gets no
 * seed. */
static int send_setup(AgentChannel *a) {
        struct agent_setup *setup = a->setup;
        int r;

        r = random_bytes(setup->seed, sizeof(setup->seed));
        if (r < 0)
                return r;
        memcpy(setup->nonce, a->nonce, sizeof(a->nonce));
        setup->realtime_nsec = now_realtime_usec() * NSEC_PER_USEC;
        r = agent_put_setup(&a->buffer, setup);
        explicit_bzero(setup->seed, sizeof(setup->seed));
        if (r < 0)
                return r;
        a->state = AGENT_SETTING;
        agent_channel_flush(a);
        return 0;
}

static int handle_hello_reply(AgentChannel *a, const uint8_t *payload, size_t size) {
        struct agent_hello hello;

        if (a->state != AGENT_GREETED || agent_get_hello(payload, size, &hello) < 0)
                return -EBADMSG;
        if (memcmp(hello.nonce, a->nonce, sizeof(a->nonce)) != 0)
                return -EBADMSG;
        if (hello.version != AGENT_PROTOCOL_VERSION) {
                broken(a, false, "the agent speaks version %u of the protocol, this is %u: bake the template again",
                       hello.version, AGENT_PROTOCOL_VERSION);
                return 0;
        }
        return send_setup(a);
}

/* Fails closed: what the guest doesn't acknowledge has not happened. */
static int handle_receipt(AgentChannel *a, const uint8_t *payload, size_t size) {
        char text[GUEST_MESSAGE_MAX + 1];
        struct agent_receipt receipt;

        if (a->state != AGENT_SETTING || agent_get_receipt(payload, size, &receipt) < 0)
                return -EBADMSG;
        if (memcmp(receipt.nonce, a->nonce, sizeof(a->nonce)) != 0 || receipt.generation != a->generation)
                return -EBADMSG;
        if (receipt.steps != AGENT_STEPS_ALL) {
                guest_message(&receipt.message, text);
                broken(a, false, "the guest's setup is incomplete (steps %#x of %#x, error %u): %s", receipt.steps,
                       AGENT_STEPS_ALL, receipt.error, text);
                return 0;
        }
        a->state = AGENT_OPEN;
        a->timer = sd_event_source_disable_unref(a->timer);
        a->callbacks->open(&receipt, a->userdata);
        return 0;
}

static int handle_frozen(AgentChannel *a, const uint8_t *payload, size_t size) {
        struct agent_status status;

        if (a->state != AGENT_FREEZING || agent_get_status(payload, size, &status) < 0)
                return -EBADMSG;
        a->timer = sd_event_source_disable_unref(a->timer);
        a->state = status.error == 0 ? AGENT_IS_FROZEN : AGENT_OPEN;
        a->callbacks->frozen(status.error == 0 ? 0 : -(int) MIN(status.error, 4095U), a->userdata);
        return 0;
}

static int handle_error(AgentChannel *a, const uint8_t *payload, size_t size) {
        char text[GUEST_MESSAGE_MAX + 1];
        struct agent_status status;

        if (agent_get_status(payload, size, &status) < 0)
                return -EBADMSG;
        guest_message(&status.message, text);
        broken(a, false, "the agent gave up (error %u): %s", status.error, text);
        return 0;
}

static int handle_frame(AgentChannel *a, const struct agent_header *h, const uint8_t *payload) {
        if (a->state == AGENT_CLOSED || a->state == AGENT_IS_FROZEN)
                return -EBADMSG;

        switch (h->type) {
        case AGENT_HELLO_REPLY:
                return handle_hello_reply(a, payload, h->length);
        case AGENT_RECEIPT:
                return handle_receipt(a, payload, h->length);
        case AGENT_FROZEN:
                return handle_frozen(a, payload, h->length);
        case AGENT_ERROR:
                return handle_error(a, payload, h->length);
        default:
                /* Streams belong to commands, and those are only made by an open channel. */
                if (h->stream == 0 || (a->state != AGENT_OPEN && a->state != AGENT_FREEZING))
                        return -EBADMSG;
                return a->callbacks->frame(h, payload, a->userdata);
        }
}

static int read_frames(AgentChannel *a) {
        struct agent_header header;
        const uint8_t *payload;
        void *room;
        ssize_t n;
        int r;

        room = agent_reader_room(&a->reader, READ_SIZE);
        if (!room)
                return -ENOMEM;
        n = recv(a->fd, room, READ_SIZE, MSG_DONTWAIT);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0)
                return -ECONNRESET;
        agent_reader_added(&a->reader, (size_t) n);

        while (a->state != AGENT_BROKEN && (r = agent_reader_next(&a->reader, &header, &payload)) != 0) {
                if (r < 0)
                        return r;
                r = handle_frame(a, &header, payload);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        AgentChannel *a = userdata;
        int r;

        if (revents & EPOLLOUT)
                agent_channel_flush(a);
        if (!(revents & (EPOLLIN | EPOLLHUP | EPOLLERR)) || a->state == AGENT_BROKEN)
                return 0;
        r = read_frames(a);
        if (r == -EBADMSG)
                broken(a, false, "the agent broke the protocol");
        else if (r < 0)
                broken(a, true, "the agent's channel failed: %s", strerror(-r));
        return 0;
}

static int on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        AgentChannel *a = userdata;

        broken(a, false,
               a->state == AGENT_FREEZING ? "the agent didn't freeze the workload in time"
                                          : "the agent didn't answer in time");
        return 0;
}

int agent_channel_new(sd_event *event, int fd, const struct agent_channel_callbacks *callbacks, void *userdata,
                      AgentChannel **ret) {
        _cleanup_(agent_channel_freep) AgentChannel *a = calloc(1, sizeof(*a));
        int r;

        if (!a) {
                close_fd(fd);
                return -ENOMEM;
        }
        a->fd = fd;
        a->callbacks = callbacks;
        a->userdata = userdata;
        r = sd_event_add_io(event, &a->io, fd, EPOLLIN, on_io, a);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(a);
        return 0;
}

void agent_channel_free(AgentChannel *a) {
        if (!a)
                return;
        sd_event_source_disable_unref(a->io);
        sd_event_source_disable_unref(a->timer);
        close_fd(a->fd);
        agent_reader_done(&a->reader);
        agent_buffer_done(&a->buffer);
        free(a);
}

int agent_channel_set_timeout(AgentChannel *a, uint64_t usec) {
        a->timer = sd_event_source_disable_unref(a->timer);
        if (usec == 0)
                return 0;
        return sd_event_add_time_relative(sd_event_source_get_event(a->io), &a->timer, CLOCK_BOOTTIME, usec, 0,
                                          on_timeout, a);
}

int agent_channel_open(AgentChannel *a, struct agent_setup *setup) {
        struct agent_hello hello = { .version = AGENT_PROTOCOL_VERSION };
        int r;

        if (a->state != AGENT_CLOSED)
                return -EBUSY;
        r = random_bytes(a->nonce, sizeof(a->nonce));
        if (r < 0)
                return r;
        memcpy(hello.nonce, a->nonce, sizeof(a->nonce));
        a->generation = setup->generation;
        a->setup = setup;

        r = agent_put_hello(&a->buffer, AGENT_HELLO, &hello);
        if (r < 0)
                return r;
        a->state = AGENT_GREETED;
        agent_channel_flush(a);
        return 0;
}

int agent_channel_freeze(AgentChannel *a, uint64_t timeout_usec) {
        int r;

        if (a->state != AGENT_OPEN)
                return -EBUSY;
        r = agent_put_frame(&a->buffer, AGENT_FREEZE, AGENT_FREEZE_SYNC, 0, NULL, 0);
        if (r >= 0)
                r = agent_channel_set_timeout(a, timeout_usec);
        if (r < 0)
                return r;
        a->state = AGENT_FREEZING;
        agent_channel_flush(a);
        return 0;
}

bool agent_channel_is_open(const AgentChannel *a) {
        return a->state == AGENT_OPEN;
}

struct agent_buffer *agent_channel_buffer(AgentChannel *a) {
        return &a->buffer;
}

bool agent_channel_is_congested(const AgentChannel *a) {
        return a->buffer.size - a->sent >= AGENT_CHANNEL_CONGESTED;
}

/* What was sent goes once it is everything, or half of much. */
static void compact(AgentChannel *a) {
        if (a->sent < a->buffer.size && a->sent < AGENT_CHANNEL_CONGESTED)
                return;
        memmove(a->buffer.data, a->buffer.data + a->sent, a->buffer.size - a->sent);
        a->buffer.size -= a->sent;
        a->sent = 0;
        if (a->buffer.size == 0 && a->buffer.allocated > 2 * AGENT_CHANNEL_CONGESTED)
                agent_buffer_done(&a->buffer);
}

void agent_channel_flush(AgentChannel *a) {
        bool congested = agent_channel_is_congested(a);

        if (a->state == AGENT_BROKEN)
                return;
        while (a->sent < a->buffer.size) {
                ssize_t n =
                        send(a->fd, a->buffer.data + a->sent, a->buffer.size - a->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

                /* A dead peer shows as end of file too. */
                if (n < 0)
                        break;
                a->sent += (size_t) n;
        }
        if (a->buffer.data)
                compact(a);
        (void) sd_event_source_set_io_events(a->io, a->sent < a->buffer.size ? EPOLLIN | EPOLLOUT : EPOLLIN);
        if (congested && !agent_channel_is_congested(a))
                a->callbacks->drained(a->userdata);
}
