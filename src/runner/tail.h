/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The last bytes of a stream, for error messages. Zero-initialise with `max` set. */

#include "util.h"

struct tail {
        char *data;
        size_t max, start, used;
};

void tail_done(struct tail *t);
/* Without memory the bytes are lost: they would only have explained something. */
void tail_add(struct tail *t, const void *data, size_t size);
/* As text: other than printable ASCII and newlines becomes '?'. NULL when empty or without memory. */
char *tail_text(const struct tail *t);

/* The same for a text that came from the guest or from QEMU: at most max characters, on one line. */
char *text_sanitise(const char *text, size_t size, size_t max);
