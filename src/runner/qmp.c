/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "qmp.h"

#include <stdio.h>

struct command {
        char *text;
        size_t size, sent;
        int fd;
        uint64_t id;
        qmp_reply_t reply;
        void *userdata;
        struct command *next;
};

struct Qmp {
        qmp_event_t event;
        void *userdata;
        bool greeted;
        uint64_t last_id;
        size_t n_commands;

        struct command *first;  /* in the order of their ids: waiting for an answer, then to be sent */
        struct command *unsent; /* the first of those that haven't been sent whole */

        char *buffer; /* an incomplete message */
        size_t used, allocated;
};

static void command_free(struct command *c) {
        if (!c)
                return;
        free(c->text);
        close_fd(c->fd);
        free(c);
}
DEFINE_CLEANUP(struct command *, command_free)

int qmp_new(qmp_event_t event, void *userdata, Qmp **ret) {
        _cleanup_(qmp_freep) Qmp *q = calloc(1, sizeof(*q));
        int r;

        if (!q)
                return -ENOMEM;
        q->event = event;
        q->userdata = userdata;
        /* QEMU reads this when it has come up: no need to wait for its greeting. */
        r = qmp_execute(q, "qmp_capabilities", NULL, -1, NULL, NULL);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(q);
        return 0;
}

void qmp_free(Qmp *q) {
        if (!q)
                return;
        while (q->first) {
                struct command *next = q->first->next;

                command_free(q->first);
                q->first = next;
        }
        free(q->buffer);
        free(q);
}

/* Steals arguments. The newline ends the command; JSON_COMPACT has none inside. */
static char *command_text(const char *name, json_t *arguments, uint64_t id, size_t *ret_size) {
        char *json, *text = NULL;
        json_t *object;
        int n;

        object = json_pack("{s:s, s:I, s:o*}", "execute", name, "id", (json_int_t) id, "arguments", arguments);
        if (!object)
                return NULL;
        json = json_dumps(object, JSON_COMPACT);
        json_decref(object);
        if (!json)
                return NULL;
        n = asprintf(&text, "%s\n", json);
        free(json);
        if (n < 0)
                return NULL;
        *ret_size = (size_t) n;
        return text;
}

int qmp_execute(Qmp *q, const char *name, json_t *arguments, int fd, qmp_reply_t reply, void *userdata) {
        _cleanup_(command_freep) struct command *c = calloc(1, sizeof(*c));

        if (!c || q->n_commands >= QMP_PENDING_MAX) {
                json_decref(arguments);
                close_fd(fd);
                return c ? -ENOBUFS : -ENOMEM;
        }
        c->fd = fd;
        c->id = ++q->last_id;
        c->reply = reply;
        c->userdata = userdata;
        c->text = command_text(name, arguments, c->id, &c->size);
        if (!c->text)
                return -ENOMEM;

        struct command **end = &q->first;

        while (*end)
                end = &(*end)->next;
        if (!q->unsent)
                q->unsent = c;
        *end = TAKE_PTR(c);
        q->n_commands++;
        return 0;
}

size_t qmp_output(Qmp *q, const char **ret_data, int *ret_fd) {
        struct command *c = q->unsent;

        if (!c)
                return 0;
        *ret_data = c->text + c->sent;
        *ret_fd = c->fd;
        return c->size - c->sent;
}

void qmp_output_sent(Qmp *q, size_t size) {
        struct command *c = q->unsent;

        if (!c || size == 0)
                return;
        c->fd = close_fd(c->fd);
        c->sent += MIN(size, c->size - c->sent);
        if (c->sent == c->size)
                q->unsent = c->next;
}

/* QEMU answers in order, so the id has to be the oldest one's. */
static int handle_reply(Qmp *q, json_t *message, json_t *result, json_t *error) {
        _cleanup_(command_freep) struct command *c = NULL;
        const char *text = NULL;

        if (!q->first || q->first == q->unsent)
                return -EBADMSG;
        if ((uint64_t) json_integer_value(json_object_get(message, "id")) != q->first->id)
                return -EBADMSG;
        if (error) {
                text = json_string_value(json_object_get(error, "desc"));
                if (!text)
                        return -EBADMSG;
        }

        c = q->first;
        q->first = c->next;
        q->n_commands--;
        if (c->reply)
                c->reply(result, text, c->userdata);
        /* Without its capabilities accepted QEMU obeys nothing. */
        return error && c->id == 1 ? -EBADMSG : 0;
}

static int handle_message(Qmp *q, json_t *message) {
        json_t *result, *error;
        const char *event;

        if (!json_is_object(message))
                return -EBADMSG;

        if (!q->greeted) {
                if (!json_is_object(json_object_get(message, "QMP")))
                        return -EBADMSG;
                q->greeted = true;
                q->event("", NULL, q->userdata);
                return 0;
        }

        event = json_string_value(json_object_get(message, "event"));
        if (!isempty(event)) {
                q->event(event, json_object_get(message, "data"), q->userdata);
                return 0;
        }

        result = json_object_get(message, "return");
        error = json_object_get(message, "error");
        if (!result == !error)
                return -EBADMSG;
        return handle_reply(q, message, result, error);
}

static int handle_line(Qmp *q, const char *line, size_t size) {
        json_t *message;
        int r;

        while (size > 0 && (line[size - 1] == '\r' || line[size - 1] == ' '))
                size--;
        if (size == 0)
                return 0;
        message = json_loadb(line, size, 0, NULL);
        if (!message)
                return -EBADMSG;
        r = handle_message(q, message);
        json_decref(message);
        return r;
}

static int keep(Qmp *q, const char *data, size_t size) {
        if (size == 0)
                return 0;
        if (size > QMP_MESSAGE_MAX - q->used)
                return -EMSGSIZE;
        if (q->allocated - q->used < size) {
                size_t allocated = MAX(q->used + size, MAX(q->allocated * 2, 4096U));
                char *p = realloc(q->buffer, allocated);

                if (!p)
                        return -ENOMEM;
                q->buffer = p;
                q->allocated = allocated;
        }
        memcpy(q->buffer + q->used, data, size);
        q->used += size;
        return 0;
}

int qmp_feed(Qmp *q, const void *data, size_t size) {
        const char *p = data, *end = p + size, *newline;
        int r;

        while (p < end && (newline = memchr(p, '\n', (size_t) (end - p)))) {
                r = keep(q, p, (size_t) (newline - p));
                if (r < 0)
                        return r;
                r = handle_line(q, q->buffer, q->used);
                q->used = 0;
                if (r < 0)
                        return r;
                p = newline + 1;
        }
        return p < end ? keep(q, p, (size_t) (end - p)) : 0;
}
