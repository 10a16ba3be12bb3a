/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The registry of everything that the daemon has, and the one event loop. Owned by main(). */

#include <sys/queue.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include "conf.h"
#include "host.h"
#include "sandboxd-names.h"
#include "util.h"

struct callers;
struct forgetting;
struct job;
struct process;
struct sandbox;
struct snapshots;
struct template;
struct units;
struct worker;

#define RUNTIME_PATH "/run/sandboxd"

LIST_HEAD(sandbox_list, sandbox);
LIST_HEAD(template_list, template);
LIST_HEAD(job_list, job);
LIST_HEAD(forgetting_list, forgetting);

struct manager {
        sd_event *event;
        sd_bus *bus;
        struct conf *conf;
        struct host *host;
        char **missing_controllers; /* that the configuration lets be missing */
        const char *fail_rung;      /* $SANDBOXD_FAIL: the rung of every creation that is made to fail, for tests */

        struct callers *callers;
        unsigned n_guarded;   /* reads of properties that are under way, see guard.c */
        unsigned n_questions; /* to polkit */
        struct units *units;
        struct worker *maker;   /* creates and records; each a process of its own, so that a slow removal */
        struct worker *sweeper; /* delays no creation */
        struct worker *reader;  /* reads the ledger */

        struct sandbox_list sandboxes;
        void *sandboxes_by_id; /* tsearch(3) tree */
        size_t n_sandboxes;
        struct sandbox *slots[SLOTS_MAX]; /* a slot is a uid and, later, a network */
        unsigned next_slot;               /* where the search for a free one goes on: none is reused at once */

        struct template_list templates;
        bool templates_unreadable; /* one or more on disk */
        struct job_list jobs;
        uint32_t last_job;
        struct forgetting_list forgettings;
};

/* Connects to the bus and exports the objects, but does not own the name yet: adopt first. */
int manager_new(struct conf *conf, struct host *host, struct manager **ret);
struct manager *manager_free(struct manager *m);
DEFINE_CLEANUP(struct manager *, manager_free)

/* Reads what is on disk and in systemd, takes over what lives, undoes what is half done, sweeps what nobody knows.
 * Returns when every living runner has answered or a second has passed. */
int manager_adopt(struct manager *m);

/* Own the name; now calls come in. */
int manager_serve(struct manager *m);

/* Living sandboxes of an owner, those that are being created or removed included. */
size_t manager_count_owner(struct manager *m, uid_t owner);
