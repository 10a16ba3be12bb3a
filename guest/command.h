/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "agent.h"

struct command;

/* One of a command's outputs. */
struct output {
        struct source source; /* our end of the pipe */
        struct command *command;
        uint16_t channel;
        bool ended;      /* EOF was queued; what still comes is dropped */
        uint32_t credit; /* bytes that the host takes */
        /* Once the leader has exited: what was in the pipe then and is still to be sent. Bytes that leftover processes
         * write later aren't the command's, and could go on for ever. */
        uint32_t to_drain;
};

struct input {
        struct source source; /* our end of the pipe; -1: closed, by either side */
        struct command *command;
        uint8_t *data; /* what the pipe didn't take yet */
        size_t size, sent, allocated;
        uint32_t window; /* bytes that the host may still send */
        uint32_t owed;   /* bytes passed on, and not yet given back as credit */
        bool eof;        /* close when all is written */
};

struct command {
        struct command *next;
        uint32_t stream; /* 0: detached, no host listens */
        uint64_t number; /* of its cgroup */
        int cgroup_fd;
        pid_t pid; /* 0: reaped */
        int status;
        struct source report; /* errors until execve; -1: it was decided */
        struct input input;
        struct output outputs[2];
        uint64_t deadline;  /* of its timeout */
        uint64_t settle_by; /* after a kill of the tree: how long EXITED waits for the last process to vanish */
        bool started, timed_out, killed;
        bool over; /* EXITED or EXEC_FAILED was queued, or needn't be; only leftovers keep it */
};

#define COMMAND_IS_DETACHED(c) ((c)->stream == 0)

/* stream.c */
void input_init(struct input *in, struct command *c, int fd);
int input_add(struct input *in, const uint8_t *data, size_t size);
void input_finish(struct input *in);
void input_close(struct input *in);
void output_init(struct output *o, struct command *c, uint16_t channel, int fd);
void output_start(struct output *o);
void output_drain(struct output *o); /* the leader has exited */
void output_end(struct output *o);
void output_close(struct output *o);
int output_credit(struct output *o, uint32_t bytes);

/* command.c */
void command_output_ended(struct command *c);
