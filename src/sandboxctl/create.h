/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "ctl.h"

/* CreateSandbox with what the options say. environment: as the sandbox's own; else it's left to the command's. */
int create_message(struct ctl *c, const char *template, bool environment, sd_bus_message **ret);
/* {sv} with an array of strings, unless it's empty. */
int append_strings(sd_bus_message *m, const char *option, char **strings);
/* {sv} with a{ss}, of NAME=value strings. */
int append_pairs(sd_bus_message *m, const char *option, char **pairs);
