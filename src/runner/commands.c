/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The table of commands. Two bounds keep a careless client from filling the sandbox's memory through us: a number of
 * exits that are remembered, and the bytes that wait for readers of commands that have ended. */

#include <signal.h>

#include "command.h"
#include "log.h"

#define EXITS_MAX 1024
#define WAITING_MAX (16U * 1024U * 1024U)

struct Commands {
        sd_event *event;     /* borrowed */
        AgentChannel *agent; /* borrowed */
        const struct commands_callbacks *callbacks;
        void *userdata;
        Command *first; /* the newest */
        uint32_t last_stream;
        size_t n_live, n_exited;
        bool ending;
};

int commands_new(sd_event *event, AgentChannel *agent, const struct commands_callbacks *callbacks, void *userdata,
                 Commands **ret) {
        Commands *t = calloc(1, sizeof(*t));

        if (!t)
                return -ENOMEM;
        t->event = event;
        t->agent = agent;
        t->callbacks = callbacks;
        t->userdata = userdata;
        *ret = t;
        return 0;
}

void commands_free(Commands *t) {
        if (!t)
                return;
        while (t->first) {
                Command *next = t->first->next;

                command_free(t->first);
                t->first = next;
        }
        free(t);
}

sd_event *commands_event(Commands *t) {
        return t->event;
}

AgentChannel *commands_agent(Commands *t) {
        return t->agent;
}

static Command *find(Commands *t, uint64_t process) {
        for (Command *c = t->first; c; c = c->next)
                if (c->process == process)
                        return c;
        return NULL;
}

static void remove_command(Commands *t, Command *c) {
        Command **p = &t->first;

        while (*p != c)
                p = &(*p)->next;
        *p = c->next;
        if (c->state == COMMAND_EXITED)
                t->n_exited--;
        else
                t->n_live--;
        command_free(c);
}

int commands_exec(Commands *t, struct command_spec *spec) {
        Command *c;
        int r;

        if (find(t, spec->process))
                return -EEXIST;
        if (t->n_live >= AGENT_COMMANDS_MAX || t->last_stream == UINT32_MAX || agent_channel_is_congested(t->agent))
                return -EAGAIN;
        r = command_new(t, spec, t->last_stream + 1, &c);
        if (r < 0)
                return r;
        t->last_stream++;
        t->n_live++;
        c->next = t->first;
        t->first = c;
        return 0;
}

static void signal_one(Commands *t, Command *c, uint32_t signal, bool tree) {
        if (signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP)
                c->killed = true;
        if (signal == SIGKILL && c->state == COMMAND_RUNNING)
                command_lose_patience(c);
        /* All that is left to kill is the delivery of its output. */
        if (c->state == COMMAND_DRAINING && signal == SIGKILL)
                command_abandon(c);
        else if (c->state < COMMAND_DRAINING)
                (void) agent_put_signal(agent_channel_buffer(t->agent), c->stream, signal,
                                        tree ? AGENT_SIGNAL_TREE : 0);
}

int commands_signal(Commands *t, uint64_t process, uint32_t signal, bool tree) {
        Command *c;

        if (process != 0) {
                c = find(t, process);
                if (!c || c->state == COMMAND_EXITED)
                        return -ESRCH;
                signal_one(t, c, signal, tree);
        } else
                for (c = t->first; c; c = c->next)
                        signal_one(t, c, signal, tree);
        agent_channel_flush(t->agent);
        return 0;
}

int commands_forget(Commands *t, uint64_t process) {
        Command *c = find(t, process);

        if (!c)
                return -ESRCH;
        if (c->state != COMMAND_EXITED)
                return -EBUSY;
        /* While the guest may still speak on its stream, somebody has to listen. */
        if (c->ghost)
                c->process = 0;
        else
                remove_command(t, c);
        return 0;
}

int commands_frame(Commands *t, const struct agent_header *h, const uint8_t *payload) {
        Command *c = t->first;

        while (c && (c->stream != h->stream || (c->state > COMMAND_RUNNING && !c->ghost)))
                c = c->next;
        if (!c)
                return -EBADMSG;
        if (!c->ghost)
                return command_frame(c, h, payload);

        if (h->type == AGENT_EXITED) {
                c->ghost = false;
                if (c->process == 0)
                        remove_command(t, c);
        }
        return 0;
}

