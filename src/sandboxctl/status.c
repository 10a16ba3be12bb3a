/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* status: a sandbox on a page, for people. */

#include <stdarg.h>

#include "format.h"
#include "table.h"
#include "values.h"

/* Enough to see what goes on; ps has all. */
#define COMMANDS_SHOWN 10

static const char *get_string(const json_t *p, const char *key) {
        return strempty(json_string_value(json_object_get(p, key)));
}

static uint64_t get_number(const json_t *p, const char *key) {
        const json_t *v = json_object_get(p, key);

        return json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t) json_integer_value(v) : UINT64_MAX;
}

_printf_(3, 4) static void line(FILE *f, const char *label, const char *format, ...) {
        _cleanup_free_ char *text = NULL, *safe = NULL;
        va_list ap;
        int r;

        va_start(ap, format);
        r = vasprintf(&text, format, ap);
        va_end(ap);
        if (r < 0) {
                text = NULL;
                return;
        }
        safe = escape_terminal(text, NULL);
        fprintf(f, "%12s%s %s\n", label, *label ? ":" : " ", strempty(safe));
}

static void print_identity(FILE *f, const json_t *p) {
        uint64_t now = now_realtime_usec(), created = get_number(p, "CreatedUSec"), owner = get_number(p, "Owner");
        char a[FORMAT_MAX], b[FORMAT_MAX], user[64];
        const char *id = get_string(p, "Id"), *name = get_string(p, "Name");

        fprintf(f, "* %s%s%s\n", id, streq(id, name) ? "" : " - ", streq(id, name) ? "" : name);
        line(f, "Template", "%s (version %.12s)", get_string(p, "Template"), get_string(p, "TemplateVersion"));
        line(f, "State", "%s since %s; %s", get_string(p, "State"), format_timestamp(created, a),
             format_relative(created, now, b));
        line(f, "Owner", "%s (uid %llu)", user_name(owner, user), (unsigned long long) owner);
        line(f, "Hostname", "%s", get_string(p, "Hostname"));
}

static void print_limits(FILE *f, const json_t *p) {
        uint64_t now = now_realtime_usec(), deadline = get_number(p, "DeadlineUSec"),
                 hard = get_number(p, "RuntimeMaxUSec");
        char a[FORMAT_MAX], b[FORMAT_MAX];

        if (deadline == 0)
                line(f, "Deadline", "none");
        else
                line(f, "Deadline", "%s; %s", format_timestamp(deadline, a), format_relative(deadline, now, b));
        if (hard > 0 && hard != UINT64_MAX)
                line(f, "Hard limit", "%s after its creation", format_span(hard, a));
        line(f, "CPUs", "%g", json_number_value(json_object_get(p, "CPUs")));
        line(f, "Disk", "%s", format_size(get_number(p, "DiskSize"), a));
        line(f, "Memory", "%s (peak: %s, max: %s)", format_size(get_number(p, "MemoryCurrent"), a),
             format_size(get_number(p, "MemoryPeak"), b),
             format_size(get_number(p, "MemoryMax"), (char[FORMAT_MAX]){}));
}

static void print_usage(FILE *f, const json_t *p) {
        uint64_t nsec = get_number(p, "CPUUsageNSec");
        char a[FORMAT_MAX];

        line(f, "CPU", "%s", format_span(nsec == UINT64_MAX ? nsec : nsec / NSEC_PER_USEC, a));
        line(f, "Lifetime", "%s", format_span(get_number(p, "LifetimeUSec"), a));
        line(f, "Unit", "%s", get_string(p, "Unit"));
        line(f, "Leader", "%llu (uid %llu)", (unsigned long long) get_number(p, "Leader"),
             (unsigned long long) get_number(p, "UID"));
}

static void print_metadata(FILE *f, const json_t *p) {
        const char *key, *label = "Metadata";
        json_t *v;

        json_object_foreach (json_object_get(p, "Metadata"), key, v) {
                line(f, label, "%s=%s", key, strempty(json_string_value(v)));
                label = "";
        }
}

