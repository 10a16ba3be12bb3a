/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "options.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>

#include "format.h"

static int parse_string(const char *s, void *field) {
        char *copy = strdup(s);

        if (!copy)
                return -ENOMEM;
        free(*(char **) field);
        *(char **) field = copy;
        return 0;
}

/* Numbers where 0 stands for "not given": asking for nothing makes no sense. */
static int parse_positive(const char *s, void *field) {
        int r = parse_uint64(s, field);

        return r < 0 ? r : *(uint64_t *) field == 0 ? -EINVAL : 0;
}

static int parse_bytes(const char *s, void *field) {
        int r = parse_size(s, field);

        return r < 0 ? r : *(uint64_t *) field == 0 ? -EINVAL : 0;
}

/* The bus says 0 for "without end". */
static int parse_duration(const char *s, void *field) {
        uint64_t *usec = field;
        int r = parse_usec(s, usec);

        if (r >= 0 && *usec == USEC_INFINITY)
                *usec = 0;
        return r;
}

static int parse_cpus(const char *s, void *field) {
        char *end;
        double v = strtod(s, &end);

        if (end == s || *end || !isfinite(v) || v <= 0)
                return -EINVAL;
        *(double *) field = v;
        return 0;
}

static int parse_pair(const char *s, void *field) {
        const char *equals = strchr(s, '=');

        return !equals || equals == s ? -EINVAL : strv_extend(field, s);
}

/* A name alone takes the caller's value, and nothing where there's none: a secret then isn't in this command line. */
static int parse_environment(const char *s, void *field) {
        const char *value;

        if (*s == '=' || *s == 0)
                return -EINVAL;
        if (strchr(s, '='))
                return strv_extend(field, s);
        value = getenv(s);
        return value ? strv_extendf(field, "%s=%s", s, value) : 0;
}

static int parse_properties(const char *s, void *field) {
        while (*s) {
                size_t n = strcspn(s, ",");
                int r = n > 0 ? strv_consume(field, strndup(s, n)) : -EINVAL;

                if (r < 0)
                        return r;
                s += n + (s[n] == ',');
        }
        return 0;
}

static int parse_signal_option(const char *s, void *field) {
        return parse_signal(s, field);
}

static int parse_since_option(const char *s, void *field) {
        return parse_since(s, now_realtime_usec(), field);
}

static int parse_json(const char *s, void *field) {
        enum json_mode *mode = field;

        if (streq(s, "off"))
                *mode = JSON_OFF;
        else if (streq(s, "short"))
                *mode = JSON_SHORT;
        else if (streq(s, "pretty"))
                *mode = JSON_PRETTY;
        else
                return -EINVAL;
        return 0;
}

#define FIELD(f) offsetof(struct options, f)