void commands_drained(Commands *t) {
        for (Command *c = t->first; c; c = c->next)
                if (c->in)
                        source_kick(c->in);
}

void commands_started(Commands *t, Command *c, int error, const char *message) {
        t->callbacks->started(c, error, message, t->userdata);
        if (error < 0)
                remove_command(t, c);
}

/* The oldest is the last of its kind in the list. */
static Command *oldest(Commands *t, enum command_state state) {
        Command *found = NULL;

        for (Command *c = t->first; c; c = c->next)
                if (c->state == state && !(c->ghost && state == COMMAND_EXITED))
                        found = c;
        return found;
}

void commands_exited(Commands *t, Command *c) {
        t->n_live--;
        t->n_exited++;
        t->callbacks->exited(c, t->userdata);
        if (t->n_exited <= EXITS_MAX || t->ending)
                return;
        c = oldest(t, COMMAND_EXITED);
        if (!c)
                return;
        log_warning("Nobody recorded the exit of process %llu, and there are too many: forgetting it.",
                    (unsigned long long) c->process);
        remove_command(t, c);
}

void commands_limit_waiting(Commands *t) {
        Command *c;
        size_t waiting;

        for (;;) {
                waiting = 0;
                for (c = t->first; c; c = c->next)
                        if (c->state == COMMAND_DRAINING)
                                waiting += sink_waiting(c->out[OUT]) + sink_waiting(c->out[ERR]);
                if (waiting <= WAITING_MAX)
                        return;

                Command *victim = NULL;
                for (c = t->first; c; c = c->next)
                        if (c->state == COMMAND_DRAINING && sink_waiting(c->out[OUT]) + sink_waiting(c->out[ERR]) > 0)
                                victim = c;
                log_warning("Output of process %llu and others waits for readers that don't read: dropping its rest.",
                            (unsigned long long) victim->process);
                command_abandon(victim);
        }
}

/* Whoever waits for a reader still has a moment ago's result: that one stands. Nothing is waited for. */
void commands_lost(Commands *t) {
        t->ending = true;
        for (Command *c = t->first, *next; c; c = next) {
                next = c->next;
                if (c->state == COMMAND_STARTING) {
                        commands_started(t, c, -ECONNRESET, "the machine ended");
                        continue;
                }
                if (c->state == COMMAND_RUNNING)
                        command_end(c, COMMAND_RESULT_LOST, 0);
                if (c->state == COMMAND_EXITED)
                        continue;
                command_abandon(c);
                c->state = COMMAND_EXITED;
                commands_exited(t, c);
        }
}

void commands_foreach(Commands *t, void (*f)(Command *c, void *userdata), void *userdata) {
        for (Command *c = t->first, *next; c; c = next) {
                next = c->next;
                if (c->process != 0)
                        f(c, userdata);
        }
}

static const char *const result_names[] = {
        [COMMAND_RESULT_NONE] = "",           [COMMAND_RESULT_CODE] = "exited", [COMMAND_RESULT_SIGNAL] = "signaled",
        [COMMAND_RESULT_TIMEOUT] = "timeout", [COMMAND_RESULT_LOST] = "lost",
};

/* Times and sizes come from the guest; JSON's integers are signed. */
static json_int_t integer(uint64_t u) {
        return (json_int_t) MIN(u, (uint64_t) INT64_MAX);
}

json_t *command_describe(const Command *c) {
        json_t *o;

        if (c->state != COMMAND_EXITED)
                return json_pack("{s:I, s:s, s:I}", "process", integer(c->process), "state", "running", "pid",
                                 (json_int_t) c->pid);
        o = json_pack("{s:I, s:s, s:I, s:s, s:I, s:I, s:I, s:I}", "process", integer(c->process), "state", "exited",
                      "pid", (json_int_t) c->pid, "result", result_names[c->result], "status", (json_int_t) c->status,
                      "cpu_usec", integer(c->cpu_usec), "memory_peak", integer(c->memory_peak), "leftovers",
                      (json_int_t) c->leftovers);
        if (o && c->capture[OUT])
                (void) json_object_set_new(o, "stdout_size",
                                           json_integer(integer(capture_buffer_total(c->capture[OUT]))));
        if (o && c->capture[ERR])
                (void) json_object_set_new(o, "stderr_size",
                                           json_integer(integer(capture_buffer_total(c->capture[ERR]))));
        return o;
}
