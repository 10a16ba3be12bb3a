/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Whether a caller may: root may all, an owner all with its own sandboxes, anyone else what polkit says, per verb. The
 * only file that knows polkit. Nothing here waits: a method goes on in its handler when the answer is there. */

#include <systemd/sd-bus.h>

#include "manager.h"

/* Verbs; the polkit action of each is org.sandboxd1.NAME. */
enum verb {
        VERB_CREATE,           /* "create": a sandbox from a template */
        VERB_INSPECT,          /* "inspect": see another's sandboxes, their properties and usage */
        VERB_EXEC,             /* "exec": run commands in another's sandbox, signal them */
        VERB_MANAGE,           /* "manage": remove another's sandbox, move its deadline */
        VERB_BAKE,             /* "bake": make a template */
        VERB_MANAGE_TEMPLATES, /* "manage-templates": withdraw a template */
};

/* A method call that has been allowed to go on. */
struct call {
        struct manager *manager;
        sd_bus_message *message;
        uid_t uid;               /* the caller's */
        struct sandbox *sandbox; /* still alive; NULL when the call isn't about one */
};

/* Handles the call or starts to: 0 when it has replied or will (it then keeps a reference to the message), or a
 * negative errno with error set. */
typedef int (*call_handler_t)(struct call *c, sd_bus_error *error);

/* For vtable handlers: returns what they return. target: the sandbox that the call is about, or NULL. template: for
 * polkit's details, or NULL for the target's. */
int call_authorize(struct manager *m, sd_bus_message *message, enum verb verb, struct sandbox *target,
                   const char *template, call_handler_t then);

/* Goes on for any caller, whose uid then is known. */
int call_identify(struct manager *m, sd_bus_message *message, struct sandbox *target, call_handler_t then);

/* allowed: whether the sender of message may do verb with what belongs to owner; asks nobody interactively. For things
 * that show more to some, rather than refuse. */
typedef void (*allowed_handler_t)(bool allowed, uid_t uid, sd_bus_message *message, void *userdata);
int call_ask(struct manager *m, sd_bus_message *message, enum verb verb, struct sandbox *target,
             allowed_handler_t handler, void *userdata);
