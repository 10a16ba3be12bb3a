/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "bus-util.h"

#include "sandboxd-names.h"

int bus_emit_added(sd_bus *bus, const char *path, const char *interface) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        int r;

        r = sd_bus_message_new_signal(bus, &m, BUS_PATH, "org.freedesktop.DBus.ObjectManager", "InterfacesAdded");
        if (r >= 0)
                r = sd_bus_message_append(m, "oa{sa{sv}}", path, 1, interface, 0);
        return r < 0 ? r : sd_bus_send(NULL, m, NULL);
}

int bus_append_dict(sd_bus_message *reply, json_t *object) {
        const char *key;
        json_t *value;
        int r;

        r = sd_bus_message_open_container(reply, 'a', "{ss}");
        if (r < 0)
                return r;
        json_object_foreach (object, key, value) {
                r = sd_bus_message_append(reply, "{ss}", key, strempty(json_string_value(value)));
                if (r < 0)
                        return r;
        }
        return sd_bus_message_close_container(reply);
}

int bus_calls_add(sd_bus_message ***calls, size_t *n, sd_bus_message *call) {
        sd_bus_message **grown = reallocarray(*calls, *n + 1, sizeof(*grown));

        if (!grown)
                return -ENOMEM;
        *calls = grown;
        grown[(*n)++] = sd_bus_message_ref(call);
        return 0;
}
