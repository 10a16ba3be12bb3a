/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* monitor: what happens to sandboxes, commands, templates and jobs, as the bus tells it. */

#include <signal.h>
#include <time.h>

#include "format.h"
#include "table.h"
#include "values.h"

struct monitor {
        struct ctl *ctl;
        sd_event *event;
};

/* "org.sandboxd1.Sandbox" → "Sandbox"; NULL for interfaces that every object has. */
static const char *noun_of(const char *interface) {
        return strncmp(interface, BUS_NAME ".", strlen(BUS_NAME) + 1) == 0 ? interface + strlen(BUS_NAME) + 1 : NULL;
}

/* What follows the root in a path, unescaped at its end: "sandbox/0123456789ab". */
static char *object_name(const char *path) {
        const char *slash = strrchr(path, '/'), *start = path;
        _cleanup_free_ char *prefix = NULL, *last = NULL;
        char *name = NULL;

        if (strncmp(path, BUS_PATH "/", strlen(BUS_PATH) + 1) == 0)
                start = path + strlen(BUS_PATH) + 1;
        if (!slash || slash < start)
                return strdup(start);
        prefix = strndup(path, (size_t) (slash - path));
        if (!prefix || sd_bus_path_decode(path, prefix, &last) <= 0)
                return strdup(start);
        return asprintf(&name, "%s/%s", prefix + (start - path), last) < 0 ? NULL : name;
}

static void print_text(const char *event, const char *name, const json_t *properties) {
        _cleanup_free_ char *safe = escape_terminal(name, NULL);
        char when[32];
        time_t now = time(NULL);
        struct tm tm;
        const char *key;
        json_t *v;

        strftime(when, sizeof(when), "%H:%M:%S", localtime_r(&now, &tm));
        printf("%s %s %s", when, strempty(safe), event);
        json_object_foreach ((json_t *) properties, key, v) {
                _cleanup_free_ char *text = value_to_text(v);

                if (text && *text)
                        printf(" %s=%s", key, text);
        }
        putchar('\n');
}

/* An event: takes over properties. */
static void report(struct monitor *m, const char *event, const char *path, json_t *properties) {
        _cleanup_free_ char *name = object_name(path);
        _cleanup_json_ json_t *record = NULL;

        if (m->ctl->options->json == JSON_OFF)
                print_text(event, strempty(name), properties);
        else {
                record = json_pack("{sI ss ss ss so*}", "timestamp_usec", (json_int_t) now_realtime_usec(), "event",
                                   event, "name", strempty(name), "object", path, "properties", properties);
                properties = NULL;
                if (record)
                        json_print(stdout, record, m->ctl->options->json);
        }
        json_decref(properties);
        if (fflush(stdout) != 0)
                sd_event_exit(m->event, EXIT_FAILURE);
}

/* Of a new object what tells it from others; the rest can be asked for. */
static json_t *essence(json_t *properties) {
        static const char *const keys[] = { "Name", "Owner", "Template", "State",  "Sandbox",
                                            "Argv", "User",  "Type",     "Target", "Version" };
        json_t *some = json_object();

        for (size_t i = 0; i < ELEMENTSOF(keys); i++) {
                json_t *v = json_object_get(properties, keys[i]);

                if (v)
                        json_object_set(some, keys[i], v);
        }
        return some;
}

static int on_added(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        struct monitor *monitor = userdata;
        _cleanup_json_ json_t *interfaces = NULL;
        const char *path, *interface;
        json_t *properties;

        if (sd_bus_message_read(m, "o", &path) < 0 || read_value(m, &interfaces) < 0)
                return 0;
        json_object_foreach (interfaces, interface, properties) {
                const char *noun = noun_of(interface);

                if (noun)
                        report(monitor, streq(noun, "Sandbox") ? "created" : "added", path,
                               monitor->ctl->options->json == JSON_OFF ? essence(properties)
                                                                       : json_incref(properties));
        }
        return 0;
}

