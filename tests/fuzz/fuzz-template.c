/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A template's description. A refusal must say where. */

#include <stdlib.h>

#include "template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(template_freep) struct template *t = NULL;
        _cleanup_free_ char *message = NULL;
        int r;

        if (size > TEMPLATE_SIZE_MAX)
                return 0;
        r = template_parse(data, size, &t, &message);
        if (r < 0 && (t || !message || strncmp(message, "line ", 5) != 0))
                abort();
        if (r >= 0 && (!t || message || (!t->packages && !t->rootfs)))
                abort();
        return 0;
}
