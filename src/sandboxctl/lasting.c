/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "lasting.h"

#include <stdarg.h>

struct lasting {
        struct ctl *ctl;
        char *path;
        const char *interface, *member;
        lasting_done_t done;
        void *userdata;
        bool lost; /* the service went away, and the call with it */
        sd_bus_slot *owner_match;
        sd_bus_slot *call;      /* of the method, or of the question that is open while the service is lost */
        sd_event_source *timer; /* how long it may be lost */
};

static int on_reply(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error);

static int issue(struct lasting *l) {
        _cleanup_message_ sd_bus_message *m = NULL;
        int r;

        l->call = sd_bus_slot_unref(l->call);
        r = ctl_method(l->ctl, l->path, l->interface, l->member, &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        /* Who stopped the service meant it: waiting for a command is no reason to start it again at once. */
        if (r >= 0)
                r = sd_bus_message_set_auto_start(m, !l->lost);
        if (r >= 0)
                r = sd_bus_call_async(l->ctl->bus, &l->call, m, on_reply, l, UINT64_MAX);
        return r;
}

static void found(struct lasting *l) {
        int r = issue(l);

        if (r < 0) {
                complain("Failed to ask sandboxd again: %s", strerror(-r));
                return; /* the timer ends it */
        }
        l->lost = false;
        l->timer = sd_event_source_disable_unref(l->timer);
}

static int on_owner_changed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        struct lasting *l = userdata;
        const char *name, *before, *after;

        if (sd_bus_message_read(m, "sss", &name, &before, &after) >= 0 && *after && l->lost)
                found(l);
        return 0;
}

static int on_has_owner(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        struct lasting *l = userdata;
        int owned = false;

        if (!sd_bus_message_is_method_error(reply, NULL) && sd_bus_message_read(reply, "b", &owned) >= 0 && owned &&
            l->lost)
                found(l);
        return 0;
}

/* The last resort gave either a service or a reason. */
static int on_started(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        struct lasting *l = userdata;

        if (sd_bus_message_is_method_error(reply, NULL))
                l->done(reply, l->userdata);
        else if (l->lost)
                found(l);
        return 0;
}

static int ask_bus(struct lasting *l, const char *member, sd_bus_message_handler_t handler, const char *types, ...) {
        _cleanup_message_ sd_bus_message *m = NULL;
        va_list ap;
        int r;

        l->call = sd_bus_slot_unref(l->call);
        r = sd_bus_message_new_method_call(l->ctl->bus, &m, "org.freedesktop.DBus", "/org/freedesktop/DBus",
                                           "org.freedesktop.DBus", member);
        if (r < 0)
                return r;
        va_start(ap, types);
        r = sd_bus_message_appendv(m, types, ap);
        va_end(ap);
        if (r >= 0)
                r = sd_bus_call_async(l->ctl->bus, &l->call, m, handler, l, CALL_TIMEOUT_USEC);
        return r;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        struct lasting *l = userdata;

        if (ask_bus(l, "StartServiceByName", on_started, "su", BUS_NAME, 0U) < 0)
                l->done(NULL, l->userdata);
        return 0;
}

/* It may be back already, before we knew that it had gone. */
static int service_lost(struct lasting *l) {
        int r;

        l->lost = true;
        l->timer = sd_event_source_disable_unref(l->timer);
        r = sd_event_add_time_relative(sd_bus_get_event(l->ctl->bus), &l->timer, CLOCK_MONOTONIC, LASTING_TIMEOUT_USEC,
                                       0, on_timer, l);
        if (r >= 0)
                r = ask_bus(l, "NameHasOwner", on_has_owner, "s", BUS_NAME);
        return r;
}

static int on_reply(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        struct lasting *l = userdata;
        const sd_bus_error *error = sd_bus_message_get_error(reply);

        /* The slot is held while its handler runs, so it may be dropped and taken for the next call. */
        if (error && service_is_gone(error) && sd_bus_is_open(l->ctl->bus) > 0 && service_lost(l) >= 0)
                return 0;
        l->done(reply, l->userdata);
        return 0;
}

int lasting_call(struct ctl *c, const char *path, const char *interface, const char *member, lasting_done_t done,
                 void *userdata, struct lasting **ret) {
        _cleanup_(lasting_freep) struct lasting *l = malloc(sizeof(*l));
        int r;

        if (!l)
                return -ENOMEM;
        *l = (struct lasting){ .ctl = c,
                               .path = strdup(path),
                               .interface = interface,
                               .member = member,
                               .done = done,
                               .userdata = userdata };
        if (!l->path)
                return -ENOMEM;
        r = sd_bus_add_match_async(c->bus, &l->owner_match,
                                   "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',"
                                   "interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='" BUS_NAME "'",
                                   on_owner_changed, NULL, l);
        if (r >= 0)
                r = issue(l);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

struct lasting *lasting_free(struct lasting *l) {
        if (!l)
                return NULL;
        sd_bus_slot_unref(l->owner_match);
        sd_bus_slot_unref(l->call);
        sd_event_source_disable_unref(l->timer);
        free(l->path);
        free(l);
        return NULL;
}
