/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* systemd's units, asynchronously: transient scopes and services, their jobs and what they have used. Knows no
 * sandbox. */

#include <systemd/sd-bus.h>

#include "util.h"

struct units;

struct scope_spec {
        const char *name, *slice, *description;
        int pidfd;           /* its first process */
        uint64_t memory_max; /* bytes */
        uint64_t tasks_max;
        uint64_t cpu_usec_per_sec; /* microseconds of CPU per second; USEC_INFINITY: no limit */
        uint64_t runtime_max_usec; /* USEC_INFINITY: no limit */
        bool kvm;                  /* may open /dev/kvm */
};

struct service_spec {
        const char *name, *slice, *description;
        char *const *argv; /* argv[0] an absolute path */
};

struct unit_usage {
        uint64_t cpu_nsec;    /* UINT64_MAX: unknown */
        uint64_t memory_peak; /* UINT64_MAX: unknown */
        char result[32];      /* "success", "timeout", "oom-kill", …; empty: unknown */
};

/* error: 0 or a negative errno with a sentence. */
typedef void (*unit_handler_t)(int error, const char *message, void *userdata);
typedef void (*unit_usage_handler_t)(const struct unit_usage *usage, void *userdata);
/* A unit's properties changed: state as in ActiveState, and StatusText of a service (may be NULL). */
typedef void (*unit_watch_t)(const char *state, const char *status, const char *result, void *userdata);

/* Has a bus connection of its own: what callers ask of the daemon can't take the replies that it waits for. */
int units_new(sd_event *event, struct units **ret);
struct units *units_free(struct units *u);

/* The handlers are called exactly once, later. The unit of a scope stays referenced, so that what it used can still be
 * asked when its last process is gone, until units_release(). */
int units_start_scope(struct units *u, const struct scope_spec *spec, unit_handler_t handler, void *userdata);
int units_start_service(struct units *u, const struct service_spec *spec, unit_handler_t handler, void *userdata);
/* Stops it, waiting for its last process. A unit that isn't there is success. */
int units_stop(struct units *u, const char *name, unit_handler_t handler, void *userdata);
int units_usage(struct units *u, const char *name, unit_usage_handler_t handler, void *userdata);
void units_release(struct units *u, const char *name);
/* References a unit that an earlier process started: its reference went with it. */
void units_hold(struct units *u, const char *name);

/* Calls handler on each change of a service until the slot is unreferenced. */
int units_watch(struct units *u, const char *name, unit_watch_t handler, void *userdata, sd_bus_slot **ret);

/* At start only, waits: names of loaded units that match a pattern and aren't inactive. */
int units_list(struct units *u, const char *pattern, char ***ret);
