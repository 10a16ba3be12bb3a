/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "link.h"

#include <sys/queue.h>

#include "log.h"

struct pending {
        LIST_ENTRY(pending) pendings;
        struct link *link;
        uint64_t serial;
        sd_event_source *timer;
        link_reply_t handler;
        void *userdata;
};

struct link {
        sd_event *event;
        int fd;
        sd_event_source *source;
        uint64_t last_serial;
        LIST_HEAD(, pending) pendings;
        struct link_handlers handlers;
        void *userdata;
        bool hanging_up; /* handlers run that may free it */
        bool freed;      /* they did; it goes when they are through */
};

static void pending_free(struct pending *p) {
        LIST_REMOVE(p, pendings);
        sd_event_source_disable_unref(p->timer);
        free(p);
}

static void pending_finish(struct pending *p, int error, const char *message, struct control_message *reply) {
        link_reply_t handler = p->handler;
        void *userdata = p->userdata;

        pending_free(p);
        if (handler)
                handler(error, message, reply, userdata);
}

static void link_destroy(struct link *l) {
        sd_event_source_disable_unref(l->source);
        close_fd(l->fd);
        free(l);
}

struct link *link_free(struct link *l) {
        struct pending *p;

        if (!l)
                return NULL;
        while ((p = LIST_FIRST(&l->pendings)))
                pending_free(p);
        if (l->hanging_up)
                l->freed = true;
        else
                link_destroy(l);
        return NULL;
}

static void finish_all(struct link *l) {
        while (LIST_FIRST(&l->pendings))
                pending_finish(LIST_FIRST(&l->pendings), -ECONNRESET, "The sandbox's runner has closed its connection",
                               NULL);
}

struct link *link_close(struct link *l) {
        bool outermost = l && !l->hanging_up;

        if (!l)
                return NULL;
        l->hanging_up = true;
        finish_all(l);
        if (outermost)
                l->hanging_up = false;
        return link_free(l);
}

static void dispatch(struct link *l, struct control_message *m) {
        const char *type = json_string_value(json_object_get(m->body, "type"));
        _cleanup_free_ char *message = NULL;
        struct pending *p;
        uint64_t serial;
        int error;

        if (!streq(type, "reply")) {
                l->handlers.event(type, m, l->userdata);
                return;
        }
        serial = (uint64_t) json_integer_value(json_object_get(m->body, "serial"));
        LIST_FOREACH (p, &l->pendings, pendings)
                if (p->serial == serial)
                        break;
        if (!p)
                return;
        error = -(int) json_integer_value(json_object_get(m->body, "error"));
        message = text_printable(json_string_value(json_object_get(m->body, "message")));
        pending_finish(p, error, strempty(message), m);
}

static void hang_up(struct link *l) {
        l->source = sd_event_source_disable_unref(l->source);
        l->hanging_up = true;
        finish_all(l);
        l->hanging_up = false;
        if (l->freed)
                link_destroy(l);
        else
                l->handlers.broken(l->userdata);
}

/* One message a turn: a handler may free the link. */
static int on_io(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        struct link *l = userdata;
        struct control_message m = {};
        int r;

        r = control_recv(fd, &m);
        if (r == -EAGAIN)
                return 0;
        if (r > 0) {
                dispatch(l, &m);
                control_message_done(&m);
                return 0;
        }
        if (r < 0)
                log_warning_errno(r, "Failed to read from a runner");
        hang_up(l);
        return 0;
}

#define DRAIN_MAX 4096U

void link_drain(struct link *l) {
        struct control_message m = {};
        bool outermost = !l->hanging_up;

        l->hanging_up = true;
        for (unsigned i = 0; i < DRAIN_MAX && !l->freed && control_recv(l->fd, &m) > 0; i++) {
                dispatch(l, &m);
                control_message_done(&m);
        }
        if (!outermost)
                return;
        l->hanging_up = false;
        if (l->freed)
                link_destroy(l);
}

int link_new(sd_event *event, const char *path, const struct link_handlers *handlers, void *userdata,
             struct link **ret) {
        struct link *l = calloc(1, sizeof(*l));
        int r;

        if (!l)
                return -ENOMEM;
        *l = (struct link){ .event = event, .handlers = *handlers, .userdata = userdata };
        LIST_INIT(&l->pendings);
        r = l->fd = control_connect(path);
        if (r >= 0)
                r = sd_event_add_io(event, &l->source, l->fd, EPOLLIN, on_io, l);
        if (r < 0) {
                link_free(l);
                return r;
        }
        *ret = l;
        return 0;
}

static int on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        pending_finish(userdata, -ETIMEDOUT, "The sandbox's runner didn't answer in time", NULL);
        return 0;
}

int link_request(struct link *l, json_t *request, const char *const *names, const int *fds, size_t n_fds,
                 uint64_t timeout_usec, link_reply_t handler, void *userdata) {
        struct pending *p = calloc(1, sizeof(*p));
        int r = 0;

        if (!p || !request ||
            json_object_set_new(request, "serial", json_integer((json_int_t) ++l->last_serial)) < 0) {
                free(p);
                json_decref(request);
                return -ENOMEM;
        }
        *p = (struct pending){ .link = l, .serial = l->last_serial, .handler = handler, .userdata = userdata };
        LIST_INSERT_HEAD(&l->pendings, p, pendings);
        if (timeout_usec > 0)
                r = sd_event_add_time_relative(l->event, &p->timer, CLOCK_MONOTONIC, timeout_usec, 0, on_timeout, p);
        if (r >= 0)
                r = control_send(l->fd, request, names, fds, n_fds);
        json_decref(request);
        if (r < 0)
                pending_free(p);
        return r < 0 ? r : 0;
}
