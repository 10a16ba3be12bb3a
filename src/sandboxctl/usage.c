/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* usage: what sandboxes have cost. The service hands over a descriptor with a JSON object a line. */

#include <fcntl.h>

#include "ctl.h"
#include "table.h"

static const struct column columns[] = {
        { "ID", "id", false },
        { "NAME", "name", false },
        { "OWNER", "owner", false },
        { "TEMPLATE", "template", false },
        { "CREATED", "created_usec", false },
        { "LIFETIME", "lifetime_usec", true },
        { "CPU", "cpu_usec", true },
        { "PEAK", "memory_peak", true },
        { "COMMANDS", "commands", true },
        { "RESULT", "result", false },
};

static const char *get_string(const json_t *record, const char *key) {
        return json_string_value(json_object_get(record, key));
}

/* UINT64_MAX where there is no number, as where the kernel doesn't say. */
static uint64_t get_number(const json_t *record, const char *key) {
        const json_t *v = json_object_get(record, key);

        return json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t) json_integer_value(v) : UINT64_MAX;
}

static void add_row(struct table *t, const json_t *record) {
        uint64_t owner = get_number(record, "owner"), commands = get_number(record, "commands");
        bool lives = get_number(record, "ended_usec") == 0;
        char buffer[64];

        table_string(t, get_string(record, "id"));
        table_string(t, get_string(record, "name"));
        table_string(t, owner == UINT64_MAX ? "-" : user_name(owner, buffer));
        table_string(t, get_string(record, "template"));
        table_time(t, get_number(record, "created_usec"), now_realtime_usec());
        table_span(t, get_number(record, "lifetime_usec"));
        table_span(t, get_number(record, "cpu_usec"));
        table_size(t, get_number(record, "memory_peak"));
        table_uint(t, commands == UINT64_MAX ? 0 : commands);
        table_string(t, lives ? "(running)" : get_string(record, "result"));
}

/* Adds each line of f to the table, or as it is to all: programs get the records, and not what we make of them. */
static int read_records(FILE *f, struct table *t, json_t *all) {
        _cleanup_free_ char *line = NULL;
        size_t allocated = 0, number = 0;
        ssize_t n;

        while ((n = getline(&line, &allocated, f)) > 0) {
                _cleanup_json_ json_t *record = NULL;
                json_error_t error;

                number++;
                record = json_loadb(line, (size_t) n, 0, &error);
                if (!json_is_object(record)) {
                        complain("Record %zu can't be read: %s", number, record ? "not an object" : error.text);
                        return -EBADMSG;
                }
                if (!all)
                        add_row(t, record);
                else if (json_array_append(all, record) < 0)
                        return -ENOMEM;
        }
        return ferror(f) ? -EIO : 0;
}

static int request(struct ctl *c, const char *sandbox, sd_bus_error *error, sd_bus_message **ret) {
        _cleanup_message_ sd_bus_message *m = NULL;
        const struct options *o = c->options;
        int r;

        r = ctl_method(c, BUS_PATH, BUS_INTERFACE_MANAGER, "GetUsage", &m);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0 && o->since_usec > 0)
                r = sd_bus_message_append(m, "{sv}", "Since", "t", o->since_usec);
        if (r >= 0 && o->limit > 0)
                r = sd_bus_message_append(m, "{sv}", "Limit", "t", o->limit);
        if (r >= 0 && sandbox)
                r = sd_bus_message_append(m, "{sv}", "Sandbox", "s", sandbox);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        return r < 0 ? r : sd_bus_call(c->bus, m, CALL_TIMEOUT_USEC, error, ret);
}

static int print_usage(struct ctl *c, FILE *f) {
        _cleanup_(table_freep) struct table *t = table_new(columns, ELEMENTSOF(columns));
        _cleanup_json_ json_t *all = c->options->json != JSON_OFF ? json_array() : NULL;
        struct output out;
        int r;

        if (!t)
                return complain_oom();
        r = read_records(f, t, all);
        if (r < 0)
                return r == -EBADMSG ? EXIT_FAILURE : complain("Failed to read usage records: %s", strerror(-r));
        r = output_begin(&out);
        if (r >= 0 && all)
                json_print(out.f, all, c->options->json);
        else if (r >= 0)
                r = table_print(t, out.f, c->options, "record", "records");
        return output_end(&out, c->options, r);
}

int verb_usage(struct ctl *c, char **arguments) {
        _cleanup_message_ sd_bus_message *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        FILE *f;
        int fd = -1, r;

        r = request(c, arguments[0], &error, &reply);
        if (r >= 0)
                r = sd_bus_message_read(reply, "h", &fd);
        if (r < 0)
                return complain_bus(&error, r, "Failed to get usage records");
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        f = fd >= 0 ? fdopen(fd, "r") : NULL;
        if (!f) {
                close_fd(fd);
                return complain("Failed to read usage records: %s", strerror(errno));
        }
        r = print_usage(c, f);
        fclose(f);
        return r;
}
