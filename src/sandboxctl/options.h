/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The command line as data: which verb, with which options and arguments. Options stand before or behind the verb; an
 * option that the verb has no use for is refused. Of a verb that runs a command, options end where the command begins.
 */

#include <stdio.h>

#include "util.h"

struct ctl;
struct options;

enum json_mode {
        JSON_OFF,    /* tables and lines for people */
        JSON_SHORT,  /* on one line */
        JSON_PRETTY, /* indented */
};

/* Which verbs an option belongs to; a verb takes the options of all groups that it names. */
enum option_group {
        GROUP_ANY = 1 << 0,     /* every verb */
        GROUP_CREATE = 1 << 1,  /* makes a sandbox */
        GROUP_ENV = 1 << 2,     /* makes one or runs a command */
        GROUP_COMMAND = 1 << 3, /* runs a command */
        GROUP_LIST = 1 << 4,
        GROUP_FILTER = 1 << 5, /* makes a sandbox or looks for some */
        GROUP_SHOW = 1 << 6,
        GROUP_KILL = 1 << 7,
        GROUP_REMOVE = 1 << 8,
        GROUP_FORCE = 1 << 9,
        GROUP_USAGE = 1 << 10,
};

struct verb {
        const char *name;
        int min, max;         /* number of arguments; max -1: any */
        unsigned groups;      /* GROUP_ANY is understood */
        bool command;         /* the second argument and all behind it are a command with options of its own */
        const char *synopsis; /* for --help */
        const char *help;
        /* Returns the exit status. */
        int (*run)(struct ctl *c, char **arguments);
};

struct options {
        const struct verb *verb;
        char **arguments; /* borrowed from argv */

        enum json_mode json;
        bool no_legend, no_pager, no_ask_password, quiet, help, version;

        char *name, *hostname;
        uint64_t ttl_usec, runtime_max_usec; /* UINT64_MAX: not given; 0: none */
        uint64_t memory, disk, tasks_max;    /* 0: not given */
        double cpus;                         /* 0: not given */
        char **environment, **metadata;      /* NAME=value */

        bool interactive;
        uint64_t timeout_usec; /* 0: none */
        char *directory, *user;

        char *state, *template, *owner; /* what list looks for */

        char **properties;
        bool value;

        int signal;       /* 0: not given */
        uint64_t process; /* 0: not given */

        bool all, force;

        uint64_t since_usec; /* 0: not given */
        uint64_t limit;      /* 0: not given */
};

/* verbs ends with a verb without name; its first one is taken where none is given. Complains to stderr itself. After
 * --help or --version arguments and verb may be unset. options_done() in any case. 0 or -EINVAL, -ENOMEM; after an
 * error verb is set if it was known by then, as the verb decides about the exit status. */
int options_parse(int argc, char **argv, const struct verb *verbs, struct options *o);
void options_done(struct options *o);
/* All options that a verb of these groups takes, and how they are explained. */
void options_help(FILE *f, unsigned groups);