/* parse NULL: a switch. key: the short option, or a number above all characters. */
static const struct option_spec {
        const char *name;
        int key;
        unsigned groups;
        size_t field;
        int (*parse)(const char *s, void *field);
        const char *argument; /* its name in --help */
        const char *help;     /* what it does; of options with an argument also the complaint about a bad one */
        const char *expected;
} specs[] = {
        { "name", 256, GROUP_CREATE | GROUP_FILTER, FIELD(name), parse_string, "NAME", "Name of the sandbox", NULL },
        { "ttl", 257, GROUP_CREATE, FIELD(ttl_usec), parse_duration, "TIME",
          "Everything ends after this time (ttl moves it)", "a time such as 90s, 10min or infinity" },
        { "runtime-max", 258, GROUP_CREATE, FIELD(runtime_max_usec), parse_duration, "TIME",
          "Hard limit on the lifetime", "a time such as 90s, 10min or infinity" },
        { "memory", 259, GROUP_CREATE, FIELD(memory), parse_bytes, "BYTES", "Memory for the workload",
          "a size such as 512M or 2G" },
        { "cpus", 260, GROUP_CREATE, FIELD(cpus), parse_cpus, "N", "Processors' worth of CPU time",
          "a number above 0" },
        { "disk", 261, GROUP_CREATE, FIELD(disk), parse_bytes, "BYTES", "Size of the disk",
          "a size such as 512M or 2G" },
        { "tasks-max", 262, GROUP_CREATE, FIELD(tasks_max), parse_positive, "N", "Tasks of the machine on the host",
          "a number above 0" },
        { "hostname", 263, GROUP_CREATE, FIELD(hostname), parse_string, "NAME", "Host name in the guest", NULL },
        { "metadata", 264, GROUP_CREATE | GROUP_FILTER, FIELD(metadata), parse_pair, "KEY=VALUE",
          "Kept with the sandbox; list: only those that have it", "KEY=VALUE" },
        { "env", 'e', GROUP_ENV, FIELD(environment), parse_environment, "NAME[=VALUE]",
          "Environment of commands; NAME alone: the caller's value", "NAME or NAME=VALUE" },
        { "interactive", 'i', GROUP_COMMAND, FIELD(interactive), NULL, NULL, "Pass standard input on", NULL },
        { "timeout", 265, GROUP_COMMAND, FIELD(timeout_usec), parse_duration, "TIME",
          "Kill the command after this time", "a time such as 90s or 10min" },
        { "cwd", 'w', GROUP_COMMAND, FIELD(directory), parse_string, "DIRECTORY", "Working directory of the command",
          NULL },
        { "user", 'u', GROUP_COMMAND, FIELD(user), parse_string, "USER", "Name or uid in the guest", NULL },
        { "state", 266, GROUP_LIST, FIELD(state), parse_string, "STATE", "Only sandboxes in this state", NULL },
        { "template", 267, GROUP_LIST, FIELD(template), parse_string, "TEMPLATE", "Only sandboxes of this template",
          NULL },
        { "owner", 268, GROUP_LIST, FIELD(owner), parse_string, "USER", "Only sandboxes of this user", NULL },
        { "property", 'p', GROUP_SHOW, FIELD(properties), parse_properties, "NAME", "Only this property",
          "names of properties" },
        { "value", 269, GROUP_SHOW, FIELD(value), NULL, NULL, "Only the value, without NAME=", NULL },
        { "signal", 's', GROUP_KILL, FIELD(signal), parse_signal_option, "SIGNAL", "Which signal (default: TERM)",
          "a signal such as TERM, SIGTERM or 15" },
        { "process", 270, GROUP_KILL, FIELD(process), parse_positive, "N", "Only to this command, as ps numbers them",
          "a number as in ps" },
        { "all", 'a', GROUP_REMOVE, FIELD(all), NULL, NULL, "All sandboxes of the caller", NULL },
        { "force", 'f', GROUP_FORCE, FIELD(force), NULL, NULL, "rm: a missing one is no error; bake: bake it anyway",
          NULL },
        { "since", 271, GROUP_USAGE, FIELD(since_usec), parse_since_option, "TIME",
          "What ended (or still lives) since then",
          "a time such as 2h (ago), today, \"2025-11-30 12:00\" or @1764515452" },
        { "limit", 'n', GROUP_USAGE, FIELD(limit), parse_positive, "N", "Only the newest N records",
          "a number above 0" },
        { "json", 272, GROUP_ANY, FIELD(json), parse_json, "MODE", "Output as JSON: short, pretty or off",
          "short, pretty or off" },
        { "no-legend", 273, GROUP_ANY, FIELD(no_legend), NULL, NULL, "No header and no totals in tables", NULL },
        { "no-pager", 274, GROUP_ANY, FIELD(no_pager), NULL, NULL, "Don't pipe long output into a pager", NULL },
        { "no-ask-password", 275, GROUP_ANY, FIELD(no_ask_password), NULL, NULL, "Don't ask for authorization", NULL },
        { "quiet", 'q', GROUP_ANY, FIELD(quiet), NULL, NULL, "Only what was asked for; list: ids alone", NULL },
        { "help", 'h', GROUP_ANY, FIELD(help), NULL, NULL, "Show this help", NULL },
        { "version", 276, GROUP_ANY, FIELD(version), NULL, NULL, "Show the version", NULL },
};

/* What getopt_long() wants, made of the table above. */
struct getopt_tables {
        struct option longs[ELEMENTSOF(specs) + 1];
        char shorts[2 * ELEMENTSOF(specs) + 3];
};

static void getopt_tables_fill(struct getopt_tables *t, bool stop_at_argument) {
        char *s = t->shorts;

        if (stop_at_argument)
                *s++ = '+';
        *s++ = ':'; /* tell a missing argument from an unknown option, and leave complaining to us */
        for (size_t i = 0; i < ELEMENTSOF(specs); i++) {
                t->longs[i] = (struct option){ specs[i].name, specs[i].parse ? required_argument : no_argument, NULL,
                                               specs[i].key };
                if (specs[i].key >= 256)
                        continue;
                *s++ = (char) specs[i].key;
                if (specs[i].parse)
                        *s++ = ':';
        }
        t->longs[ELEMENTSOF(specs)] = (struct option){};
        *s = 0;
}

static const struct option_spec *spec_find(int key) {
        for (size_t i = 0; i < ELEMENTSOF(specs); i++)
                if (specs[i].key == key)
                        return specs + i;
        return NULL;
}

_printf_(1, 2) static int refuse(const char *format, ...) {
        va_list ap;

        fputs("sandboxctl: ", stderr);
        va_start(ap, format);
        vfprintf(stderr, format, ap);
        va_end(ap);
        fputs("; see sandboxctl --help.\n", stderr);
        return -EINVAL;
}

