/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The one hard idea: a read of a sandbox's (or a process's) properties by anyone but ourselves is held until the
 * caller's rights are known, then sent once more to our own bus name, where sd-bus answers it; the answer is passed
 * on. So the rights are looked up without waiting and the properties stay in their tables. */

#include "guard.h"

#include "authorize.h"
#include "sandbox.h"

static const char *const guarded_interfaces[] = { "org.freedesktop.DBus.Properties",
                                                  "org.freedesktop.DBus.ObjectManager" };

#define GUARDED_MAX 64U

struct guarded {
        struct manager *manager;
        sd_bus_message *call;
};

static int on_answer(sd_bus_message *answer, void *userdata, sd_bus_error *error) {
        _cleanup_free_ struct guarded *g = userdata;
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *call = g->call, *reply = NULL;
        int r;

        g->manager->n_guarded--;

        if (sd_bus_message_is_method_error(answer, NULL))
                return sd_bus_reply_method_error(call, sd_bus_message_get_error(answer));
        r = sd_bus_message_new_method_return(call, &reply);
        if (r >= 0)
                r = sd_bus_message_copy(reply, answer, true);
        return r < 0 ? sd_bus_reply_method_errno(call, r, NULL) : sd_bus_send(NULL, reply, NULL);
}

static int pass_on(struct call *c, sd_bus_error *error) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *again = NULL;
        _cleanup_free_ struct guarded *g = malloc(sizeof(*g));
        const char *self;
        int r;

        if (!g)
                return -ENOMEM;
        *g = (struct guarded){ c->manager, c->message };

        /* The bus has a limit on unanswered calls, which all callers together must not reach. */
        if (c->manager->n_guarded >= GUARDED_MAX)
                return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED,
                                         "Too many properties are being read at once");
        r = sd_bus_get_unique_name(c->manager->bus, &self);
        if (r >= 0)
                r = sd_bus_message_new_method_call(c->manager->bus, &again, self, sd_bus_message_get_path(c->message),
                                                   sd_bus_message_get_interface(c->message),
                                                   sd_bus_message_get_member(c->message));
        if (r >= 0)
                r = sd_bus_message_copy(again, c->message, true);
        if (r >= 0)
                r = sd_bus_call_async(c->manager->bus, NULL, again, on_answer, g, 0);
        if (r < 0)
                return r;
        c->manager->n_guarded++;
        sd_bus_message_ref(c->message);
        TAKE_PTR(g);
        return 0;
}

static bool is_guarded(const char *interface) {
        for (size_t i = 0; i < ELEMENTSOF(guarded_interfaces); i++)
                if (streq(strempty(interface), guarded_interfaces[i]))
                        return true;
        /* Without an interface any could be meant. */
        return isempty(interface);
}

/* The sandbox that a path is about, its processes included. */
static struct sandbox *sandbox_of_path(struct manager *m, const char *path) {
        char id[ID_SIZE] = "";

        if (strncmp(path, BUS_PATH_SANDBOX "/", strlen(BUS_PATH_SANDBOX "/")) != 0)
                return NULL;
        strncpy(id, path + strlen(BUS_PATH_SANDBOX "/"), ID_SIZE - 1);
        return sandbox_by_id(m, id);
}

static int on_message(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct manager *m = userdata;
        const char *path = sd_bus_message_get_path(message), *self;
        struct sandbox *s;

        if (!sd_bus_message_is_method_call(message, NULL, NULL) || !is_guarded(sd_bus_message_get_interface(message)))
                return 0;
        if (sd_bus_get_unique_name(m->bus, &self) >= 0 && streq_ptr(self, sd_bus_message_get_sender(message)))
                return 0;
        s = sandbox_of_path(m, strempty(path));
        if (!s && !sd_bus_message_is_method_call(message, "org.freedesktop.DBus.ObjectManager", NULL))
                return 0;
        return call_authorize(m, message, VERB_INSPECT, s, NULL, pass_on);
}

int guard_install(struct manager *m) {
        return sd_bus_add_filter(m->bus, NULL, on_message, m);
}