static int on_removed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        _cleanup_json_ json_t *interfaces = NULL;
        const char *path;
        json_t *interface;
        size_t i;

        if (sd_bus_message_read(m, "o", &path) < 0 || read_value(m, &interfaces) < 0)
                return 0;
        json_array_foreach (interfaces, i, interface) {
                /* Jobs say themselves how they ended. */
                const char *noun = noun_of(json_string_value(interface));

                if (noun && !streq(noun, "Job"))
                        report(userdata, "removed", path, json_object());
        }
        return 0;
}

static int on_changed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        _cleanup_json_ json_t *changed = NULL;
        const char *interface;

        if (sd_bus_message_read(m, "s", &interface) >= 0 && noun_of(interface) && read_value(m, &changed) >= 0 &&
            json_object_size(changed) > 0)
                report(userdata, "changed", sd_bus_message_get_path(m), TAKE_PTR(changed));
        return 0;
}

static int on_job_removed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        const char *job, *result, *error;
        uint32_t id;

        if (sd_bus_message_read(m, "uoss", &id, &job, &result, &error) >= 0)
                report(userdata, "removed", job, json_pack("{ss ss}", "Result", result, "Error", error));
        return 0;
}

static int on_owner_changed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        const char *name, *before, *after;

        if (sd_bus_message_read(m, "sss", &name, &before, &after) >= 0)
                report(userdata, *after ? "service-started" : "service-stopped", BUS_PATH, json_object());
        return 0;
}

static int on_signal(sd_event_source *source, const struct signalfd_siginfo *si, void *userdata) {
        return sd_event_exit(sd_event_source_get_event(source), EXIT_SUCCESS);
}

static int watch(struct monitor *m) {
        static const struct {
                const char *rule;
                sd_bus_message_handler_t handler;
        } matches[] = {
                { "type='signal',sender='" BUS_NAME "',interface='org.freedesktop.DBus.ObjectManager',"
                  "member='InterfacesAdded'",
                  on_added },
                { "type='signal',sender='" BUS_NAME "',interface='org.freedesktop.DBus.ObjectManager',"
                  "member='InterfacesRemoved'",
                  on_removed },
                { "type='signal',sender='" BUS_NAME "',interface='org.freedesktop.DBus.Properties',"
                  "member='PropertiesChanged'",
                  on_changed },
                { "type='signal',sender='" BUS_NAME "',interface='" BUS_INTERFACE_MANAGER "',member='JobRemoved'",
                  on_job_removed },
                { "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',"
                  "member='NameOwnerChanged',arg0='" BUS_NAME "'",
                  on_owner_changed },
        };
        int r = 0;

        for (size_t i = 0; i < ELEMENTSOF(matches) && r >= 0; i++)
                r = sd_bus_add_match(m->ctl->bus, NULL, matches[i].rule, matches[i].handler, m);
        return r;
}

int verb_monitor(struct ctl *c, char **arguments) {
        struct monitor m = { .ctl = c };
        sigset_t set;
        int r;

        sigemptyset(&set);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGTERM);
        sigprocmask(SIG_BLOCK, &set, NULL);
        r = sd_event_new(&m.event);
        if (r >= 0)
                r = sd_event_add_signal(m.event, NULL, SIGINT, on_signal, NULL);
        if (r >= 0)
                r = sd_event_add_signal(m.event, NULL, SIGTERM, on_signal, NULL);
        if (r >= 0)
                r = sd_bus_attach_event(c->bus, m.event, SD_EVENT_PRIORITY_NORMAL);
        if (r >= 0)
                r = sd_bus_set_exit_on_disconnect(c->bus, true);
        if (r >= 0)
                r = watch(&m);
        if (r < 0)
                complain("Failed to listen to sandboxd: %s", strerror(-r));
        else {
                if (!c->options->quiet && c->options->json == JSON_OFF && isatty(STDERR_FILENO))
                        fputs("Listening; ^C ends.\n", stderr);
                r = sd_event_loop(m.event);
        }
        sd_bus_detach_event(c->bus);
        sd_event_unref(m.event);
        return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
