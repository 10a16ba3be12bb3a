/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* org.freedesktop.LogControl1, for `systemctl service-log-level`. */

#include <systemd/sd-bus.h>

int log_control_export(sd_bus *bus);
