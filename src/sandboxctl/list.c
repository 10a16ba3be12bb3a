/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Verbs that print a table of what there is: list, ps, templates, jobs. */

#include <pwd.h>

#include "create.h"
#include "format.h"
#include "table.h"

/* A row of the reply becomes a row of the table. */
typedef int (*read_row_t)(sd_bus_message *m, struct table *t);

/* What these verbs have in common: types is the signature of a row. */
static int print_reply(struct ctl *c, sd_bus_message *reply, const char *types, read_row_t read_row,
                       const struct column *columns, size_t n_columns, const char *singular, const char *plural) {
        _cleanup_(table_freep) struct table *t = table_new(columns, n_columns);
        _cleanup_free_ char *array = NULL;
        struct output out;
        int r;

        if (!t || asprintf(&array, "(%s)", types) < 0)
                return complain_oom();
        r = sd_bus_message_enter_container(reply, 'a', array);
        while (r >= 0 && (r = sd_bus_message_enter_container(reply, 'r', types)) > 0) {
                r = read_row(reply, t);
                if (r >= 0)
                        r = sd_bus_message_exit_container(reply);
        }
        if (r < 0)
                return complain("Failed to read the list of %s: %s", plural, strerror(-r));
        r = output_begin(&out);
        if (r >= 0)
                r = table_print(t, out.f, c->options, singular, plural);
        return output_end(&out, c->options, r);
}

static int read_sandbox(sd_bus_message *m, struct table *t) {
        const char *id, *name, *template, *state, *path;
        uint64_t created, deadline, now = now_realtime_usec();
        uint32_t owner;
        char buffer[64];
        int r;

        r = sd_bus_message_read(m, "ssusstto", &id, &name, &owner, &template, &state, &created, &deadline, &path);
        if (r < 0)
                return r;
        table_string(t, id);
        table_string(t, name);
        table_cell(t, user_name(owner, buffer), json_integer(owner));
        table_string(t, template);
        table_string(t, state);
        table_time(t, created, now);
        table_time(t, deadline, now);
        return 0;
}

static int append_owner(sd_bus_message *m, const char *owner) {
        const struct passwd *p = getpwnam(owner);
        uint64_t uid;

        if (p)
                uid = p->pw_uid;
        else if (parse_uint64(owner, &uid) < 0 || uid > UINT32_MAX) {
                complain("There is no user %s", owner);
                return -ENOENT;
        }
        return sd_bus_message_append(m, "{sv}", "Owner", "u", (uint32_t) uid);
}

static int append_filter(sd_bus_message *m, const struct options *o) {
        int r = 0;

        if (o->name)
                r = sd_bus_message_append(m, "{sv}", "Name", "s", o->name);
        if (r >= 0 && o->template)
                r = sd_bus_message_append(m, "{sv}", "Template", "s", o->template);
        if (r >= 0 && o->state)
                r = sd_bus_message_append(m, "{sv}", "State", "s", o->state);
        if (r >= 0 && o->owner)
                r = append_owner(m, o->owner);
        return r < 0 ? r : append_pairs(m, "Metadata", o->metadata);
}

int verb_list(struct ctl *c, char **arguments) {
        static const struct column columns[] = {
                { "ID", "id", false },
                { "NAME", "name", false },
                { "OWNER", "owner", false },
                { "TEMPLATE", "template", false },
                { "STATE", "state", false },
                { "CREATED", "created_usec", false },
                { "DEADLINE", "deadline_usec", false },
        };
        _cleanup_message_ sd_bus_message *m = NULL, *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        int r;

        r = ctl_method(c, BUS_PATH, BUS_INTERFACE_MANAGER, "ListSandboxes", &m);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0)
                r = append_filter(m, c->options);
        if (r == -ENOENT)
                return EXIT_FAILURE;
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        if (r >= 0)
                r = sd_bus_call(c->bus, m, CALL_TIMEOUT_USEC, &error, &reply);
        if (r < 0)
                return complain_bus(&error, r, "Failed to list sandboxes");
        return print_reply(c, reply, "ssusstto", read_sandbox, columns, ELEMENTSOF(columns), "sandbox", "sandboxes");
}

static json_t *json_strings(char *const *l) {
        json_t *array = json_array();

        for (; l && *l; l++)
                json_array_append_new(array, json_string(*l));
        return array;
}

