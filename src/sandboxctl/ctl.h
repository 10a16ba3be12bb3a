/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the verbs share: the options, the bus, ways to ask the service and to say what went wrong. */

#include <jansson.h>
#include <stdio.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include "options.h"
#include "sandboxd-names.h"

/* Exit statuses of the verbs that run a command, besides the command's own. Other verbs end with 0 or 1. */
enum {
        EXIT_TIMED_OUT = 124,      /* --timeout passed */
        EXIT_OURS = 125,           /* the command couldn't be run, or its end isn't known */
        EXIT_NOT_EXECUTABLE = 126, /* it is there, but can't be executed */
        EXIT_NOT_FOUND = 127,      /* it isn't there */
        EXIT_SIGNALED = 128,       /* and the number of the signal */
};

/* A method may wait for a password, or for a machine that is slow to end: longer than sd-bus' own 25 s. */
#define CALL_TIMEOUT_USEC (300 * USEC_PER_SEC)

struct polkit_agent;

struct ctl {
        const struct options *options;
        sd_bus *bus;
        struct polkit_agent *agent; /* asks for passwords while it lives */
};

#define _cleanup_message_ _cleanup_(sd_bus_message_unrefp)
#define _cleanup_error_ _cleanup_(sd_bus_error_free)
#define _cleanup_slot_ _cleanup_(sd_bus_slot_unrefp)
static inline void json_unrefp(json_t **j) {
        json_decref(*j);
}
#define _cleanup_json_ _cleanup_(json_unrefp)

/* Opens the system bus, and starts an agent for passwords where somebody sits at a terminal. Complains itself. */
int ctl_connect(struct ctl *c);
void ctl_done(struct ctl *c);

/* A line on stderr, with nothing in it that a terminal obeys. Returns EXIT_FAILURE. */
int complain(const char *format, ...) _printf_(1, 2);
/* The same with what the service (or the bus, or errno r) said. Its sentence stands alone when it says what was
 * wanted. */
int complain_bus(const sd_bus_error *error, int r, const char *format, ...) _printf_(3, 4);
int complain_oom(void);

/* Is nobody there to answer: the service has never been there, or went away with the call? */
bool service_is_gone(const sd_bus_error *error);

/* A method of an object of the service, and a synchronous call of one. ret_reply may be NULL. */
int ctl_method(struct ctl *c, const char *path, const char *interface, const char *member, sd_bus_message **ret);
int ctl_call(struct ctl *c, const char *path, const char *interface, const char *member, sd_bus_error *error,
             sd_bus_message **ret_reply, const char *types, ...);
/* Object of a sandbox by id, prefix or name. Complains itself. */
int find_sandbox(struct ctl *c, const char *id_or_name, char **ret_path);

/* The name of a user, or the number where there's none. */
const char *user_name(uint64_t uid, char buffer[64]);

/* Where a verb prints: collected first, then shown by a pager if it's longer than the terminal is high. */
struct output {
        FILE *f;
        char *data;
        size_t size;
};
int output_begin(struct output *out);
/* Returns the exit status that follows from r, a negative errno or 0; prints nothing after an error. */
int output_end(struct output *out, const struct options *o, int r);

/* Verbs, by the file that has them. */
int verb_exec(struct ctl *c, char **arguments); /* exec.c */
int verb_run(struct ctl *c, char **arguments);
int verb_create(struct ctl *c, char **arguments); /* create.c */
int verb_ttl(struct ctl *c, char **arguments);    /* control.c */
int verb_kill(struct ctl *c, char **arguments);
int verb_remove(struct ctl *c, char **arguments);
int verb_list(struct ctl *c, char **arguments); /* list.c */
int verb_ps(struct ctl *c, char **arguments);
int verb_templates(struct ctl *c, char **arguments);
int verb_jobs(struct ctl *c, char **arguments);
int verb_usage(struct ctl *c, char **arguments);   /* usage.c */
int verb_status(struct ctl *c, char **arguments);  /* status.c */
int verb_show(struct ctl *c, char **arguments);    /* show.c */
int verb_bake(struct ctl *c, char **arguments);    /* bake.c */
int verb_monitor(struct ctl *c, char **arguments); /* monitor.c */
