/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "runner.h"

#include "log.h"
#include "machine.h"

static void close_spec(struct command_spec *s) {
        for (size_t i = 0; i < ELEMENTSOF(s->fds); i++)
                close_fd(s->fds[i]);
        strv_free(s->argv);
        strv_free(s->environment);
}

/* A JSON array of strings; NULL is an empty one. */
static int string_array(json_t *array, char ***ret) {
        _cleanup_strv_free_ char **l = NULL;
        json_t *value;
        size_t i;
        int r;

        if (array && !json_is_array(array))
                return -EINVAL;
        if (json_array_size(array) > AGENT_STRINGS_MAX)
                return -E2BIG;
        l = calloc(json_array_size(array) + 1, sizeof(char *));
        if (!l)
                return -ENOMEM;
        json_array_foreach (array, i, value) {
                const char *s = json_string_value(value);

                if (!s || strlen(s) != json_string_length(value))
                        return -EINVAL;
                l[i] = strdup(s);
                if (!l[i])
                        return -ENOMEM;
        }
        r = 0;
        *ret = TAKE_PTR(l);
        return r;
}

static int parse_exec(json_t *body, struct command_spec *s) {
        json_int_t process, timeout_usec = 0, capture = 0;
        json_t *argv, *environment = NULL;
        int r;

        if (json_unpack(body, "{s:I, s:o, s?o, s?s, s?s, s?I, s?I}", "process", &process, "argv", &argv, "environment",
                        &environment, "user", &s->user, "directory", &s->directory, "timeout_usec", &timeout_usec,
                        "capture", &capture) < 0)
                return -EINVAL;
        if (process < 1 || timeout_usec < 0 || capture < 0 || capture > (json_int_t) CAPTURE_MAX)
                return -EINVAL;
        s->label = json_object_get(body, "label");
        s->process = (uint64_t) process;
        s->timeout_usec = (uint64_t) timeout_usec;
        s->capture = (uint64_t) capture;
        r = string_array(argv, &s->argv);
        if (r >= 0)
                r = string_array(environment, &s->environment);
        if (r < 0)
                return r;
        return s->argv[0] ? 0 : -EINVAL;
}

static void handle_exec(Runner *r, struct control_message *m, const struct request *request) {
        struct command_spec spec = {
                .serial = request->serial,
                .connection = request->connection,
                .fds = { control_message_take_fd(m, "stdin"), control_message_take_fd(m, "stdout"),
                         control_message_take_fd(m, "stderr") },
        };
        int error;

        if (r->state != RUNNER_RUNNING || !agent_channel_is_open(r->agent))
                error = -ENOTCONN;
        else
                error = parse_exec(m->body, &spec);
        if (error >= 0)
                error = commands_exec(r->commands, &spec);
        close_spec(&spec);
        if (error < 0)
                runner_reply(r, request, error, NULL, NULL);
}

static void handle_signal(Runner *r, struct control_message *m, const struct request *request) {
        json_int_t process, number;
        int tree = 0, error;

        if (json_unpack(m->body, "{s:I, s:I, s?b}", "process", &process, "signal", &number, "tree", &tree) < 0 ||
            process < 0 || number < 1 || number > 64)
                error = -EINVAL;
        else if (r->state != RUNNER_RUNNING)
                error = -ENOTCONN;
        else
                error = commands_signal(r->commands, (uint64_t) process, (uint32_t) number, tree);
        runner_reply(r, request, error, NULL, NULL);
}

static void handle_forget(Runner *r, struct control_message *m, const struct request *request) {
        json_int_t process;
        int error;

        if (json_unpack(m->body, "{s:I}", "process", &process) < 0 || process < 1)
                error = -EINVAL;
        else
                error = r->commands ? commands_forget(r->commands, (uint64_t) process) : -ESRCH;
        runner_reply(r, request, error, NULL, NULL);
}

static void handle_ttl(Runner *r, struct control_message *m, const struct request *request) {
        json_int_t usec;
        int error;

        if (json_unpack(m->body, "{s:I}", "deadline_usec", &usec) < 0 || usec < 0)
                error = -EINVAL;
        else
                error = runner_set_deadline(r, (uint64_t) usec);
        runner_reply(r, request, error, NULL, NULL);
}

static void handle_end(Runner *r, struct control_message *m, const struct request *request) {
        runner_end(r, CONTROL_EXIT_OK, "the controller ended it");
}

void requests_handle(Runner *r, struct control_message *m) {
        static const struct {
                const char *type;
                void (*handle)(Runner *r, struct control_message *m, const struct request *request);
        } table[] = {
                { "start", start_begin },    { "exec", handle_exec }, { "signal", handle_signal },
                { "forget", handle_forget }, { "ttl", handle_ttl },   { "capture", capture_begin },
                { "end", handle_end },
        };
        const char *type = json_string_value(json_object_get(m->body, "type"));
        const struct request request = {
                .serial = (uint64_t) json_integer_value(json_object_get(m->body, "serial")),
                .connection = server_connection(r->server),
        };

        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                if (streq(type, table[i].type))
                        return table[i].handle(r, m, &request);
        runner_reply(r, &request, -EOPNOTSUPP, "no such request", NULL);
}
