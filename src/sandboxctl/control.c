/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Verbs that change a sandbox: ttl, kill, rm. */

#include <signal.h>

#include "ctl.h"

int verb_ttl(struct ctl *c, char **arguments) {
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_free_ char *path = NULL;
        uint64_t usec;
        int r;

        if (streq(arguments[1], "none"))
                usec = 0;
        else if (parse_usec(arguments[1], &usec) < 0)
                return complain("%s is not a time such as 90s, 10min, infinity or none", arguments[1]);
        if (usec == USEC_INFINITY)
                usec = 0;
        r = find_sandbox(c, arguments[0], &path);
        if (r < 0)
                return EXIT_FAILURE;
        r = ctl_call(c, path, BUS_INTERFACE_SANDBOX, "SetTTL", &error, NULL, "tt", usec, UINT64_C(0));
        return r < 0 ? complain_bus(&error, r, "Failed to set the ttl of sandbox %s", arguments[0]) : EXIT_SUCCESS;
}

/* Object of the command with that number: -ENOENT when there's none. */
static int find_process(struct ctl *c, const char *sandbox, uint64_t number, sd_bus_error *error, char **ret) {
        _cleanup_message_ sd_bus_message *reply = NULL;
        int r;

        r = ctl_call(c, sandbox, BUS_INTERFACE_SANDBOX, "ListProcesses", error, &reply, "t", UINT64_C(0));
        if (r >= 0)
                r = sd_bus_message_enter_container(reply, 'a', "(uasssito)");
        while (r >= 0 && (r = sd_bus_message_enter_container(reply, 'r', "uasssito")) > 0) {
                uint32_t id;
                const char *path;

                r = sd_bus_message_read(reply, "u", &id);
                if (r >= 0)
                        r = sd_bus_message_skip(reply, "asssit");
                if (r >= 0)
                        r = sd_bus_message_read(reply, "o", &path);
                if (r >= 0 && id == number) {
                        *ret = strdup(path);
                        return *ret ? 0 : -ENOMEM;
                }
                if (r >= 0)
                        r = sd_bus_message_exit_container(reply);
        }
        return r < 0 ? r : -ENOENT;
}

int verb_kill(struct ctl *c, char **arguments) {
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_free_ char *sandbox = NULL, *process = NULL;
        const struct options *o = c->options;
        int number = o->signal > 0 ? o->signal : SIGTERM, r;

        r = find_sandbox(c, arguments[0], &sandbox);
        if (r < 0)
                return EXIT_FAILURE;
        if (o->process == 0)
                r = ctl_call(c, sandbox, BUS_INTERFACE_SANDBOX, "Kill", &error, NULL, "it", number, UINT64_C(0));
        else {
                r = find_process(c, sandbox, o->process, &error, &process);
                if (r == -ENOENT && !sd_bus_error_is_set(&error))
                        return complain("Sandbox %s has no command %llu; see sandboxctl ps", arguments[0],
                                        (unsigned long long) o->process);
                if (r >= 0)
                        r = ctl_call(c, process, BUS_INTERFACE_PROCESS, "Signal", &error, NULL, "it", number,
                                     UINT64_C(0));
        }
        return r < 0 ? complain_bus(&error, r, "Failed to signal sandbox %s", arguments[0]) : EXIT_SUCCESS;
}

/* Removals go on side by side, as each waits for its machine. */
struct removal {
        struct ctl *ctl;
        size_t pending;
        int status;
};

static bool missing_is_fine(struct ctl *c, const sd_bus_error *error) {
        return c->options->force &&
               sd_bus_error_has_names(error, BUS_ERROR_NO_SUCH_SANDBOX, SD_BUS_ERROR_UNKNOWN_OBJECT) > 0;
}

static int on_removed(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        struct removal *removal = userdata;
        const sd_bus_error *error = sd_bus_message_get_error(reply);

        removal->pending--;
        if (error && !missing_is_fine(removal->ctl, error))
                removal->status = complain_bus(error, 0, "Failed to remove a sandbox");
        return 0;
}

static int remove_object(struct removal *removal, const char *path) {
        _cleanup_message_ sd_bus_message *m = NULL;
        int r;

        r = ctl_method(removal->ctl, path, BUS_INTERFACE_SANDBOX, "Remove", &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        if (r >= 0)
                r = sd_bus_call_async(removal->ctl->bus, NULL, m, on_removed, removal, CALL_TIMEOUT_USEC);
        if (r >= 0)
                removal->pending++;
        return r;
}

static int remove_named(struct removal *removal, const char *name) {
        _cleanup_message_ sd_bus_message *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *path;
        int r;

        r = ctl_call(removal->ctl, BUS_PATH, BUS_INTERFACE_MANAGER, "GetSandbox", &error, &reply, "st", name,
                     UINT64_C(0));
        if (r < 0 && missing_is_fine(removal->ctl, &error))
                return 0;
        if (r >= 0)
                r = sd_bus_message_read(reply, "o", &path);
        if (r >= 0)
                r = remove_object(removal, path);
        if (r < 0)
                removal->status = complain_bus(&error, r, "Failed to remove sandbox %s", name);
        return r;
}

/* The caller's own, also when the caller could list those of others. */
static int remove_all(struct removal *removal) {
        _cleanup_message_ sd_bus_message *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *path;
        int r;

        r = ctl_call(removal->ctl, BUS_PATH, BUS_INTERFACE_MANAGER, "ListSandboxes", &error, &reply, "a{sv}t", 1,
                     "Owner", "u", (uint32_t) getuid(), UINT64_C(0));
        if (r >= 0)
                r = sd_bus_message_enter_container(reply, 'a', "(ssusstto)");
        while (r >= 0 && (r = sd_bus_message_enter_container(reply, 'r', "ssusstto")) > 0) {
                r = sd_bus_message_skip(reply, "ssusstt");
                if (r >= 0)
                        r = sd_bus_message_read(reply, "o", &path);
                if (r >= 0)
                        r = remove_object(removal, path);
                if (r >= 0)
                        r = sd_bus_message_exit_container(reply);
        }
        if (r < 0)
                removal->status = complain_bus(&error, r, "Failed to list sandboxes");
        return r;
}

int verb_remove(struct ctl *c, char **arguments) {
        struct removal removal = { .ctl = c, .status = EXIT_SUCCESS };
        int r = 0;

        if (c->options->all == (arguments[0] != NULL))
                return complain("rm takes either the names of sandboxes or --all");
        if (c->options->all)
                (void) remove_all(&removal);
        for (; *arguments; arguments++)
                (void) remove_named(&removal, *arguments);
        while (removal.pending > 0 && r >= 0) {
                r = sd_bus_process(c->bus, NULL);
                if (r == 0)
                        r = sd_bus_wait(c->bus, UINT64_MAX);
        }
        return r < 0 ? complain("Failed to wait for the removal: %s", strerror(-r)) : removal.status;
}
