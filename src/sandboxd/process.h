/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A command of a sandbox, from its execve to the caller's last look at how it ended. */

#include "sandbox.h"

struct process {
        LIST_ENTRY(process) processes;
        struct sandbox *sandbox;
        uint32_t id;
        char **argv;
        char *user;
        uint32_t pid; /* in the guest */
        uint64_t started_usec, ended_usec;
        bool ended;
        char *result; /* as in Process.Wait; NULL while it runs */
        int status;   /* -1 while it runs */
        uint64_t cpu_usec, memory_peak;
        uint32_t leftovers;
        sd_bus_message **wait_calls;
        size_t n_wait_calls;
        sd_bus_message *run_call; /* Sandbox.Run, to be replied to with the output */
};

/* Ended ones that are kept of a sandbox. */
#define PROCESSES_KEPT 64U

int process_new(struct sandbox *s, uint32_t id, struct process **ret);
/* Tells the bus of it, once it is filled in. */
void process_announce(struct process *p);
struct process *process_free(struct process *p);
struct process *process_by_id(struct sandbox *s, uint32_t id);

/* The runner's event. */
void process_exited(struct sandbox *s, struct control_message *m);
/* What the runner's hello says of the commands that were started before this process was. */
void processes_resume(struct sandbox *s, json_t *list);
/* At the daemon's end: what waits for records to be written. */
void forgettings_free(struct manager *m);
/* The machine is gone: nothing of it runs. */
void processes_lost(struct sandbox *s);

/* Signals one command, or with process NULL all, and replies to the call. */
int process_signal(struct sandbox *s, struct process *p, int signal, bool tree, sd_bus_message *call,
                   sd_bus_error *error);

/* process-exec.c: Sandbox.Exec and Sandbox.Run, after authorization */
struct call;
int process_exec(struct call *c, sd_bus_error *error);
int process_run(struct call *c, sd_bus_error *error);
/* Replies to Sandbox.Run with what was captured. */
void process_run_reply(struct process *p, struct control_message *m);

/* process-bus.c */
extern const sd_bus_vtable process_vtable[];
int process_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret,
                 sd_bus_error *error);
int process_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error);
void process_path(const struct process *p, char ret[96]);
