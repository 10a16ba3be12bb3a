/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "log.h"

/* Messages that wait for a controller that doesn't read. Each is small; beyond that it is better served by "hello". */
#define QUEUE_MAX 2048U
/* Requests handled in one turn. */
#define REQUESTS_PER_TURN 16

struct message {
        json_t *body;
        const char *names[CONTROL_FDS_MAX]; /* static strings */
        int fds[CONTROL_FDS_MAX];
        size_t n_fds;
        struct message *next;
};

struct Server {
        const struct server_callbacks *callbacks;
        void *userdata;
        int listen_fd, fd; /* owned */
        sd_event_source *listen_source, *source;
        uint64_t last_connection;
        struct message *first, **end;
        size_t n_queued;
};

static void message_free(struct message *m) {
        json_decref(m->body);
        for (size_t i = 0; i < m->n_fds; i++)
                close_fd(m->fds[i]);
        free(m);
}

static void drop_first(Server *s) {
        struct message *m = s->first;

        s->first = m->next;
        if (!s->first)
                s->end = &s->first;
        s->n_queued--;
        message_free(m);
}

static void disconnect(Server *s) {
        s->source = sd_event_source_disable_unref(s->source);
        s->fd = close_fd(s->fd);
        while (s->first)
                drop_first(s);
}

void server_flush(Server *s) {
        while (s->first && s->fd >= 0) {
                struct message *m = s->first;
                int r = control_send(s->fd, m->body, m->names, m->fds, m->n_fds);

                if (r == -EAGAIN || r == -ENOBUFS)
                        break;
                if (r == -EMSGSIZE || r == -ENOMEM)
                        log_warning_errno(r, "A message to the controller can't be sent");
                else if (r < 0) {
                        disconnect(s);
                        return;
                }
                drop_first(s);
        }
        if (s->source)
                (void) sd_event_source_set_io_events(s->source, s->first ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static struct message *message_new(json_t *body, const char *const *names, const int *fds, size_t n_fds) {
        struct message *m = calloc(1, sizeof(*m));

        if (!m || !body) {
                json_decref(body);
                free(m);
                return NULL;
        }
        m->body = body;
        for (size_t i = 0; i < n_fds; i++) {
                m->names[i] = names[i];
                m->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
                if (m->fds[i] < 0) {
                        message_free(m);
                        return NULL;
                }
                m->n_fds++;
        }
        return m;
}

void server_send(Server *s, json_t *body, const char *const *names, const int *fds, size_t n_fds) {
        struct message *m;

        if (s->fd < 0) {
                json_decref(body);
                return;
        }
        m = message_new(body, names, fds, n_fds);
        if (!m || s->n_queued >= QUEUE_MAX) {
                log_warning("The controller doesn't read, or memory is short: closing its connection.");
                if (m)
                        message_free(m);
                disconnect(s);
                return;
        }
        *s->end = m;
        s->end = &m->next;
        s->n_queued++;
        server_flush(s);
}

uint64_t server_connection(const Server *s) {
        return s->fd >= 0 ? s->last_connection : 0;
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Server *s = userdata;
        uint64_t connection = s->last_connection;

        if (revents & EPOLLOUT)
                server_flush(s);
        for (int i = 0; i < REQUESTS_PER_TURN; i++) {
                struct control_message m = {};
                int r;

                /* A request's handler may have lost the connection. */
                if (s->fd < 0 || s->last_connection != connection)
                        return 0;
                r = control_recv(s->fd, &m);
                if (r == -EAGAIN || r == -EINTR)
                        return 0;
                if (r <= 0) {
                        if (r < 0)
                                log_warning_errno(r, "The controller's message can't be understood");
                        disconnect(s);
                        return 0;
                }
                s->callbacks->request(&m, s->userdata);
                control_message_done(&m);
        }
        return 0;
}

/* The newest wins: the one before may be a controller that was stopped, and whose successor is this one. */
static int on_connection(sd_event_source *source, int listen_fd, uint32_t revents, void *userdata) {
        _cleanup_close_ int fd = -1;
        Server *s = userdata;
        int size = CONTROL_MESSAGE_MAX, r;
        uid_t uid;

        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
                return 0;
        r = control_peer_uid(fd, &uid);
        if (r < 0 || uid != 0) {
                log_warning("Turned away a controller that isn't root.");
                return 0;
        }
        if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
                (void) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));

        disconnect(s);
        r = sd_event_add_io(sd_event_source_get_event(source), &s->source, fd, EPOLLIN, on_io, s);
        if (r < 0)
                return log_warning_errno(r, "Can't serve the controller"), 0;
        s->fd = TAKE_FD(fd);
        s->last_connection++;
        s->callbacks->connected(s->userdata);
        return 0;
}

int server_new(sd_event *event, int listen_fd, const struct server_callbacks *callbacks, void *userdata,
               Server **ret) {
        _cleanup_(server_freep) Server *s = calloc(1, sizeof(*s));
        int r;

        if (!s) {
                close_fd(listen_fd);
                return -ENOMEM;
        }
        s->listen_fd = listen_fd;
        s->fd = -1;
        s->end = &s->first;
        s->callbacks = callbacks;
        s->userdata = userdata;
        r = sd_event_add_io(event, &s->listen_source, listen_fd, EPOLLIN, on_connection, s);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

void server_free(Server *s) {
        if (!s)
                return;
        disconnect(s);
        sd_event_source_disable_unref(s->listen_source);
        close_fd(s->listen_fd);
        free(s);
}
