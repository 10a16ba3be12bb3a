/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Standard input, output and error of a command in a sandbox. Ours are handed to the service where that is possible,
 * and then nothing of the data passes here. A terminal (or another device) stays with us: the service gets a pipe. */

#include <systemd/sd-bus.h>

#include "pump.h"

struct streams {
        int given[3];          /* for the service; -1: none. Owned where there is a pump */
        struct pump *pumps[3]; /* NULL where ours was handed over, and for stderr when it shares stdout's pipe */
};

/* Without input the command has nothing to read. streams_done() in any case. */
int streams_open(struct streams *s, sd_event *event, bool input);
void streams_done(struct streams *s);
/* Options of Exec, inside an open a{sv}. */
int streams_append(const struct streams *s, sd_bus_message *m);
/* The service has its own copies: with ours open a pipe would never end. */
void streams_close_given(struct streams *s);
/* The command has ended and all of its output is in our pipes. */
void streams_finish(struct streams *s);
bool streams_delivered(const struct streams *s);
