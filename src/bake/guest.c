/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "guest.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "process.h"
#include "runner-spawn.h"

#define OUTPUT_SIZE 16384U
/* For what a runner does at once. */
#define REPLY_TIMEOUT_USEC (60 * USEC_PER_SEC)

void guest_exit_done(struct guest_exit *e) {
        free(e->result);
        free(e->output);
        *e = (struct guest_exit){};
}

struct guest *guest_free(struct guest *g) {
        char *slash;

        if (!g)
                return NULL;
        if (g->pid > 0) {
                (void) syscall(SYS_pidfd_send_signal, g->pidfd, SIGKILL, NULL, 0);
                while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
                        ;
        }
        close_fd(g->pidfd);
        close_fd(g->control_fd);
        close_fd(g->listen_fd);
        if (g->path) {
                (void) unlink(g->path);
                slash = strrchr(g->path, '/');
                *slash = 0;
                (void) rmdir(g->path);
        }
        free(g->path);
        for (size_t i = 0; i < g->n_exits; i++)
                guest_exit_done(&g->exits[i]);
        free(g->exits);
        free(g->ended);
        free(g);
        return NULL;
}

static int make_folders(const char *path) {
        _cleanup_free_ char *copy = strdup(path);

        if (!copy)
                return -ENOMEM;
        for (char *p = strchr(copy + 1, '/'); p; p = strchr(p + 1, '/')) {
                *p = 0;
                if (mkdir(copy, streq(copy, "/run/sandboxd") ? 0755 : 0700) < 0 && errno != EEXIST)
                        return -errno;
                *p = '/';
        }
        return 0;
}

int guest_new(int interrupt_fd, const char *program, const char *name, const char *id, struct guest **ret) {
        _cleanup_(guest_freep) struct guest *g = calloc(1, sizeof(*g));
        int r;

        if (!g)
                return -ENOMEM;
        g->interrupt_fd = interrupt_fd;
        g->listen_fd = g->control_fd = g->pidfd = -1;
        if (asprintf(&g->path, "/run/sandboxd/%s/control", name) < 0) {
                g->path = NULL;
                return -ENOMEM;
        }
        r = make_folders(g->path);
        if (r < 0)
                return r;
        g->listen_fd = control_listen(g->path);
        if (g->listen_fd < 0)
                return g->listen_fd;
        r = runner_spawn(program, id, g->listen_fd, &g->pid, &g->pidfd);
        if (r < 0)
                return r;
        g->control_fd = control_connect(g->path);
        if (g->control_fd < 0)
                return g->control_fd;
        *ret = TAKE_PTR(g);
        return 0;
}

/* Appends what a memfd of the runner's holds. */
static int append_output(char **output, int fd) {
        _cleanup_free_ char *text = malloc(OUTPUT_SIZE + 1), *joined = NULL;
        ssize_t n;

        if (!text)
                return -ENOMEM;
        n = fd < 0 ? 0 : pread(fd, text, OUTPUT_SIZE, 0);
        if (n < 0)
                return -errno;
        text[n] = 0;
        for (ssize_t i = 0; i < n; i++)
                if (!text[i])
                        text[i] = ' ';
        if (asprintf(&joined, "%s%s", strempty(*output), text) < 0) {
                joined = NULL;
                return -ENOMEM;
        }
        free(*output);
        *output = TAKE_PTR(joined);
        return 0;
}

static int remember_exit(struct guest *g, struct control_message *m) {
        _cleanup_close_ int out = control_message_take_fd(m, "stdout"), err = control_message_take_fd(m, "stderr");
        struct guest_exit *grown = reallocarray(g->exits, g->n_exits + 1, sizeof(*grown)), *e;
        const char *result = json_string_value(json_object_get(m->body, "result"));
        int r;

        if (!grown)
                return -ENOMEM;
        g->exits = grown;
        e = &grown[g->n_exits++];
        *e = (struct guest_exit){
                .process = (uint64_t) json_integer_value(json_object_get(m->body, "process")),
                .status = (uint64_t) json_integer_value(json_object_get(m->body, "status")),
                .result = strdup(result ?: "lost"),
        };
        r = append_output(&e->output, out);
        if (r >= 0)
                r = append_output(&e->output, err);
        return r < 0 || !e->result ? -ENOMEM : 0;
}

/* Takes the next message in. Returns 1 with a reply in *ret, 0 for anything else, -EAGAIN, or -ECONNRESET at the end.
 */
static int receive(struct guest *g, struct control_message *ret) {
        struct control_message m = {};
        const char *type, *message;
        int r;

        r = control_recv(g->control_fd, &m);
        if (r <= 0)
                return r == 0 ? -ECONNRESET : r;
        type = json_string_value(json_object_get(m.body, "type"));
        if (streq(type, "reply")) {
                *ret = m;
                return 1;
        }
        r = 0;
        if (streq(type, "process-exited"))
                r = remember_exit(g, &m);
        else if (streq(type, "ended") && !g->ended) {
                message = json_string_value(json_object_get(m.body, "message"));
                g->ended = strdup(message ?: "the machine ended");
        }
        control_message_done(&m);
        return r;
}

