/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Bytes go straight from the agent's frame to the reader as long as it keeps up; only what it doesn't take is copied,
 * into a queue that the credit bounds. */

#include "stream-io.h"
#include "stream.h"

/* Credit is given back in portions, or a reader of single bytes would cost a frame for each. */
#define CREDIT_PORTION (AGENT_WINDOW / 4)

struct Sink {
        const struct sink_callbacks *callbacks;
        void *userdata;
        int fd; /* owned; -1 without, or closed */
        enum stream_kind kind;
        sd_event_source *io;     /* NULL for what epoll refuses */
        sd_event_source *finish; /* calls done() from the loop */
        CaptureBuffer *capture;

        uint8_t *queue; /* of AGENT_WINDOW bytes while something waits */
        size_t start, used;
        uint32_t credit, owed; /* what the guest may send; what it is to be given back */
        uint64_t progress;
        bool ended, done;
};

static void passed(Sink *s, size_t size) {
        s->progress += size;
        s->owed += (uint32_t) size;
        if (s->owed < CREDIT_PORTION || s->ended)
                return;
        s->credit += s->owed;
        s->callbacks->passed(s->owed, s->userdata);
        s->owed = 0;
}

static void drop_queue(Sink *s) {
        free(s->queue);
        s->queue = NULL;
        s->start = s->used = 0;
        if (s->io)
                (void) sd_event_source_set_enabled(s->io, SD_EVENT_OFF);
}

/* The reader sees its end of file before anybody hears of the command's exit: the descriptor is closed here, and
 * done() comes with a later turn of the loop. */
static void maybe_finish(Sink *s) {
        if (!s->ended || s->used > 0 || s->done)
                return;
        s->done = true;
        s->io = sd_event_source_disable_unref(s->io);
        s->fd = close_fd(s->fd);
        (void) sd_event_source_set_enabled(s->finish, SD_EVENT_ONESHOT);
}

static void reader_gone(Sink *s) {
        size_t waiting = s->used;

        s->io = sd_event_source_disable_unref(s->io);
        drop_queue(s);
        s->fd = close_fd(s->fd);
        if (!s->ended)
                s->callbacks->closed(s->userdata);
        passed(s, waiting);
        maybe_finish(s);
}

/* Returns what the reader took; a reader that is gone takes everything. */
static size_t push(Sink *s, const uint8_t *data, size_t size) {
        size_t total = 0;

        while (total < size && s->fd >= 0) {
                ssize_t n = stream_io_write(s->fd, s->kind, data + total, size - total);

                if (n == -EAGAIN && s->io)
                        return total;
                if (n <= 0) {
                        reader_gone(s);
                        return size;
                }
                total += (size_t) n;
        }
        return s->fd < 0 ? size : total;
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Sink *s = userdata;
        size_t n;

        if (s->used == 0) {
                drop_queue(s);
                return 0;
        }
        n = push(s, s->queue + s->start, s->used);
        /* Without a queue the reader is gone, and everything was accounted for. */
        if (!s->queue)
                return 0;
        s->start += n;
        s->used -= n;
        passed(s, n);
        if (s->used == 0)
                drop_queue(s);
        maybe_finish(s);
        return 0;
}

static int on_finish(sd_event_source *source, void *userdata) {
        Sink *s = userdata;

        s->callbacks->done(s->userdata);
        return 0;
}

static int watch(Sink *s, sd_event *event) {
        int r;

        r = stream_io_kind(s->fd, true, &s->kind);
        if (r < 0 || s->kind == STREAM_FILE)
                return r;
        r = sd_event_add_io(event, &s->io, s->fd, EPOLLOUT, on_io, s);
        if (r == -EPERM)
                return 0;
        if (r >= 0)
                r = sd_event_source_set_enabled(s->io, SD_EVENT_OFF);
        return r;
}

int sink_new(sd_event *event, int fd, CaptureBuffer *capture, const struct sink_callbacks *callbacks, void *userdata,
             Sink **ret) {
        _cleanup_(sink_freep) Sink *s = calloc(1, sizeof(*s));
        int r;

        if (!s) {
                close_fd(fd);
                return -ENOMEM;
        }
        s->fd = fd;
        s->capture = capture;
        s->callbacks = callbacks;
        s->userdata = userdata;
        s->credit = AGENT_WINDOW;
        r = sd_event_add_defer(event, &s->finish, on_finish, s);
        if (r >= 0)
                r = sd_event_source_set_enabled(s->finish, SD_EVENT_OFF);
        if (r >= 0 && fd >= 0)
                r = watch(s, event);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

void sink_free(Sink *s) {
        if (!s)
                return;
        sd_event_source_disable_unref(s->io);
        sd_event_source_disable_unref(s->finish);
        close_fd(s->fd);
        free(s->queue);
        free(s);
}

static int enqueue(Sink *s, const uint8_t *data, size_t size) {
        if (!s->queue)
                s->queue = malloc(AGENT_WINDOW);
        if (!s->queue)
                return -ENOMEM;
        if (s->start + s->used + size > AGENT_WINDOW) {
                memmove(s->queue, s->queue + s->start, s->used);
                s->start = 0;
        }
        memcpy(s->queue + s->start + s->used, data, size);
        s->used += size;
        return sd_event_source_set_enabled(s->io, SD_EVENT_ON);
}

int sink_add(Sink *s, const void *data, size_t size) {
        const uint8_t *p = data;
        size_t n = 0;

        if (s->ended || size > s->credit)
                return -EBADMSG;
        s->credit -= (uint32_t) size;

        if (s->capture && s->fd < 0)
                /* Without memory the size is right still, and the rest is missing at the end. */
                (void) capture_buffer_add(s->capture, data, size);
        if (s->used == 0)
                n = push(s, p, size);
        if (s->fd < 0)
                n = size;
        passed(s, n);
        return n < size ? enqueue(s, p + n, size - n) : 0;
}

int sink_end(Sink *s) {
        if (s->ended)
                return -EBADMSG;
        s->ended = true;
        maybe_finish(s);
        return 0;
}

bool sink_has_ended(const Sink *s) {
        return s->ended;
}

bool sink_is_done(const Sink *s) {
        return s->done;
}

size_t sink_waiting(const Sink *s) {
        return s->used;
}

uint64_t sink_progress(const Sink *s) {
        return s->progress;
}

void sink_abandon(Sink *s) {
        if (s->fd >= 0)
                reader_gone(s);
}
