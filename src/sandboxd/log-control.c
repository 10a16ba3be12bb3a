/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "log-control.h"

#include "log.h"
#include "sandboxd-names.h"

static const char *const levels[] = {
        [LOG_EMERG] = "emerg",     [LOG_ALERT] = "alert",   [LOG_CRIT] = "crit", [LOG_ERR] = "err",
        [LOG_WARNING] = "warning", [LOG_NOTICE] = "notice", [LOG_INFO] = "info", [LOG_DEBUG] = "debug",
};

static int get_level(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                     void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", levels[log_max_level]);
}

static int set_level(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *value,
                     void *userdata, sd_bus_error *error) {
        const char *level;
        int r;

        r = sd_bus_message_read(value, "s", &level);
        if (r < 0)
                return r;
        for (size_t i = 0; i < ELEMENTSOF(levels); i++)
                if (streq(level, levels[i])) {
                        log_max_level = (int) i;
                        return 0;
                }
        return sd_bus_error_setf(error, SD_BUS_ERROR_INVALID_ARGS, "No log level \"%s\"", level);
}

static int get_target(sd_bus *bus, const char *path, const char *interface, const char *property,
                      sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", log_to_journal() ? "journal" : "console");
}

static int set_target(sd_bus *bus, const char *path, const char *interface, const char *property,
                      sd_bus_message *value, void *userdata, sd_bus_error *error) {
        return sd_bus_error_set(error, SD_BUS_ERROR_NOT_SUPPORTED, "The log target follows from where stderr goes");
}

static int get_identifier(sd_bus *bus, const char *path, const char *interface, const char *property,
                          sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", "sandboxd");
}

static const sd_bus_vtable vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_WRITABLE_PROPERTY("LogLevel", "s", get_level, set_level, 0, 0),
        SD_BUS_WRITABLE_PROPERTY("LogTarget", "s", get_target, set_target, 0, 0),
        SD_BUS_PROPERTY("SyslogIdentifier", "s", get_identifier, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_VTABLE_END,
};

int log_control_export(sd_bus *bus) {
        return sd_bus_add_object_vtable(bus, NULL, "/org/freedesktop/LogControl1", "org.freedesktop.LogControl1",
                                        vtable, NULL);
}