static int read_process(sd_bus_message *m, struct table *t) {
        _cleanup_strv_free_ char **argv = NULL;
        _cleanup_free_ char *line = NULL;
        const char *state, *result;
        uint64_t started;
        uint32_t id;
        int32_t status;
        char buffer[FORMAT_MAX];
        int r;

        r = sd_bus_message_read(m, "u", &id);
        if (r >= 0)
                r = sd_bus_message_read_strv(m, &argv);
        if (r >= 0)
                r = sd_bus_message_read(m, "ssit", &state, &result, &status, &started);
        if (r >= 0)
                r = sd_bus_message_skip(m, "o");
        if (r < 0)
                return r;
        line = join_quoted(argv);
        if (!line)
                return -ENOMEM;
        snprintf(buffer, sizeof(buffer), "%d", status);
        table_uint(t, id);
        table_string(t, state);
        table_cell(t, isempty(result) ? "-" : result, isempty(result) ? json_null() : json_string(result));
        /* A status that isn't known is none, and surely not 0. */
        table_cell(t, status < 0 ? "-" : buffer, status < 0 ? json_null() : json_integer(status));
        table_time(t, started, now_realtime_usec());
        table_cell(t, line, json_strings(argv));
        return 0;
}

int verb_ps(struct ctl *c, char **arguments) {
        static const struct column columns[] = {
                { "N", "id", true },          { "STATE", "state", false },          { "RESULT", "result", false },
                { "STATUS", "status", true }, { "STARTED", "started_usec", false }, { "COMMAND", "argv", false },
        };
        _cleanup_message_ sd_bus_message *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_free_ char *path = NULL;
        int r;

        r = find_sandbox(c, arguments[0], &path);
        if (r < 0)
                return EXIT_FAILURE;
        r = ctl_call(c, path, BUS_INTERFACE_SANDBOX, "ListProcesses", &error, &reply, "t", UINT64_C(0));
        if (r < 0)
                return complain_bus(&error, r, "Failed to list commands of sandbox %s", arguments[0]);
        return print_reply(c, reply, "uasssito", read_process, columns, ELEMENTSOF(columns), "command", "commands");
}

static int read_template(sd_bus_message *m, struct table *t) {
        const char *name, *version, *path;
        uint64_t created, memory, disk;
        uint32_t cpus, used;
        char shortened[13];
        int r;

        r = sd_bus_message_read(m, "ssttutuo", &name, &version, &created, &memory, &cpus, &disk, &used, &path);
        if (r < 0)
                return r;
        snprintf(shortened, sizeof(shortened), "%s", version);
        table_string(t, name);
        table_cell(t, shortened, json_string(version));
        table_time(t, created, now_realtime_usec());
        table_size(t, memory);
        table_uint(t, cpus);
        table_size(t, disk);
        table_uint(t, used);
        return 0;
}

int verb_templates(struct ctl *c, char **arguments) {
        static const struct column columns[] = {
                { "NAME", "name", false },
                { "VERSION", "version", false },
                { "CREATED", "created_usec", false },
                { "MEMORY", "memory", true },
                { "CPUS", "cpus", true },
                { "DISK", "disk", true },
                { "SANDBOXES", "sandboxes", true },
        };
        _cleanup_message_ sd_bus_message *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        int r;

        r = ctl_call(c, BUS_PATH, BUS_INTERFACE_MANAGER, "ListTemplates", &error, &reply, "t", UINT64_C(0));
        if (r < 0)
                return complain_bus(&error, r, "Failed to list templates");
        return print_reply(c, reply, "ssttutuo", read_template, columns, ELEMENTSOF(columns), "template", "templates");
}

static int read_job(sd_bus_message *m, struct table *t) {
        const char *type, *target, *state, *status, *path;
        uint32_t id;
        double progress;
        char buffer[FORMAT_MAX];
        int r;

        r = sd_bus_message_read(m, "usssdso", &id, &type, &target, &state, &progress, &status, &path);
        if (r < 0)
                return r;
        snprintf(buffer, sizeof(buffer), "%.0f%%", progress * 100);
        table_uint(t, id);
        table_string(t, type);
        table_string(t, target);
        table_string(t, state);
        table_cell(t, buffer, json_real(progress));
        table_string(t, status);
        return 0;
}

int verb_jobs(struct ctl *c, char **arguments) {
        static const struct column columns[] = {
                { "ID", "id", true },        { "TYPE", "type", false },        { "TARGET", "target", false },
                { "STATE", "state", false }, { "PROGRESS", "progress", true }, { "STATUS", "status", false },
        };
        _cleanup_message_ sd_bus_message *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        int r;

        r = ctl_call(c, BUS_PATH, BUS_INTERFACE_MANAGER, "ListJobs", &error, &reply, "t", UINT64_C(0));
        if (r < 0)
                return complain_bus(&error, r, "Failed to list jobs");
        return print_reply(c, reply, "usssdso", read_job, columns, ELEMENTSOF(columns), "job", "jobs");
}
