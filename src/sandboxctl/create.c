/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "create.h"

#include "table.h"

int append_strings(sd_bus_message *m, const char *option, char **strings) {
        int r;

        if (strv_length(strings) == 0)
                return 0;
        r = sd_bus_message_open_container(m, 'e', "sv");
        if (r >= 0)
                r = sd_bus_message_append(m, "s", option);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'v', "as");
        if (r >= 0)
                r = sd_bus_message_append_strv(m, strings);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r < 0 ? r : sd_bus_message_close_container(m);
}

static int append_pair(sd_bus_message *m, const char *pair) {
        const char *equals = strchr(pair, '=');
        _cleanup_free_ char *key = strndup(pair, (size_t) (equals - pair));

        return key ? sd_bus_message_append(m, "{ss}", key, equals + 1) : -ENOMEM;
}

int append_pairs(sd_bus_message *m, const char *option, char **pairs) {
        int r;

        if (strv_length(pairs) == 0)
                return 0;
        r = sd_bus_message_open_container(m, 'e', "sv");
        if (r >= 0)
                r = sd_bus_message_append(m, "s", option);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'v', "a{ss}");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{ss}");
        for (; r >= 0 && *pairs; pairs++)
                r = append_pair(m, *pairs);
        for (int i = 0; i < 3 && r >= 0; i++)
                r = sd_bus_message_close_container(m);
        return r;
}

static int append_options(sd_bus_message *m, const struct options *o, bool environment) {
        int r = 0;

        if (o->name)
                r = sd_bus_message_append(m, "{sv}", "Name", "s", o->name);
        if (r >= 0 && o->ttl_usec != UINT64_MAX)
                r = sd_bus_message_append(m, "{sv}", "TTLUSec", "t", o->ttl_usec);
        if (r >= 0 && o->runtime_max_usec != UINT64_MAX)
                r = sd_bus_message_append(m, "{sv}", "RuntimeMaxUSec", "t", o->runtime_max_usec);
        if (r >= 0 && o->memory > 0)
                r = sd_bus_message_append(m, "{sv}", "MemoryMax", "t", o->memory);
        if (r >= 0 && o->cpus > 0)
                r = sd_bus_message_append(m, "{sv}", "CPUs", "d", o->cpus);
        if (r >= 0 && o->tasks_max > 0)
                r = sd_bus_message_append(m, "{sv}", "TasksMax", "t", o->tasks_max);
        if (r >= 0 && o->disk > 0)
                r = sd_bus_message_append(m, "{sv}", "DiskSize", "t", o->disk);
        if (r >= 0 && o->hostname)
                r = sd_bus_message_append(m, "{sv}", "Hostname", "s", o->hostname);
        if (r >= 0 && environment)
                r = append_strings(m, "Environment", o->environment);
        return r < 0 ? r : append_pairs(m, "Metadata", o->metadata);
}

int create_message(struct ctl *c, const char *template, bool environment, sd_bus_message **ret) {
        _cleanup_message_ sd_bus_message *m = NULL;
        int r;

        r = ctl_method(c, BUS_PATH, BUS_INTERFACE_MANAGER, "CreateSandbox", &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "s", template);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0)
                r = append_options(m, c->options, environment);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        if (r < 0) {
                complain("Failed to compose the request%s", r == -EINVAL ? ": arguments must be valid UTF-8" : "");
                return r;
        }
        *ret = TAKE_PTR(m);
        return 0;
}

int verb_create(struct ctl *c, char **arguments) {
        _cleanup_message_ sd_bus_message *m = NULL, *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *id;
        int r;

        r = create_message(c, arguments[0], true, &m);
        if (r < 0)
                return EXIT_FAILURE;
        r = sd_bus_call(c->bus, m, CALL_TIMEOUT_USEC, &error, &reply);
        if (r >= 0)
                r = sd_bus_message_read(reply, "s", &id);
        if (r < 0)
                return complain_bus(&error, r, "Failed to create sandbox from %s", arguments[0]);
        if (c->options->json != JSON_OFF) {
                _cleanup_json_ json_t *json = json_pack("{ss}", "id", id);

                json_print(stdout, json, c->options->json);
        } else
                puts(id);
        return fflush(stdout) == 0 ? EXIT_SUCCESS
                                   : complain("Failed to write to standard output: %s", strerror(errno));
}
