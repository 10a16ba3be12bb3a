/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Feeds arbitrary bytes as a peer would, in pieces, and decodes whatever frames come out. What decodes is encoded
 * again and must give the same bytes: the two halves can't drift apart. */

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "agent-protocol.h"
#include "util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
        if (!condition)
                abort();
}

static const char **strings_to_list(struct agent_strings strings) {
        const char **list = calloc((size_t) strings.count + 1, sizeof(char *));
        struct agent_string s;
        size_t n = 0;

        require(list);
        while (agent_strings_next(&strings, &s) > 0) {
                require(strlen(s.text) == s.length);
                list[n++] = s.text;
        }
        return list;
}

static int encode_exec(struct agent_buffer *b, uint32_t stream, const struct agent_exec *m) {
        const char **argv = strings_to_list(m->argv), **environment = strings_to_list(m->environment);
        int r = agent_put_exec(b, stream, m->flags, m->timeout_usec, m->user.text, m->directory.text, argv,
                               environment);

        free(argv);
        free(environment);
        return r;
}

/* Returns 1 when the frame was decoded and encoded again, 0 when its payload was refused. */
static int once_more(struct agent_buffer *b, const struct agent_header *h, const uint8_t *payload) {
        union {
                struct agent_hello hello;
                struct agent_setup setup;
                struct agent_receipt receipt;
                struct agent_status status;
                struct agent_exec exec;
                struct agent_started started;
                struct agent_credit credit;
                struct agent_signal signal;
                struct agent_exited exited;
        } m;

        switch (h->type) {
        case AGENT_HELLO:
        case AGENT_HELLO_REPLY:
                return agent_get_hello(payload, h->length, &m.hello) >= 0 &&
                       agent_put_hello(b, h->type, &m.hello) >= 0;
        case AGENT_SETUP:
                return agent_get_setup(payload, h->length, &m.setup) >= 0 && agent_put_setup(b, &m.setup) >= 0;
        case AGENT_RECEIPT:
                return agent_get_receipt(payload, h->length, &m.receipt) >= 0 && agent_put_receipt(b, &m.receipt) >= 0;
        case AGENT_FROZEN:
        case AGENT_THAWED:
        case AGENT_EXEC_FAILED:
        case AGENT_ERROR:
                return agent_get_status(payload, h->length, &m.status) >= 0 &&
                       agent_put_status(b, h->type, h->stream, m.status.error, m.status.message.text) >= 0;
        case AGENT_EXEC:
                return agent_get_exec(payload, h->length, &m.exec) >= 0 && encode_exec(b, h->stream, &m.exec) >= 0;
        case AGENT_STARTED:
                return agent_get_started(payload, h->length, &m.started) >= 0 &&
                       agent_put_started(b, h->stream, m.started.pid) >= 0;
        case AGENT_CREDIT:
                return agent_get_credit(payload, h->length, &m.credit) >= 0 &&
                       agent_put_credit(b, h->stream, h->flags, m.credit.bytes) >= 0;
        case AGENT_SIGNAL:
                return agent_get_signal(payload, h->length, &m.signal) >= 0 &&
                       agent_put_signal(b, h->stream, m.signal.signal, m.signal.flags) >= 0;
        case AGENT_EXITED:
                return agent_get_exited(payload, h->length, &m.exited) >= 0 &&
                       agent_put_exited(b, h->stream, &m.exited) >= 0;
        default:
                return agent_put_frame(b, h->type, h->flags, h->stream, payload, h->length) >= 0;
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct agent_reader reader = {};
        size_t offset = 0, consumed = 0;
        int r = 0;

        while (offset < size && r >= 0) {
                /* Pieces of odd lengths, so that frames are cut everywhere. */
                size_t piece = MIN(size - offset, 1 + (offset * 7 + data[offset]) % 200);
                void *room = agent_reader_room(&reader, piece);
                struct agent_header h;
                const uint8_t *payload;

                require(room);
                memcpy(room, data + offset, piece);
                agent_reader_added(&reader, piece);
                offset += piece;

                while ((r = agent_reader_next(&reader, &h, &payload)) > 0) {
                        struct agent_buffer b = {};
                        size_t whole = AGENT_HEADER_SIZE + h.length;

                        require(consumed + whole <= offset);
                        if (once_more(&b, &h, payload)) {
                                require(b.error == 0 && b.size == whole);
                                require(memcmp(b.data, data + consumed, whole) == 0);
                        }
                        consumed += whole;
                        agent_buffer_done(&b);
                }
        }
        agent_reader_done(&reader);
        return 0;
}
