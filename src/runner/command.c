/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* One command. The guest says when it ends, but can't be relied on: a timeout is kept by the guest, which can kill the
 * whole tree, and a little later by us, who can only stop listening. */

#include "command.h"

#include <signal.h>

#include "log.h"
#include "tail.h"

/* How long the guest may be late with what the timeout should have done. */
#define BACKSTOP_USEC (10 * USEC_PER_SEC)
/* How long the readers of a killed command may stand still before the rest of its output is dropped. */
#define STALL_USEC (5 * USEC_PER_SEC)

static bool on_data(const void *data, size_t size, void *userdata) {
        Command *c = userdata;
        AgentChannel *a = commands_agent(c->commands);

        if (agent_put_frame(agent_channel_buffer(a), AGENT_DATA, AGENT_STDIN, c->stream, data, size) < 0)
                return false;
        agent_channel_flush(a);
        return true;
}

static bool on_ready(void *userdata) {
        Command *c = userdata;

        return c->state == COMMAND_RUNNING && !agent_channel_is_congested(commands_agent(c->commands));
}

static void send_channel(Command *c, enum agent_type type, enum agent_channel channel) {
        AgentChannel *a = commands_agent(c->commands);

        if (c->state != COMMAND_STARTING && c->state != COMMAND_RUNNING)
                return;
        (void) agent_put_frame(agent_channel_buffer(a), type, (uint16_t) channel, c->stream, NULL, 0);
        agent_channel_flush(a);
}

static void on_source_end(void *userdata) {
        send_channel(userdata, AGENT_EOF, AGENT_STDIN);
}

static const struct source_callbacks source_callbacks = { .data = on_data, .ready = on_ready, .end = on_source_end };

static void give_credit(Command *c, enum agent_channel channel, uint32_t bytes) {
        AgentChannel *a = commands_agent(c->commands);

        if (c->state != COMMAND_RUNNING)
                return;
        (void) agent_put_credit(agent_channel_buffer(a), c->stream, channel, bytes);
        agent_channel_flush(a);
}

static void on_stdout_passed(uint32_t bytes, void *userdata) {
        give_credit(userdata, AGENT_STDOUT, bytes);
}

static void on_stderr_passed(uint32_t bytes, void *userdata) {
        give_credit(userdata, AGENT_STDERR, bytes);
}

static void on_stdout_closed(void *userdata) {
        send_channel(userdata, AGENT_CLOSE, AGENT_STDOUT);
}

static void on_stderr_closed(void *userdata) {
        send_channel(userdata, AGENT_CLOSE, AGENT_STDERR);
}

static void maybe_exited(Command *c) {
        if (c->state != COMMAND_DRAINING)
                return;
        for (size_t i = 0; i < _OUTPUTS; i++)
                if (!sink_is_done(c->out[i]))
                        return;
        c->stall = sd_event_source_disable_unref(c->stall);
        c->state = COMMAND_EXITED;
        commands_exited(c->commands, c); /* may free c */
}

static void on_sink_done(void *userdata) {
        maybe_exited(userdata);
}

static const struct sink_callbacks sink_callbacks[_OUTPUTS] = {
        [OUT] = { .passed = on_stdout_passed, .closed = on_stdout_closed, .done = on_sink_done },
        [ERR] = { .passed = on_stderr_passed, .closed = on_stderr_closed, .done = on_sink_done },
};

static int make_output(Command *c, struct command_spec *spec, size_t i) {
        int fd = TAKE_FD(spec->fds[1 + i]), r;

        if (fd < 0 && spec->capture > 0) {
                r = capture_buffer_new(spec->capture, &c->capture[i]);
                if (r < 0)
                        return r;
        }
        return sink_new(commands_event(c->commands), fd, c->capture[i], &sink_callbacks[i], c, &c->out[i]);
}

static int send_exec(Command *c, const struct command_spec *spec) {
        AgentChannel *a = commands_agent(c->commands);
        struct agent_buffer *b = agent_channel_buffer(a);
        int r;

        r = agent_put_exec(b, c->stream, c->in ? AGENT_EXEC_STDIN : 0, spec->timeout_usec, strempty(spec->user),
                           strempty(spec->directory), (const char *const *) spec->argv,
                           (const char *const *) spec->environment);
        if (r < 0) {
                /* Only this frame failed; the channel is as before. */
                b->error = 0;
                return r == -EMSGSIZE ? -E2BIG : r;
        }
        agent_channel_flush(a);
        return 0;
}

