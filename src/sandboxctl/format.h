/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* How values look to people, and how people write them. Pure: nothing here reads a clock or a bus. */

#include "util.h"

/* Long enough for every function below that takes a buffer. */
#define FORMAT_MAX 64

/* "512M", "1.5G", "0B"; UINT64_MAX, which stands for "not known" on the bus: "-". Return buffer. */
char *format_size(uint64_t bytes, char buffer[FORMAT_MAX]);
/* The two largest units: "1h 30min", "4.5s", "250ms", "0". UINT64_MAX: "-". */
char *format_span(uint64_t usec, char buffer[FORMAT_MAX]);
/* "5min ago" or "in 5min"; 0, no time at all: "-". */
char *format_relative(uint64_t usec, uint64_t now, char buffer[FORMAT_MAX]);
/* "Sun 2025-11-30 15:10:52 UTC", local time; 0: "-". */
char *format_timestamp(uint64_t usec, char buffer[FORMAT_MAX]);

/* A copy of s in which whatever a terminal could take for a command is \xNN: text on the bus comes from other users
 * and from guests. keep: control characters to leave alone, such as "\n". NULL: no memory. */
char *escape_terminal(const char *s, const char *keep);
/* Columns that s takes, one a character. */
size_t text_width(const char *s);
/* "a 'b c' d": an argument vector as one line that a shell would read back, except for what had to be escaped. */
char *join_quoted(char *const *argv);

/* "TERM", "SIGTERM", "15", "RTMIN+1" → 15. -EINVAL. */
int parse_signal(const char *s, int *ret);
/* "2h" (that long before now), "today", "yesterday", "2025-11-30", "2025-11-30 15:10[:52]", "@1764515452". -EINVAL or
 * -ERANGE. */
int parse_since(const char *s, uint64_t now, uint64_t *ret);
