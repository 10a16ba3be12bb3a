/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Commands in the guest, from exec to the moment when the controller has recorded their exit.
 *
 * A command is over for the guest when it exits, but for the client only when its output has been passed on: in
 * between it drains. Its exit is announced after that, so whoever hears of it can rely on complete outputs. */

#include <jansson.h>
#include <systemd/sd-event.h>

#include "agent-channel.h"
#include "stream.h"

typedef struct Command Command;
typedef struct Commands Commands;

enum command_state {
        COMMAND_STARTING, /* EXEC was sent */
        COMMAND_RUNNING,
        COMMAND_DRAINING, /* exited, but a reader still has to take what it wrote */
        COMMAND_EXITED,   /* the exit is kept until the controller forgets it */
};

enum command_result {
        COMMAND_RESULT_NONE,
        COMMAND_RESULT_CODE,
        COMMAND_RESULT_SIGNAL,
        COMMAND_RESULT_TIMEOUT,
        COMMAND_RESULT_LOST, /* the machine ended first */
};

enum { OUT = 0, ERR = 1, _OUTPUTS = 2 };

struct Command {
        Commands *commands;
        Command *next;
        uint64_t process; /* the controller's number */
        uint32_t stream;  /* the guest's */
        uint32_t pid;     /* in the guest, 0: unknown */
        enum command_state state;
        enum command_result result;
        uint32_t status;
        uint64_t cpu_usec, memory_peak;
        uint32_t leftovers;

        bool ghost;  /* we gave it up, while the guest hasn't said that it ended */
        bool killed; /* somebody wants it gone: no patience with readers that stand still */

        Source *in;
        Sink *out[_OUTPUTS];
        CaptureBuffer *capture[_OUTPUTS];

        uint64_t timeout_usec;
        sd_event_source *timer; /* the timeout, then its backstop */
        sd_event_source *stall; /* killed: notices readers that stand still */
        uint64_t progress;      /* of the readers, when it was set */

        uint64_t serial, connection; /* of the request that started it, until that is answered */
        json_t *label;               /* the controller's, given back with what is said of the command; may be NULL */
};

struct command_spec {
        uint64_t process;
        char **argv, **environment;
        const char *user, *directory;
        uint64_t timeout_usec, capture;
        int fds[3]; /* stdin, stdout, stderr, or -1; taken over */
        uint64_t serial, connection;
        json_t *label;
};

struct commands_callbacks {
        /* The answer to exec: error is 0 or a negative errno, with a message. */
        void (*started)(Command *c, int error, const char *message, void *userdata);
        /* Its exit is complete. */
        void (*exited)(Command *c, void *userdata);
};

/* agent stays the caller's and outlives the table. */
int commands_new(sd_event *event, AgentChannel *agent, const struct commands_callbacks *callbacks, void *userdata,
                 Commands **ret);
void commands_free(Commands *t);
DEFINE_CLEANUP(Commands *, commands_free)

/* Returns 0 when the answer will come as started(), or a negative errno as the answer: -EINVAL for unfit descriptors,
 * -EEXIST, -EAGAIN for too many, -E2BIG. */
int commands_exec(Commands *t, struct command_spec *spec);
/* process 0: all of them. -ESRCH. */
int commands_signal(Commands *t, uint64_t process, uint32_t signal, bool tree);
int commands_forget(Commands *t, uint64_t process);
/* For the agent channel. */
int commands_frame(Commands *t, const struct agent_header *header, const uint8_t *payload);
void commands_drained(Commands *t);
/* The machine is gone: ends every command. */
void commands_lost(Commands *t);
/* Calls f with each command, the oldest last. */
void commands_foreach(Commands *t, void (*f)(Command *c, void *userdata), void *userdata);

/* What hello and process-exited say about it. NULL without memory. */
json_t *command_describe(const Command *c);

/* Between command.c and commands.c. */
int command_new(Commands *t, struct command_spec *spec, uint32_t stream, Command **ret);
void command_free(Command *c);
DEFINE_CLEANUP(Command *, command_free)
int command_frame(Command *c, const struct agent_header *header, const uint8_t *payload);
/* From now on readers that stand still are given up. */
void command_lose_patience(Command *c);
/* Drops what its readers haven't taken. */
void command_abandon(Command *c);
void command_end(Command *c, enum command_result result, uint32_t status);
sd_event *commands_event(Commands *t);
AgentChannel *commands_agent(Commands *t);
void commands_started(Commands *t, Command *c, int error, const char *message);
void commands_exited(Commands *t, Command *c);
/* Drops what waits in draining commands, the longest waiting first, while it is too much. */
void commands_limit_waiting(Commands *t);