int command_new(Commands *t, struct command_spec *spec, uint32_t stream, Command **ret) {
        _cleanup_(command_freep) Command *c = calloc(1, sizeof(*c));
        int r;

        if (!c)
                return -ENOMEM;
        c->commands = t;
        c->process = spec->process;
        c->stream = stream;
        c->timeout_usec = spec->timeout_usec;
        c->serial = spec->serial;
        c->connection = spec->connection;
        c->label = json_incref(spec->label);

        if (spec->fds[0] >= 0) {
                r = source_new(commands_event(t), TAKE_FD(spec->fds[0]), &source_callbacks, c, &c->in);
                if (r < 0)
                        return r;
        }
        for (size_t i = 0; i < _OUTPUTS; i++) {
                r = make_output(c, spec, i);
                if (r < 0)
                        return r;
        }
        r = send_exec(c, spec);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

void command_free(Command *c) {
        if (!c)
                return;
        sd_event_source_disable_unref(c->timer);
        sd_event_source_disable_unref(c->stall);
        source_free(c->in);
        for (size_t i = 0; i < _OUTPUTS; i++) {
                sink_free(c->out[i]);
                capture_buffer_free(c->capture[i]);
        }
        json_decref(c->label);
        free(c);
}

void command_abandon(Command *c) {
        for (size_t i = 0; i < _OUTPUTS; i++)
                sink_abandon(c->out[i]);
}

static void close_input(Command *c) {
        source_free(c->in);
        c->in = NULL;
}

static uint64_t progress(const Command *c) {
        return sink_progress(c->out[OUT]) + sink_progress(c->out[ERR]);
}

static int on_stall(sd_event_source *source, uint64_t usec, void *userdata) {
        Command *c = userdata;

        if (progress(c) != c->progress) {
                command_lose_patience(c);
                return 0;
        }
        log_debug("Nobody reads the output of process %llu, which was killed: dropping it.",
                  (unsigned long long) c->process);
        command_abandon(c);
        return 0;
}

/* A reader may take its time with the output of a command that comes to its end: a pager is one. But who kills a
 * command waits to see it gone, and the guest can't say that it is while its output is stuck. */
void command_lose_patience(Command *c) {
        c->stall = sd_event_source_disable_unref(c->stall);
        c->progress = progress(c);
        (void) sd_event_add_time_relative(commands_event(c->commands), &c->stall, CLOCK_BOOTTIME, STALL_USEC, 0,
                                          on_stall, c);
}

/* Ends it with what is known, and may free it; the client's stdin closes at once, the outputs when they have been
 * passed on. */
void command_end(Command *c, enum command_result result, uint32_t status) {
        c->result = result;
        c->status = status;
        c->state = COMMAND_DRAINING;
        close_input(c);
        for (size_t i = 0; i < _OUTPUTS; i++)
                if (!sink_has_ended(c->out[i]))
                        (void) sink_end(c->out[i]);
        c->timer = sd_event_source_disable_unref(c->timer);
        c->stall = sd_event_source_disable_unref(c->stall);
        if (c->killed && result != COMMAND_RESULT_CODE)
                command_lose_patience(c);
        commands_limit_waiting(c->commands);
        maybe_exited(c);
}

static int on_backstop(sd_event_source *source, uint64_t usec, void *userdata) {
        Command *c = userdata;
        AgentChannel *a = commands_agent(c->commands);

        log_warning("The guest didn't end process %llu at its timeout: giving it up.",
                    (unsigned long long) c->process);
        (void) agent_put_signal(agent_channel_buffer(a), c->stream, SIGKILL, AGENT_SIGNAL_TREE);
        agent_channel_flush(a);
        c->ghost = true;
        command_end(c, COMMAND_RESULT_TIMEOUT, SIGKILL);
        return 0;
}

static int arm(Command *c, uint64_t usec, sd_event_time_handler_t handler) {
        c->timer = sd_event_source_disable_unref(c->timer);
        return sd_event_add_time_relative(commands_event(c->commands), &c->timer, CLOCK_BOOTTIME, usec, 0, handler, c);
}

/* The guest is killing it now. */
static int on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        Command *c = userdata;

        c->killed = true;
        command_lose_patience(c);
        return arm(c, BACKSTOP_USEC, on_backstop);
}

