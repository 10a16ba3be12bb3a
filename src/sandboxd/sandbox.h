/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A sandbox: its machine, from the first rung of its creation to the last of its end. */

#include "control.h"
#include "manager.h"
#include "manifest.h"
#include "units.h"
#include "worker.h"

struct link;

enum sandbox_state {
        SANDBOX_CREATING, /* climbing the ladder; not handed out */
        SANDBOX_RUNNING,  /* commands can be run */
        SANDBOX_REMOVING, /* walking the ladder down */
        _SANDBOX_STATE_MAX,
};

/* The rungs of the ladder. Each has a begin and an undo; the order is that of the climb. */
enum sandbox_rung {
        RUNG_STORAGE, /* record, subvolume, disk */
        RUNG_UNIT,    /* runner and scope */
        RUNG_VMM,     /* jail, VMM and the agent's receipt */
        RUNG_RECORD,  /* on disk it is handed out: a crash after the reply loses neither it nor its usage */
        _RUNG_MAX,
};

LIST_HEAD(process_list, process);

/* What is asked of a sandbox at its creation, checked and with all defaults filled in. */
struct sandbox_spec {
        char *name; /* NULL: the id */
        uid_t owner;
        uint64_t ttl_usec;         /* 0: none */
        uint64_t runtime_max_usec; /* USEC_INFINITY: none */
        uint64_t memory_max;
        double cpus;
        uint64_t tasks_max;
        uint64_t disk_size;
        char *hostname; /* NULL: from name or id */
        char **environment;
        json_t *metadata;
};
void sandbox_spec_done(struct sandbox_spec *spec);

struct sandbox {
        LIST_ENTRY(sandbox) sandboxes;
        struct manager *manager;
        enum sandbox_state state;

        /* kept in the record */
        char id[ID_SIZE];
        unsigned slot;
        uid_t owner;
        char *name, *hostname;
        char *template_name, *template_version, *snapshot;
        uint64_t created_usec;       /* CLOCK_REALTIME */
        uint64_t deadline_boot_usec; /* CLOCK_BOOTTIME; 0: none */
        uint64_t runtime_max_usec;   /* USEC_INFINITY: none */
        uint64_t memory_max, tasks_max, disk_size;
        double cpus;
        char **environment;     /* the template's, then the caller's */
        char *user, *directory; /* the template's defaults for commands */
        json_t *metadata;
        uint64_t memory, disk; /* the machine as it was baked */
        unsigned machine_cpus, volumes;
        uint64_t generation;
        char machine_id[33], boot_token[33];
        pid_t leader;           /* the runner; 0: none yet */
        uint64_t leader_start;  /* its start time, since pids are used again */
        uint32_t n_commands;    /* started so far; the number of the last */
        uint64_t cpu_nsec_seen; /* used when the record was last written */
        bool handed_out;        /* its usage counts */

        /* the machine */
        char *unit, *slice;
        char *cgroup;
        int pidfd;
        sd_event_source *exit_source;
        bool exited;             /* the runner has; what it still says is its last words */
        const char *last_result; /* what those give as the reason; a literal */
        struct link *link;
        sd_event_source *reconnect;
        unsigned reconnects;
        int disk_fd, memory_fd, devices_fd; /* from the storage to the runner */
        json_t *receipt;
        uint64_t timings_usec[_RUNG_MAX];
        json_t *runner_timings;
        uint64_t total_usec;
        struct process_list processes;
        size_t n_running, n_ended;
        size_t n_starting; /* sent to the runner, not answered */
        size_t n_waits;    /* calls of Wait that are held */

        /* the ladder */
        unsigned rung;         /* how many are begun */
        bool climbing;         /* a begin is under way */
        bool ending;           /* on the way down, or as soon as the begin under way is over */
        uint64_t rung_started; /* CLOCK_MONOTONIC, ns */
        uint64_t climb_started;
        char *failure;      /* why the climb failed, with the rung's name */
        const char *result; /* why it ended, as in the ledger; a literal */
        uint64_t ended_usec;
        struct unit_usage usage;
        const char *usage_source;
        bool stopped; /* the unit was stopped and its usage read */
        sd_event_source *retry;

        sd_bus_message *create_call; /* to be replied to */
        sd_bus_message **remove_calls;
        size_t n_remove_calls;
};

const char *sandbox_state_to_string(enum sandbox_state state);

/* Makes it from template and starts to climb. call: replied to when it is usable or has failed and is undone. */
int sandbox_create(struct manager *m, struct template *t, struct sandbox_spec *spec, sd_bus_message *call,
                   sd_bus_error *error);
/* A bare one with an id, in the registry. slot < 0: any free one. */
int sandbox_new(struct manager *m, const char *id, int slot, struct sandbox **ret);
/* Out of the registry. Only once nothing of it is left, or at the daemon's own end. */
struct sandbox *sandbox_free(struct sandbox *s);

struct sandbox *sandbox_by_id(struct manager *m, const char *id);
/* By id, by a unique prefix of at least 4 characters, or by name; caller's own names first. Sets error. */
int sandbox_lookup(struct manager *m, uid_t caller, const char *id_or_name, struct sandbox **ret, sd_bus_error *error);

/* The one place where the state changes. */
void sandbox_set_state(struct sandbox *s, enum sandbox_state state);

/* sandbox-ladder.c */
void sandbox_climb(struct sandbox *s);
/* Ends it, for this reason (a literal); does nothing when it is ending already. */
void sandbox_end(struct sandbox *s, const char *result);
/* A later begin or undo calls these. message: NULL or why it failed. */
void sandbox_rung_begun(struct sandbox *s, int error, const char *message);
void sandbox_rung_undone(struct sandbox *s);

/* sandbox-machine.c: the rungs of unit and VMM */
int rung_unit_begin(struct sandbox *s);
int rung_unit_undo(struct sandbox *s);
int rung_vmm_begin(struct sandbox *s);
int rung_vmm_undo(struct sandbox *s);
/* Watches the runner of a sandbox that lives since before this process, and connects to it. */
int sandbox_attach(struct sandbox *s);
/* Start time of a process in clock ticks since boot. */
int process_start_time(pid_t pid, uint64_t *ret);

/* sandbox-record.c */
int sandbox_record_to_json(const struct sandbox *s, json_t **ret);
/* Into a sandbox that is new in the registry. -EBADMSG when a field is missing or wrong. */
int sandbox_record_load(struct manager *m, json_t *record, struct sandbox **ret);
/* Writes it again, later. handler may be NULL. */
int sandbox_record_save(struct sandbox *s, worker_handler_t handler, void *userdata);

/* usage.c: the record of a living or ended sandbox */
int sandbox_usage_to_json(struct sandbox *s, json_t **ret);

/* sandbox-bus.c */
extern const sd_bus_vtable sandbox_vtable[];
int sandbox_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret,
                 sd_bus_error *error);
int sandbox_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error);
void sandbox_path(const struct sandbox *s, char ret[64]);
void sandbox_changed(struct sandbox *s, const char *property);