static int refuse_getopt(int result, char **argv) {
        const struct option_spec *spec = spec_find(optopt);

        if (result == ':')
                return refuse("Option --%s needs an argument, %s", spec->name, spec->argument);
        if (spec)
                return refuse("Option --%s takes no argument", spec->name);
        if (optopt > 0 && optopt < 256)
                return refuse("Unknown option -%c", optopt);
        return refuse("Unknown option %s", argv[optind - 1]);
}

/* One sweep over argv, whose first element is passed over; *ret: the index of the first argument. Seen options are
 * noted, one bit each, as the verb that must want them may not be known yet. */
static int sweep(int argc, char **argv, bool stop_at_argument, struct options *o, uint64_t *seen, int *ret) {
        struct getopt_tables tables;

        getopt_tables_fill(&tables, stop_at_argument);
        optind = 0; /* start anew: both order and vector change between sweeps */
        opterr = 0;
        for (;;) {
                int key = getopt_long(argc, argv, tables.shorts, tables.longs, NULL);
                const struct option_spec *spec;
                int r = 0;

                if (key < 0)
                        break;
                if (key == '?' || key == ':')
                        return refuse_getopt(key, argv);
                spec = spec_find(key);
                *seen |= 1ULL << (spec - specs);
                if (spec->parse)
                        r = spec->parse(optarg, (char *) o + spec->field);
                else
                        *(bool *) ((char *) o + spec->field) = true;
                if (r == -ENOMEM)
                        return r;
                if (r < 0)
                        return refuse("--%s=%s is not %s", spec->name, optarg, spec->expected);
        }
        *ret = optind;
        return 0;
}

static int check_options(const struct options *o, uint64_t seen) {
        for (size_t i = 0; i < ELEMENTSOF(specs); i++)
                if (seen & 1ULL << i && !(specs[i].groups & (o->verb->groups | GROUP_ANY)))
                        return refuse("%s has no option --%s", o->verb->name, specs[i].name);
        return 0;
}

static int check_arguments(const struct options *o) {
        int n = (int) strv_length(o->arguments);

        if (n < o->verb->min)
                return refuse("%s needs more arguments: %s %s", o->verb->name, o->verb->name, o->verb->synopsis);
        if (o->verb->max >= 0 && n > o->verb->max)
                return refuse("%s takes fewer arguments: %s %s", o->verb->name, o->verb->name, o->verb->synopsis);
        return 0;
}

static const struct verb *verb_find(const struct verb *verbs, const char *name) {
        for (; verbs->name; verbs++)
                if (streq(verbs->name, name))
                        return verbs;
        return NULL;
}

int options_parse(int argc, char **argv, const struct verb *verbs, struct options *o) {
        uint64_t seen = 0;
        int n, r;

        _Static_assert(ELEMENTSOF(specs) <= 64, "one bit for each option");
        *o = (struct options){ .ttl_usec = UINT64_MAX, .runtime_max_usec = UINT64_MAX };
        r = sweep(argc, argv, true, o, &seen, &n);
        if (r < 0 || o->version || (o->help && n >= argc))
                return r;
        o->verb = n < argc ? verb_find(verbs, argv[n]) : verbs;
        if (!o->verb)
                return refuse("Unknown verb %s", argv[n]);
        if (n < argc) {
                argv += n;
                argc -= n;
                r = sweep(argc, argv, o->verb->command, o, &seen, &n);
                if (r >= 0 && o->verb->command && n < argc && !o->help) {
                        /* Between the sandbox and its command options are still ours; a command that begins with a
                         * dash stands behind "--". The sandbox takes the place that getopt passes over, and is put
                         * before the command again, in whose stead a "--" may have been. */
                        char *target = argv[n];

                        argv += n;
                        argc -= n;
                        r = sweep(argc, argv, true, o, &seen, &n);
                        argv[--n] = target;
                }
                if (r < 0)
                        return r;
        }
        if (o->help || o->version)
                return 0;
        o->arguments = argv + n;
        r = check_options(o, seen);
        return r < 0 ? r : check_arguments(o);
}

void options_done(struct options *o) {
        free(o->name);
        free(o->hostname);
        free(o->directory);
        free(o->user);
        free(o->state);
        free(o->template);
        free(o->owner);
        strv_free(o->environment);
        strv_free(o->metadata);
        strv_free(o->properties);
        *o = (struct options){};
}

void options_help(FILE *f, unsigned groups) {
        for (size_t i = 0; i < ELEMENTSOF(specs); i++) {
                char left[64], dash[8] = "    ";

                if (!(specs[i].groups & groups))
                        continue;
                if (specs[i].key < 256)
                        snprintf(dash, sizeof(dash), "-%c, ", specs[i].key);
                snprintf(left, sizeof(left), "%s--%s%s%s", dash, specs[i].name, specs[i].argument ? "=" : "",
                         strempty(specs[i].argument));
                fprintf(f, "  %-30s %s\n", left, specs[i].help);
        }
}
