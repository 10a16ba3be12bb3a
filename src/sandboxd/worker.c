/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "worker.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "log.h"

extern char **environ;

struct request {
        TAILQ_ENTRY(request) queue;
        json_t *body;
        worker_handler_t handler;
        void *userdata;
};

struct worker {
        sd_event *event;
        int fd;
        pid_t pid;
        sd_event_source *source;
        TAILQ_HEAD(, request) waiting; /* the first is with the process */
        bool busy;
};

static int on_io(sd_event_source *source, int fd, uint32_t events, void *userdata);

int worker_new(sd_event *event, struct worker **ret) {
        struct worker *w = calloc(1, sizeof(*w));

        if (!w)
                return -ENOMEM;
        w->event = event;
        w->fd = -1;
        TAILQ_INIT(&w->waiting);
        *ret = w;
        return 0;
}

static void request_free(struct request *q) {
        json_decref(q->body);
        free(q);
}

static void hang_up(struct worker *w) {
        w->source = sd_event_source_disable_unref(w->source);
        w->fd = close_fd(w->fd);
        if (w->pid > 0) {
                kill(w->pid, SIGKILL);
                (void) waitpid(w->pid, NULL, 0);
                w->pid = 0;
        }
        w->busy = false;
}

struct worker *worker_free(struct worker *w) {
        struct request *q;

        if (!w)
                return NULL;
        hang_up(w);
        while ((q = TAILQ_FIRST(&w->waiting))) {
                TAILQ_REMOVE(&w->waiting, q, queue);
                request_free(q);
        }
        free(w);
        return NULL;
}

/* The program once more, as "sandboxd --worker", with the socket as its standard input. It ends with the connection.
 */
static int start_process(struct worker *w) {
        static char *const argv[] = { (char *) "sandboxd", (char *) "--worker", NULL };
        _cleanup_close_ int ours = -1, theirs = -1;
        posix_spawn_file_actions_t actions;
        int fds[2], size = CONTROL_MESSAGE_MAX, r;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
                return -errno;
        ours = fds[0];
        theirs = fds[1];
        (void) setsockopt(ours, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
        r = -posix_spawn(&w->pid, "/proc/self/exe", &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        if (r < 0) {
                w->pid = 0;
                return r;
        }
        r = sd_event_add_io(w->event, &w->source, ours, EPOLLIN, on_io, w);
        if (r < 0)
                return r;
        w->fd = TAKE_FD(ours);
        return 0;
}

/* Hands the first waiting request to the process. */
static int send_next(struct worker *w) {
        struct request *q = TAILQ_FIRST(&w->waiting);
        int r;

        if (!q || w->busy)
                return 0;
        if (w->fd < 0) {
                r = start_process(w);
                if (r < 0)
                        return log_error_errno(r, "Failed to start the storage worker");
        }
        r = control_send(w->fd, q->body, NULL, NULL, 0);
        if (r < 0)
                return log_error_errno(r, "Failed to send to the storage worker");
        w->busy = true;
        return 0;
}

static void finish(struct worker *w, int error, const char *message, struct control_message *reply) {
        struct request *q = TAILQ_FIRST(&w->waiting);

        if (!q)
                return;
        TAILQ_REMOVE(&w->waiting, q, queue);
        w->busy = false;
        if (q->handler)
                q->handler(error, message, reply, q->userdata);
        else if (error < 0)
                log_error("%s", message);
        request_free(q);
}

static int on_io(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        struct worker *w = userdata;
        struct control_message m = {};
        int r;

        r = control_recv(fd, &m);
        if (r == -EAGAIN)
                return 0;
        if (r <= 0) {
                bool was_busy = w->busy;

                log_error("The storage worker ended unexpectedly");
                hang_up(w);
                if (was_busy)
                        finish(w, -EIO, "The storage worker ended unexpectedly", NULL);
        } else {
                int error = -(int) json_integer_value(json_object_get(m.body, "error"));

                finish(w, error, strempty(json_string_value(json_object_get(m.body, "message"))),
                       error < 0 ? NULL : &m);
                control_message_done(&m);
        }
        while (send_next(w) < 0)
                finish(w, -EIO, "The storage worker can't be reached", NULL);
        return 0;
}

int worker_call(struct worker *w, json_t *body, worker_handler_t handler, void *userdata) {
        struct request *q = calloc(1, sizeof(*q));

        if (!q || !body || json_object_set_new(body, "type", json_string("request")) < 0) {
                free(q);
                json_decref(body);
                return -ENOMEM;
        }
        *q = (struct request){ .body = body, .handler = handler, .userdata = userdata };
        TAILQ_INSERT_TAIL(&w->waiting, q, queue);
        if (w->busy || TAILQ_FIRST(&w->waiting) != q)
                return 0;
        if (send_next(w) < 0) {
                TAILQ_REMOVE(&w->waiting, q, queue);
                request_free(q);
                return -EIO;
        }
        return 0;
}
