/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A record as found on disk. What is accepted must be written again as the same record. */

#include <stdlib.h>

#include "manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(manifest_freep) struct manifest *m = NULL;
        _cleanup_free_ char *message = NULL;
        json_t *json, *again = NULL;

        json = json_loadb((const char *) data, size, JSON_REJECT_DUPLICATES, NULL);
        if (!json)
                return 0;
        if (manifest_from_json(json, &m, &message) >= 0) {
                if (manifest_to_json(m, &again) < 0 || !json_equal(json, again))
                        abort();
        } else if (!message)
                abort();
        json_decref(again);
        json_decref(json);
        return 0;
}