/* Waits for more. Returns 0, or -ETIMEDOUT, -ECANCELED. */
static int wait_more(struct guest *g, uint64_t until) {
        int r = interrupt_wait(g->interrupt_fd, g->control_fd, until);

        return r == 0 ? -ETIMEDOUT : MIN(r, 0);
}

static int take_reply(struct guest *g, struct control_message *m, char **ret_message) {
        json_int_t error = json_integer_value(json_object_get(m->body, "error"));
        const char *message = json_string_value(json_object_get(m->body, "message"));

        if (error != 0 && !isempty(message)) {
                *ret_message = strdup(message);
                if (!*ret_message)
                        return -ENOMEM;
        }
        /* Here this one means that the bake itself was asked to end. */
        return error == ECANCELED ? -ECONNABORTED : -(int) error;
}

static int lost(struct guest *g, char **ret_message) {
        *ret_message = strdup(g->ended ?: "the runner ended");
        return *ret_message ? -ECONNRESET : -ENOMEM;
}

int guest_call(struct guest *g, json_t *body, const char *const *names, const int *fds, size_t n_fds,
               uint64_t timeout_usec, char **ret_message) {
        uint64_t until = now_boottime_usec() + timeout_usec, serial = ++g->serial;
        int r = -ENOMEM;

        *ret_message = NULL;
        if (body && json_object_set_new(body, "serial", json_integer((json_int_t) serial)) >= 0)
                r = control_send(g->control_fd, body, names, fds, n_fds);
        json_decref(body);
        if (r == -EPIPE || r == -ECONNRESET)
                return lost(g, ret_message);
        while (r >= 0) {
                struct control_message m = {};

                r = receive(g, &m);
                if (r == -EAGAIN)
                        r = wait_more(g, until);
                else if (r == -ECONNRESET)
                        return lost(g, ret_message);
                else if (r > 0) {
                        bool mine = (uint64_t) json_integer_value(json_object_get(m.body, "serial")) == serial;

                        if (mine)
                                r = take_reply(g, &m, ret_message);
                        control_message_done(&m);
                        if (mine)
                                return r;
                }
        }
        return r;
}

static json_t *strings_to_json(char *const *list) {
        json_t *array = json_array();

        for (; array && list && *list; list++)
                if (json_array_append_new(array, json_string(*list)) < 0) {
                        json_decref(array);
                        return NULL;
                }
        return array;
}

static int exec(struct guest *g, const struct guest_command *c, size_t capture, uint64_t *ret_process,
                char **ret_message) {
        json_t *environment = strings_to_json(c->environment), *body;

        body = environment ? json_pack("{s:s, s:I, s:[s,s,s], s:o, s:s, s:s, s:I, s:I}", "type", "exec", "process",
                                       (json_int_t) ++g->process, "argv", "/bin/sh", "-c", c->text, "environment",
                                       environment, "user", strempty(c->user), "directory", strempty(c->directory),
                                       "timeout_usec", (json_int_t) c->timeout_usec, "capture", (json_int_t) capture)
                           : NULL;
        *ret_process = g->process;
        return guest_call(g, body, NULL, NULL, 0, REPLY_TIMEOUT_USEC, ret_message);
}

int guest_start(struct guest *g, const struct guest_command *c, uint64_t *ret_process, char **ret_message) {
        return exec(g, c, OUTPUT_SIZE, ret_process, ret_message);
}

/* Hands out the exit of a process when it is known. */
static bool take_exit(struct guest *g, uint64_t process, struct guest_exit *ret) {
        for (size_t i = 0; i < g->n_exits; i++)
                if (g->exits[i].process == process) {
                        *ret = g->exits[i];
                        g->exits[i] = g->exits[--g->n_exits];
                        return true;
                }
        return false;
}

int guest_has_ended(struct guest *g, uint64_t process, struct guest_exit *ret) {
        int r;

        do {
                struct control_message m = {};

                r = receive(g, &m);
                control_message_done(&m);
        } while (r >= 0);
        if (take_exit(g, process, ret))
                return 1;
        return r == -EAGAIN ? 0 : r;
}

int guest_run(struct guest *g, const struct guest_command *c, struct guest_exit *ret, char **ret_message) {
        uint64_t process, until;
        int r;

        r = exec(g, c, OUTPUT_SIZE, &process, ret_message);
        until = now_boottime_usec() + c->timeout_usec + REPLY_TIMEOUT_USEC;
        while (r >= 0) {
                r = guest_has_ended(g, process, ret);
                if (r > 0)
                        return 0;
                if (r == 0)
                        r = wait_more(g, until);
        }
        return r == -ECONNRESET && !*ret_message ? lost(g, ret_message) : r;
}
