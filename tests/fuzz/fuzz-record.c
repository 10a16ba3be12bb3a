/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "sandbox.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        json_t *record = json_loadb((const char *) data, size, JSON_REJECT_DUPLICATES, NULL), *again;
        struct manager *m = calloc(1, sizeof(*m));
        struct sandbox *s;

        if (m && sandbox_record_load(m, record, &s) >= 0) {
                /* What was read can be written. */
                if (sandbox_record_to_json(s, &again) < 0)
                        abort();
                json_decref(again);
                sandbox_free(s);
        }
        json_decref(record);
        free(m);
        return 0;
}
