/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Small helpers for vtables. */

#include <jansson.h>
#include <systemd/sd-bus.h>

#include "util.h"

/* Announces an object without its properties: everyone hears signals, and not all may read those. */
int bus_emit_added(sd_bus *bus, const char *path, const char *interface);
/* Appends a JSON object of strings as a{ss}. */
int bus_append_dict(sd_bus_message *reply, json_t *object);
/* Adds a call to those that wait for one event. */
int bus_calls_add(sd_bus_message ***calls, size_t *n, sd_bus_message *call);