static int handle_started(Command *c, const uint8_t *payload, size_t size) {
        struct agent_started started;
        int r = 0;

        if (c->state != COMMAND_STARTING || agent_get_started(payload, size, &started) < 0)
                return -EBADMSG;
        c->pid = started.pid;
        c->state = COMMAND_RUNNING;
        if (c->timeout_usec > 0)
                r = arm(c, MIN(c->timeout_usec, (uint64_t) INT64_MAX / 4), on_timeout);
        if (r < 0)
                return r;
        commands_started(c->commands, c, 0, NULL);
        if (c->in)
                source_kick(c->in);
        return 0;
}

/* Errno values that execve and the way to it can have; the guest might send anything. */
static int sane_error(uint32_t error) {
        return error > 0 && error < 200 ? -(int) error : -EPROTO;
}

static int handle_exec_failed(Command *c, const uint8_t *payload, size_t size) {
        _cleanup_free_ char *message = NULL;
        struct agent_status status;

        if (c->state != COMMAND_STARTING || agent_get_status(payload, size, &status) < 0)
                return -EBADMSG;
        message = text_sanitise(status.message.text, status.message.length, 200);
        commands_started(c->commands, c, sane_error(status.error), strempty(message)); /* frees c */
        return 0;
}

static int handle_exited(Command *c, const uint8_t *payload, size_t size) {
        static const enum command_result results[] = {
                [AGENT_EXIT_CODE] = COMMAND_RESULT_CODE,
                [AGENT_EXIT_SIGNAL] = COMMAND_RESULT_SIGNAL,
                [AGENT_EXIT_TIMEOUT] = COMMAND_RESULT_TIMEOUT,
        };
        struct agent_exited exited;

        if (c->state != COMMAND_RUNNING || agent_get_exited(payload, size, &exited) < 0)
                return -EBADMSG;
        if (exited.kind < AGENT_EXIT_CODE || exited.kind >= ELEMENTSOF(results) || exited.status > 255)
                return -EBADMSG;
        c->cpu_usec = exited.cpu_usec;
        c->memory_peak = exited.memory_peak;
        c->leftovers = exited.leftovers;
        if (exited.kind == AGENT_EXIT_TIMEOUT)
                c->killed = true;
        command_end(c, results[exited.kind], exited.status);
        return 0;
}

static int handle_output(Command *c, const struct agent_header *h, const uint8_t *payload) {
        Sink *s;

        if (c->state != COMMAND_RUNNING || (h->flags != AGENT_STDOUT && h->flags != AGENT_STDERR))
                return -EBADMSG;
        s = c->out[h->flags == AGENT_STDOUT ? OUT : ERR];
        return h->type == AGENT_DATA ? sink_add(s, payload, h->length) : sink_end(s);
}

static int handle_input(Command *c, const struct agent_header *h, const uint8_t *payload) {
        struct agent_credit credit;

        if (c->state != COMMAND_RUNNING || h->flags != AGENT_STDIN)
                return -EBADMSG;
        if (h->type == AGENT_CLOSE) {
                close_input(c);
                return 0;
        }
        if (agent_get_credit(payload, h->length, &credit) < 0)
                return -EBADMSG;
        return c->in ? source_add_credit(c->in, credit.bytes) : 0;
}

int command_frame(Command *c, const struct agent_header *h, const uint8_t *payload) {
        switch (h->type) {
        case AGENT_STARTED:
                return handle_started(c, payload, h->length);
        case AGENT_EXEC_FAILED:
                return handle_exec_failed(c, payload, h->length);
        case AGENT_DATA:
        case AGENT_EOF:
                return handle_output(c, h, payload);
        case AGENT_CREDIT:
        case AGENT_CLOSE:
                return handle_input(c, h, payload);
        case AGENT_EXITED:
                return handle_exited(c, payload, h->length);
        default:
                return -EBADMSG;
        }
}
