/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Options of methods (a{sv}), taken strictly: known keys are consumed, an unknown or a repeated one is refused by
 * name. */

#include <jansson.h>
#include <systemd/sd-bus.h>

#include "util.h"

enum option_type {
        OPTION_STRING, /* s → char * */
        OPTION_UINT64, /* t → uint64_t */
        OPTION_UINT32, /* u → uint32_t */
        OPTION_DOUBLE, /* d → double */
        OPTION_BOOL,   /* b → bool */
        OPTION_STRV,   /* as → char ** */
        OPTION_DICT,   /* a{ss} → json_t *, an object of strings */
        OPTION_FD,     /* h → int, a duplicate */
        OPTION_BYTES,  /* ay → struct option_bytes */
        OPTION_PATH,   /* s or ay → char * */
};

struct option_bytes {
        void *data;
        size_t size;
};

struct option {
        const char *name;
        enum option_type type;
        void *value;   /* where to put it: the caller's, who frees it */
        bool *present; /* may be NULL */
};

/* Reads an a{sv}. options ends with an entry without name. On failure sets error and returns its negative errno. */
int options_read(sd_bus_message *m, const struct option *options, sd_bus_error *error);

/* Reads the trailing `t flags`, of which none is defined. */
int options_read_flags(sd_bus_message *m, sd_bus_error *error);

/* Each must be NAME=value with a name of [A-Za-z_][A-Za-z0-9_]*. */
int options_check_environment(char *const *environment, sd_bus_error *error);
