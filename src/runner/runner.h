/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The program's one object, and how its parts hang together:
 *   main.c      arguments
 *   runner.c    life and end: signals, deadline, what the controller hears about both
 *   requests.c  what the controller asks for
 *   start.c     jail, VMM, agent: the ladder up
 *   capture.c   freeze, stop, device state
 * and below them, knowing nothing of it: server, jail, vmm (qmp, qemu-args), agent-channel, commands (source, sink) */

#include "agent-channel.h"
#include "command.h"
#include "control.h"
#include "jail.h"
#include "server.h"
#include "vmm.h"

typedef struct Runner Runner;

enum runner_state {
        RUNNER_WAITING, /* for "start" */
        RUNNER_STARTING,
        RUNNER_RUNNING,
        RUNNER_ENDING,
};

/* Who asked, and for an answer to what. */
struct request {
        uint64_t serial, connection;
};

/* What start.c keeps from "start" to its answer. */
struct start {
        struct request request;
        const char *rung; /* being climbed */
        bool boot;
        bool resize; /* the disk is to be enlarged once the machine runs */
        struct agent_setup setup;
        char hostname[65];
        uint64_t agent_timeout_usec;
        uint64_t began_nsec, jailed_nsec, up_nsec; /* CLOCK_MONOTONIC */
};

/* What capture.c keeps; request.serial is 0 without one. */
struct capture {
        struct request request;
        int devices_fd;
        int64_t fdset;
        uint64_t began_nsec, frozen_nsec, stopped_nsec;
};

struct Runner {
        sd_event *event;
        const char *id;
        enum runner_state state;
        enum control_exit exit_status;

        Server *server;
        Jail *jail; /* until entered */
        int jail_error;
        const char *jail_what;
        Vmm *vmm;
        AgentChannel *agent;
        Commands *commands;

        struct start start;
        struct capture capture;
        json_t *receipt; /* once running */

        uint64_t deadline_usec; /* CLOCK_BOOTTIME, 0: none */
        sd_event_source *deadline, *hangup;
};

/* runner.c */
int runner_new(const char *id, int listen_fd, Runner **ret);
void runner_free(Runner *r);
DEFINE_CLEANUP(Runner *, runner_free)
int runner_loop(Runner *r);
int runner_set_deadline(Runner *r, uint64_t usec);
/* Kills the VMM, tells the controller, leaves the loop. message: for people. */
void runner_end(Runner *r, enum control_exit status, const char *message);
/* The connections to guest and QEMU are of no use any more. */
void runner_agent_broken(Runner *r, bool closed, const char *message);
void runner_vmm_broken(Runner *r, bool closed, const char *message);
extern const struct commands_callbacks commands_callbacks;
/* extra is taken over and may be NULL. */
void runner_reply(Runner *r, const struct request *request, int error, const char *message, json_t *extra);

/* requests.c */
void requests_handle(Runner *r, struct control_message *m);

/* start.c */
void start_begin(Runner *r, struct control_message *m, const struct request *request);
/* The start won't come to an end: answers it. Returns false when it isn't going on. */
bool start_fail(Runner *r, int error, const char *message);

/* capture.c */
void capture_begin(Runner *r, struct control_message *m, const struct request *request);
void capture_frozen(Runner *r, int error);
