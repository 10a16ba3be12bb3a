/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What QEMU's monitor might say. The first byte says how the rest is cut into pieces; how it is cut must not matter.
 */

#include <stdlib.h>

#include "qmp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
        unsigned n_events, n_replies;
        int result;
};

static void on_event(const char *name, json_t *data, void *userdata) {
        struct outcome *o = userdata;

        o->n_events++;
}

static void on_reply(json_t *result, const char *error, void *userdata) {
        struct outcome *o = userdata;

        if (!result == !error)
                abort();
        o->n_replies++;
}

static struct outcome run(const uint8_t *data, size_t size, size_t piece) {
        struct outcome o = {};
        const char *text;
        size_t n;
        Qmp *q;
        int fd;

        if (qmp_new(on_event, &o, &q) < 0)
                abort();
        for (int i = 0; i < 3; i++)
                if (qmp_execute(q, "x", NULL, -1, on_reply, &o) < 0)
                        abort();
        /* The last one stays unsent. */
        for (int i = 0; i < 3 && (n = qmp_output(q, &text, &fd)) > 0; i++)
                qmp_output_sent(q, n);
        for (size_t i = 0; i < size && o.result == 0; i += piece)
                o.result = qmp_feed(q, data + i, MIN(piece, size - i));
        qmp_free(q);
        if (o.n_replies > 2)
                abort();
        return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct outcome whole, pieces;

        if (size < 1 || size > QMP_MESSAGE_MAX)
                return 0;
        whole = run(data + 1, size - 1, size);
        pieces = run(data + 1, size - 1, (size_t) data[0] + 1);
        if (whole.n_events != pieces.n_events || whole.n_replies != pieces.n_replies || whole.result != pieces.result)
                abort();
        return 0;
}
