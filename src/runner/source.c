/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "stream-io.h"
#include "stream.h"

/* Frames sent in one turn, so that one fast source doesn't keep the loop from the others. */
#define FRAMES_PER_TURN 4

struct Source {
        const struct source_callbacks *callbacks;
        void *userdata;
        int fd; /* owned; -1 after the end */
        enum stream_kind kind;
        sd_event_source *source; /* io, or defer for what epoll refuses */
        uint32_t credit;
};

static void finish(Source *s) {
        s->source = sd_event_source_disable_unref(s->source);
        s->fd = close_fd(s->fd);
        s->callbacks->end(s->userdata);
}

static void turn(Source *s) {
        /* One at a time uses it, and only until the bytes are handed on. */
        static uint8_t buffer[AGENT_DATA_MAX];

        for (int i = 0; i < FRAMES_PER_TURN && s->credit > 0 && s->callbacks->ready(s->userdata); i++) {
                ssize_t n = stream_io_read(s->fd, s->kind, buffer, MIN(sizeof(buffer), s->credit));

                if (n == -EAGAIN)
                        break;
                if (n <= 0) {
                        finish(s);
                        return;
                }
                s->credit -= (uint32_t) n;
                if (!s->callbacks->data(buffer, (size_t) n, s->userdata))
                        break;
        }
        source_kick(s);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        turn(userdata);
        return 0;
}

static int on_defer(sd_event_source *source, void *userdata) {
        turn(userdata);
        return 0;
}

int source_new(sd_event *event, int fd, const struct source_callbacks *callbacks, void *userdata, Source **ret) {
        _cleanup_(source_freep) Source *s = calloc(1, sizeof(*s));
        int r;

        if (!s) {
                close_fd(fd);
                return -ENOMEM;
        }
        s->fd = fd;
        s->callbacks = callbacks;
        s->userdata = userdata;
        s->credit = AGENT_WINDOW;
        r = stream_io_kind(fd, false, &s->kind);
        if (r < 0)
                return r;

        r = s->kind == STREAM_FILE ? -EPERM : sd_event_add_io(event, &s->source, fd, EPOLLIN, on_io, s);
        if (r == -EPERM)
                r = sd_event_add_defer(event, &s->source, on_defer, s);
        if (r >= 0)
                r = sd_event_source_set_priority(s->source, SD_EVENT_PRIORITY_NORMAL + 10);
        /* Nothing flows before the command runs. */
        if (r >= 0)
                r = sd_event_source_set_enabled(s->source, SD_EVENT_OFF);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

void source_free(Source *s) {
        if (!s)
                return;
        sd_event_source_disable_unref(s->source);
        close_fd(s->fd);
        free(s);
}

int source_add_credit(Source *s, uint32_t bytes) {
        if (bytes > AGENT_WINDOW - s->credit)
                return -EBADMSG;
        s->credit += bytes;
        source_kick(s);
        return 0;
}

void source_kick(Source *s) {
        if (s->fd < 0)
                return;
        (void) sd_event_source_set_enabled(
                s->source, s->credit > 0 && s->callbacks->ready(s->userdata) ? SD_EVENT_ON : SD_EVENT_OFF);
}
