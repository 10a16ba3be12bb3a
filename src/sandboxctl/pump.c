/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "pump.h"

#include <sys/epoll.h>

#define BUFFER_SIZE (64U * 1024U)

struct pump {
        sd_event *event;
        int source, sink; /* owned; -1 after the end */
        sd_event_source *readable,
                *writable; /* exactly one is on: which depends on whether the buffer holds something */
        bool finishing;    /* an empty source is an ended one */
        pump_end_t end;
        void *userdata;
        size_t begin, size; /* of what the buffer holds */
        char buffer[BUFFER_SIZE];
};

static void pump_close(struct pump *p) {
        p->readable = sd_event_source_disable_unref(p->readable);
        p->writable = sd_event_source_disable_unref(p->writable);
        p->source = close_fd(p->source);
        p->sink = close_fd(p->sink);
}

static void pump_end(struct pump *p, int error) {
        pump_close(p);
        p->end(p, error, p->userdata);
}

/* 1: the buffer holds something. 0: nothing there now. -ENODATA: the end. */
static int pump_fill(struct pump *p) {
        ssize_t n = read(p->source, p->buffer, sizeof(p->buffer));

        if (n > 0) {
                p->begin = 0;
                p->size = (size_t) n;
                return 1;
        }
        if (n == 0)
                return -ENODATA;
        if (errno == EAGAIN)
                return p->finishing ? -ENODATA : 0;
        /* A terminal that was hung up reads as an error, and means the end as well. */
        return errno == EINTR ? 0 : errno == EIO ? -ENODATA : -errno;
}

/* 1: the buffer is empty. 0: the sink takes no more now. */
static int pump_drain(struct pump *p) {
        while (p->size > 0) {
                ssize_t n = write(p->sink, p->buffer + p->begin, p->size);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return errno == EAGAIN ? 0 : -errno;
                p->begin += (size_t) n;
                p->size -= (size_t) n;
        }
        return 1;
}

/* Reads once for each time that the source is ready, as the next read of a terminal would wait. Only at the end, when
 * the source is known not to wait, on until it's empty. */
static void pump_step(struct pump *p) {
        int r;

        do {
                r = p->size > 0 ? 1 : pump_fill(p);
                if (r > 0)
                        r = pump_drain(p);
        } while (r > 0 && p->finishing);
        if (r >= 0)
                r = sd_event_source_set_enabled(p->readable, p->size > 0 ? SD_EVENT_OFF : SD_EVENT_ON);
        if (r >= 0)
                r = sd_event_source_set_enabled(p->writable, p->size > 0 ? SD_EVENT_ON : SD_EVENT_OFF);
        if (r < 0)
                pump_end(p, r == -ENODATA ? 0 : r);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        pump_step(userdata);
        return 0;
}

static int on_defer(sd_event_source *s, void *userdata) {
        pump_step(userdata);
        return 0;
}

/* Files and some devices are always ready, and epoll refuses them. */
static int add_source(struct pump *p, int fd, uint32_t events, sd_event_source **ret) {
        int r = sd_event_add_io(p->event, ret, fd, events, on_io, p);

        if (r == -EPERM)
                r = sd_event_add_defer(p->event, ret, on_defer, p);
        return r;
}

int pump_new(sd_event *event, int source, int sink, pump_end_t end, void *userdata, struct pump **ret) {
        struct pump *p = malloc(sizeof(*p));
        int r;

        if (!p) {
                close_fd(source);
                close_fd(sink);
                return -ENOMEM;
        }
        p->event = sd_event_ref(event);
        p->source = source;
        p->sink = sink;
        p->readable = p->writable = NULL;
        p->finishing = false;
        p->end = end;
        p->userdata = userdata;
        p->begin = p->size = 0;
        r = add_source(p, source, EPOLLIN, &p->readable);
        if (r >= 0)
                r = add_source(p, sink, EPOLLOUT, &p->writable);
        if (r >= 0)
                r = sd_event_source_set_enabled(p->readable, SD_EVENT_ON);
        if (r >= 0)
                r = sd_event_source_set_enabled(p->writable, SD_EVENT_OFF);
        if (r < 0) {
                pump_free(p);
                return r;
        }
        *ret = p;
        return 0;
}

struct pump *pump_free(struct pump *p) {
        if (!p)
                return NULL;
        pump_close(p);
        sd_event_unref(p->event);
        free(p);
        return NULL;
}

void pump_finish(struct pump *p) {
        if (pump_ended(p) || p->finishing)
                return;
        p->finishing = true;
        pump_step(p);
}

bool pump_ended(const struct pump *p) {
        return p->source < 0;
}
