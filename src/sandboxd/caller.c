/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "caller.h"

/* Names in memory; when full the oldest makes room. */
#define CACHE_SIZE 256U

struct known {
        char *name;
        uid_t uid;
};

struct callers {
        sd_bus *bus;
        struct known cache[CACHE_SIZE];
        size_t next;
};

struct caller_query {
        struct callers *callers;
        char *sender;
        caller_handler_t handler;
        void *userdata;
};

int callers_new(sd_bus *bus, struct callers **ret) {
        struct callers *c = calloc(1, sizeof(*c));

        if (!c)
                return -ENOMEM;
        c->bus = bus;
        *ret = c;
        return 0;
}

struct callers *callers_free(struct callers *c) {
        if (!c)
                return NULL;
        for (size_t i = 0; i < CACHE_SIZE; i++)
                free(c->cache[i].name);
        free(c);
        return NULL;
}

static void remember(struct callers *c, const char *name, uid_t uid) {
        struct known *k = &c->cache[c->next];
        char *copy = strdup(name);

        if (!copy)
                return;
        free(k->name);
        *k = (struct known){ .name = copy, .uid = uid };
        c->next = (c->next + 1) % CACHE_SIZE;
}

static void query_free(void *p) {
        struct caller_query *q = p;

        free(q->sender);
        free(q);
}

static int on_uid(sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        struct caller_query *q = userdata;
        uint32_t uid = UINT32_MAX;
        int r;

        if (sd_bus_message_is_method_error(reply, NULL))
                r = -sd_bus_message_get_errno(reply);
        else
                r = sd_bus_message_read(reply, "u", &uid);
        if (r >= 0)
                remember(q->callers, q->sender, uid);
        q->handler(r < 0 ? r : 0, uid, q->userdata);
        return 0;
}

int callers_query(struct callers *c, const char *sender, caller_handler_t handler, void *userdata) {
        struct caller_query *q;
        sd_bus_slot *slot;
        int r;

        for (size_t i = 0; i < CACHE_SIZE; i++)
                if (streq_ptr(c->cache[i].name, sender)) {
                        handler(0, c->cache[i].uid, userdata);
                        return 0;
                }
        q = calloc(1, sizeof(*q));
        if (!q)
                return -ENOMEM;
        *q = (struct caller_query){ .callers = c, .sender = strdup(sender), .handler = handler, .userdata = userdata };
        r = !q->sender ? -ENOMEM
                       : sd_bus_call_method_async(c->bus, &slot, "org.freedesktop.DBus", "/org/freedesktop/DBus",
                                                  "org.freedesktop.DBus", "GetConnectionUnixUser", on_uid, q, "s",
                                                  sender);
        if (r < 0) {
                query_free(q);
                return r;
        }
        sd_bus_slot_set_destroy_callback(slot, query_free);
        sd_bus_slot_set_floating(slot, true);
        sd_bus_slot_unref(slot);
        return 0;
}
