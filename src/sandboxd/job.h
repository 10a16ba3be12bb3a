/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Something that takes long and runs as a unit of its own: a bake. The unit goes on without this process; a later one
 * finds it by its name. */

#include "manager.h"

struct job {
        LIST_ENTRY(job) jobs;
        struct manager *manager;
        uint32_t id;
        char *target; /* template */
        char *unit;
        uid_t owner;
        double progress;
        char *status;
        bool active; /* the unit was seen running */
        bool canceling;
        const char *result; /* as in JobRemoved, a literal; NULL: not over */
        char *error;
        sd_bus_slot *watch;
        sd_bus_message *start_call; /* to be replied to when the unit runs */
        sd_bus_message **cancel_calls;
        size_t n_cancel_calls;
};

/* Starts a bake; call is replied to with the job's path. */
int job_start_bake(struct manager *m, const char *name, bool force, uid_t owner, sd_bus_message *call,
                   sd_bus_error *error);
/* Takes over a bake's unit that runs already. */
int job_adopt(struct manager *m, const char *unit);
int job_cancel(struct job *j, sd_bus_message *call);
void jobs_free(struct manager *m);
struct job *job_by_target(struct manager *m, const char *target);
void job_path(const struct job *j, char ret[64]);

/* "NN% text" → fraction and text; anything else is all text. Pure. */
const char *job_parse_status(const char *text, double *ret_progress);

extern const sd_bus_vtable job_vtable[];
int job_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret, sd_bus_error *error);
int job_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error);