static void print_receipt(FILE *f, const json_t *p) {
        json_t *receipt = json_object_get(p, "Receipt");
        _cleanup_free_ char *steps = NULL;
        const json_t *l = json_object_get(receipt, "steps");

        if (json_object_size(receipt) == 0)
                return;
        steps = l ? value_to_text(l) : NULL;
        line(f, "Receipt", "generation %llu, %llu bytes of entropy; %s",
             (unsigned long long) get_number(receipt, "generation"),
             (unsigned long long) get_number(receipt, "entropy_bytes"), strempty(steps));
}

/* One row of ListProcesses, if it's still running and *shown allows. */
static int print_command(FILE *f, sd_bus_message *m, unsigned *shown) {
        _cleanup_strv_free_ char **argv = NULL;
        _cleanup_free_ char *command = NULL;
        const char *state;
        uint64_t started;
        uint32_t id;
        int r;

        r = sd_bus_message_read(m, "u", &id);
        if (r >= 0)
                r = sd_bus_message_read_strv(m, &argv);
        if (r >= 0)
                r = sd_bus_message_read(m, "s", &state);
        if (r >= 0)
                r = sd_bus_message_skip(m, "si");
        if (r >= 0)
                r = sd_bus_message_read(m, "t", &started);
        if (r >= 0)
                r = sd_bus_message_skip(m, "o");
        if (r < 0 || !streq(state, "running") || ++*shown > COMMANDS_SHOWN)
                return r;
        command = join_quoted(argv);
        if (!command)
                return -ENOMEM;
        fprintf(f, "%14s%u %s\n", "", id, command);
        return 0;
}

static int print_commands(struct ctl *c, FILE *f, const char *path, const json_t *p) {
        _cleanup_message_ sd_bus_message *reply = NULL;
        unsigned shown = 0;
        int r;

        line(f, "Commands", "%llu running, %llu started", (unsigned long long) get_number(p, "NRunning"),
             (unsigned long long) get_number(p, "NCommands"));
        r = ctl_call(c, path, BUS_INTERFACE_SANDBOX, "ListProcesses", NULL, &reply, "t", UINT64_C(0));
        if (r >= 0)
                r = sd_bus_message_enter_container(reply, 'a', "(uasssito)");
        while (r >= 0 && (r = sd_bus_message_enter_container(reply, 'r', "uasssito")) > 0) {
                r = print_command(f, reply, &shown);
                if (r >= 0)
                        r = sd_bus_message_exit_container(reply);
        }
        if (shown > COMMANDS_SHOWN)
                fprintf(f, "%14s... and %u more\n", "", shown - COMMANDS_SHOWN);
        return r;
}

static int print_status(struct ctl *c, FILE *f, const char *path, const json_t *p) {
        int r;

        print_identity(f, p);
        print_limits(f, p);
        print_usage(f, p);
        print_metadata(f, p);
        print_receipt(f, p);
        r = print_commands(c, f, path, p);
        line(f, "Journal", "journalctl SANDBOX_ID=%s + _SYSTEMD_UNIT=%s", get_string(p, "Id"), get_string(p, "Unit"));
        return r;
}

static int add_status(struct ctl *c, struct output *out, json_t *all, const char *name) {
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_json_ json_t *p = NULL;
        _cleanup_free_ char *path = NULL;
        int r;

        r = find_sandbox(c, name, &path);
        if (r < 0)
                return r;
        r = get_properties(c, path, BUS_INTERFACE_SANDBOX, &error, &p);
        if (r < 0) {
                complain_bus(&error, r, "Failed to get the status of sandbox %s", name);
                return r;
        }
        if (c->options->json != JSON_OFF)
                return json_array_append(all, p) < 0 ? -ENOMEM : 0;
        if (ftell(out->f) > 0)
                fputc('\n', out->f);
        return print_status(c, out->f, path, p);
}

int verb_status(struct ctl *c, char **arguments) {
        _cleanup_json_ json_t *all = json_array();
        struct output out;
        int r, failed = 0;

        r = output_begin(&out);
        for (; r >= 0 && *arguments; arguments++)
                if (add_status(c, &out, all, *arguments) < 0)
                        failed = 1;
        if (r >= 0 && c->options->json != JSON_OFF)
                json_print(out.f, all, c->options->json);
        return output_end(&out, c->options, r) || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
