/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* One table says what a header may look like for each type; encoder and reader both ask it, so neither side can send
 * what the other refuses. Everything else is a cursor over memory that fails once and stays failed. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "agent-protocol.h"
#include "util.h"

#define HELLO_SIZE (4 + 4 + AGENT_NONCE_SIZE)
#define SETUP_SIZE (AGENT_NONCE_SIZE + 8 + 8 + 16 + 16 + AGENT_SEED_SIZE + 8 + 8 + 4 + 4 + 4)
#define RECEIPT_SIZE (AGENT_NONCE_SIZE + 8 + 4 + 4 + 8 + 4)
#define STRING_MIN (4 + 1)         /* an empty string: its length and the NUL */
#define MESSAGE_MAX 1000U          /* sentences for people are cut here, so that a report can't fail for its length */
#define HOSTNAME_MAX 64U           /* as in the kernel */
#define BUFFER_KEEP (256U * 1024U) /* an empty reader doesn't hold more than this */

enum stream_rule { MACHINE, COMMAND, EITHER };

static const struct frame_rule {
        uint32_t min, max; /* payload bytes */
        uint16_t flags_max;
        uint8_t stream;
} frame_rules[_AGENT_TYPE_MAX] = {
        [AGENT_HELLO] = { HELLO_SIZE, HELLO_SIZE, 0, MACHINE },
        [AGENT_HELLO_REPLY] = { HELLO_SIZE, HELLO_SIZE, 0, MACHINE },
        [AGENT_SETUP] = { SETUP_SIZE + STRING_MIN, SETUP_SIZE + STRING_MIN + HOSTNAME_MAX, 0, MACHINE },
        [AGENT_RECEIPT] = { RECEIPT_SIZE + STRING_MIN, RECEIPT_SIZE + STRING_MIN + MESSAGE_MAX, 0, MACHINE },
        [AGENT_FREEZE] = { 0, 0, AGENT_FREEZE_SYNC, MACHINE },
        [AGENT_FROZEN] = { 4 + STRING_MIN, 4 + STRING_MIN + MESSAGE_MAX, 0, MACHINE },
        [AGENT_THAW] = { 0, 0, 0, MACHINE },
        [AGENT_THAWED] = { 4 + STRING_MIN, 4 + STRING_MIN + MESSAGE_MAX, 0, MACHINE },
        [AGENT_EXEC] = { 4 + 8 + 2 * STRING_MIN + 2 * 4, AGENT_PAYLOAD_MAX, 0, COMMAND },
        [AGENT_STARTED] = { 4, 4, 0, COMMAND },
        [AGENT_EXEC_FAILED] = { 4 + STRING_MIN, 4 + STRING_MIN + MESSAGE_MAX, 0, COMMAND },
        [AGENT_DATA] = { 1, AGENT_DATA_MAX, _AGENT_CHANNEL_MAX - 1, COMMAND },
        [AGENT_EOF] = { 0, 0, _AGENT_CHANNEL_MAX - 1, COMMAND },
        [AGENT_CLOSE] = { 0, 0, _AGENT_CHANNEL_MAX - 1, COMMAND },
        [AGENT_CREDIT] = { 4, 4, _AGENT_CHANNEL_MAX - 1, COMMAND },
        [AGENT_SIGNAL] = { 8, 8, 0, EITHER },
        [AGENT_EXITED] = { 28, 28, 0, COMMAND },
        [AGENT_PING] = { 0, 64, 0, MACHINE },
        [AGENT_PONG] = { 0, 64, 0, MACHINE },
        [AGENT_ERROR] = { 4 + STRING_MIN, 4 + STRING_MIN + MESSAGE_MAX, 0, EITHER },
};

static bool header_is_valid(const struct agent_header *h) {
        if (h->type < AGENT_HELLO || h->type >= _AGENT_TYPE_MAX)
                return false;

        const struct frame_rule *rule = &frame_rules[h->type];
        if (h->length < rule->min || h->length > rule->max || h->flags > rule->flags_max)
                return false;
        return rule->stream == EITHER || (rule->stream == COMMAND) == (h->stream != 0);
}

/* ---- writing ---- */

void agent_buffer_done(struct agent_buffer *b) {
        free(b->data);
        *b = (struct agent_buffer){};
}

static void put(struct agent_buffer *b, const void *data, size_t size) {
        if (b->error || size == 0)
                return;
        if (size > SIZE_MAX / 4 - b->size) {
                b->error = -ENOMEM;
                return;
        }
        if (b->allocated - b->size < size) {
                size_t allocated = MAX(b->allocated, 256U);
                while (allocated - b->size < size)
                        allocated *= 2;

                uint8_t *p = realloc(b->data, allocated);
                if (!p) {
                        b->error = -ENOMEM;
                        return;
                }
                b->data = p;
                b->allocated = allocated;
        }
        memcpy(b->data + b->size, data, size);
        b->size += size;
}

static void encode(uint8_t *p, uint64_t value, size_t size) {
        for (size_t i = 0; i < size; i++)
                p[i] = (uint8_t) (value >> (8 * i));
}

static void put_u32(struct agent_buffer *b, uint32_t value) {
        uint8_t raw[4];
        encode(raw, value, sizeof(raw));
        put(b, raw, sizeof(raw));
}

static void put_u64(struct agent_buffer *b, uint64_t value) {
        uint8_t raw[8];
        encode(raw, value, sizeof(raw));
        put(b, raw, sizeof(raw));
}

static void put_string(struct agent_buffer *b, const char *text, size_t length) {
        if (length > AGENT_PAYLOAD_MAX) {
                if (!b->error)
                        b->error = -EMSGSIZE;
                return;
        }
        if (length > 0 && memchr(text, 0, length)) {
                if (!b->error)
                        b->error = -EINVAL;
                return;
        }
        put_u32(b, (uint32_t) length);
        put(b, text, length);
        put(b, "", 1);
}

static void put_text(struct agent_buffer *b, const char *text) {
        text = strempty(text);
        put_string(b, text, strlen(text));
}

static void put_message(struct agent_buffer *b, const char *text, size_t length) {
        put_string(b, text, MIN(length, MESSAGE_MAX));
}

static void put_texts(struct agent_buffer *b, const char *const *list) {
        uint32_t n = 0;

        while (list && list[n])
                if (++n > AGENT_STRINGS_MAX) {
                        if (!b->error)
                                b->error = -EMSGSIZE;
                        return;
                }
        put_u32(b, n);
        for (uint32_t i = 0; i < n; i++)
                put_text(b, list[i]);
}

/* Where a frame begins, so that a failed one can be taken back. */
struct frame {
        struct agent_buffer *buffer;
        size_t start;
        struct agent_header header;
        int error_before;
};

static struct frame frame_begin(struct agent_buffer *b, enum agent_type type, uint16_t flags, uint32_t stream) {
        static const uint8_t placeholder[AGENT_HEADER_SIZE] = {};
        struct frame f = {
                .buffer = b,
                .start = b->size,
                .header = { .type = (uint16_t) type, .flags = flags, .stream = stream },
                .error_before = b->error,
        };

        put(b, placeholder, sizeof(placeholder));
        return f;
}

static int frame_end(struct frame *f) {
        struct agent_buffer *b = f->buffer;

        if (f->error_before)
                return f->error_before;
        if (!b->error) {
                size_t length = b->size - f->start - AGENT_HEADER_SIZE;

                f->header.length = (uint32_t) MIN(length, UINT32_MAX);
                if (length > AGENT_PAYLOAD_MAX)
                        b->error = -EMSGSIZE;
                else if (!header_is_valid(&f->header))
                        b->error = f->header.type > 0 && f->header.type < _AGENT_TYPE_MAX &&
                                                   length > frame_rules[f->header.type].max
                                           ? -EMSGSIZE
                                           : -EINVAL;
        }
        if (b->error) {
                b->size = f->start;
                return b->error;
        }

        uint8_t *p = b->data + f->start;
        encode(p, f->header.length, 4);
        encode(p + 4, f->header.type, 2);
        encode(p + 6, f->header.flags, 2);
        encode(p + 8, f->header.stream, 4);
        return 0;
}

int agent_put_frame(struct agent_buffer *b, enum agent_type type, uint16_t flags, uint32_t stream, const void *payload,
                    size_t size) {
        struct frame f = frame_begin(b, type, flags, stream);
        put(b, payload, size);
        return frame_end(&f);
}

int agent_put_hello(struct agent_buffer *b, enum agent_type type, const struct agent_hello *m) {
        struct frame f = frame_begin(b, type, 0, 0);
        put_u32(b, m->version);
        put_u32(b, m->features);
        put(b, m->nonce, sizeof(m->nonce));
        return frame_end(&f);
}

int agent_put_setup(struct agent_buffer *b, const struct agent_setup *m) {
        struct frame f = frame_begin(b, AGENT_SETUP, 0, 0);
        put(b, m->nonce, sizeof(m->nonce));
        put_u64(b, m->generation);
        put_u64(b, m->realtime_nsec);
        put(b, m->machine_id, sizeof(m->machine_id));
        put(b, m->boot_token, sizeof(m->boot_token));
        put(b, m->seed, sizeof(m->seed));
        put_u64(b, m->disk_size);
        put_u64(b, m->memory_max);
        put_u32(b, m->address);
        put_u32(b, m->gateway);
        put_u32(b, m->prefix);
        put_string(b, m->hostname.text, m->hostname.length);
        return frame_end(&f);
}

int agent_put_receipt(struct agent_buffer *b, const struct agent_receipt *m) {
        struct frame f = frame_begin(b, AGENT_RECEIPT, 0, 0);
        put(b, m->nonce, sizeof(m->nonce));
        put_u64(b, m->generation);
        put_u32(b, m->steps);
        put_u32(b, m->error);
        put_u64(b, (uint64_t) m->clock_step_nsec);
        put_u32(b, m->entropy_bytes);
        put_message(b, m->message.text, m->message.length);
        return frame_end(&f);
}

int agent_put_status(struct agent_buffer *b, enum agent_type type, uint32_t stream, uint32_t error,
                     const char *message) {
        struct frame f = frame_begin(b, type, 0, stream);
        message = strempty(message);
        put_u32(b, error);
        put_message(b, message, strlen(message));
        return frame_end(&f);
}

int agent_put_exec(struct agent_buffer *b, uint32_t stream, uint32_t flags, uint64_t timeout_usec, const char *user,
                   const char *directory, const char *const *argv, const char *const *environment) {
        struct frame f = frame_begin(b, AGENT_EXEC, 0, stream);
        put_u32(b, flags);
        put_u64(b, timeout_usec);
        put_text(b, user);
        put_text(b, directory);
        if (!b->error && (!argv || !argv[0]))
                b->error = -EINVAL;
        put_texts(b, argv);
        put_texts(b, environment);
        return frame_end(&f);
}

int agent_put_started(struct agent_buffer *b, uint32_t stream, uint32_t pid) {
        struct frame f = frame_begin(b, AGENT_STARTED, 0, stream);
        put_u32(b, pid);
        return frame_end(&f);
}

int agent_put_credit(struct agent_buffer *b, uint32_t stream, enum agent_channel channel, uint32_t bytes) {
        struct frame f = frame_begin(b, AGENT_CREDIT, (uint16_t) channel, stream);
        put_u32(b, bytes);
        return frame_end(&f);
}

int agent_put_signal(struct agent_buffer *b, uint32_t stream, uint32_t signal, uint32_t flags) {
        struct frame f = frame_begin(b, AGENT_SIGNAL, 0, stream);
        put_u32(b, signal);
        put_u32(b, flags);
        return frame_end(&f);
}

int agent_put_exited(struct agent_buffer *b, uint32_t stream, const struct agent_exited *m) {
        struct frame f = frame_begin(b, AGENT_EXITED, 0, stream);
        put_u32(b, m->kind);
        put_u32(b, m->status);
        put_u64(b, m->cpu_usec);
        put_u64(b, m->memory_peak);
        put_u32(b, m->leftovers);
        return frame_end(&f);
}

/* ---- reading ---- */

/* What is left of a payload. Reading past the end yields zeros and sets bad; cursor_end() is the one place to ask. */
struct cursor {
        const uint8_t *data;
        size_t size;
        bool bad;
};

static uint64_t decode(const uint8_t *p, size_t size) {
        uint64_t value = 0;

        for (size_t i = 0; i < size; i++)
                value |= (uint64_t) p[i] << (8 * i);
        return value;
}

static const uint8_t *take(struct cursor *c, size_t size) {
        if (c->bad || c->size < size) {
                c->bad = true;
                return NULL;
        }

        const uint8_t *p = c->data;
        c->data += size;
        c->size -= size;
        return p;
}

static uint64_t take_integer(struct cursor *c, size_t size) {
        const uint8_t *p = take(c, size);
        return p ? decode(p, size) : 0;
}
static uint32_t take_u32(struct cursor *c) {
        return (uint32_t) take_integer(c, 4);
}
static uint64_t take_u64(struct cursor *c) {
        return take_integer(c, 8);
}

static void take_bytes(struct cursor *c, uint8_t *ret, size_t size) {
        const uint8_t *p = take(c, size);

        if (p)
                memcpy(ret, p, size);
        else
                memset(ret, 0, size);
}

static struct agent_string take_string(struct cursor *c) {
        uint32_t length = take_u32(c);
        const uint8_t *p = c->size > length ? take(c, (size_t) length + 1) : NULL;

        /* The first NUL must be the one behind the text. */
        if (!p || memchr(p, 0, (size_t) length + 1) != p + length) {
                c->bad = true;
                return (struct agent_string){ .text = "" };
        }
        return (struct agent_string){ .text = (const char *) p, .length = length };
}

static struct agent_strings take_strings(struct cursor *c) {
        struct agent_strings s = { .count = take_u32(c), .data = c->data };

        if (s.count > AGENT_STRINGS_MAX)
                c->bad = true;
        for (uint32_t i = 0; i < s.count && !c->bad; i++)
                (void) take_string(c);
        if (c->bad)
                return (struct agent_strings){};
        s.size = (uint32_t) (c->data - s.data);
        return s;
}

static int cursor_end(const struct cursor *c) {
        return c->bad || c->size > 0 ? -EBADMSG : 0;
}

int agent_get_hello(const void *payload, size_t size, struct agent_hello *ret) {
        struct cursor c = { .data = payload, .size = size };

        ret->version = take_u32(&c);
        ret->features = take_u32(&c);
        take_bytes(&c, ret->nonce, sizeof(ret->nonce));
        return cursor_end(&c);
}

int agent_get_setup(const void *payload, size_t size, struct agent_setup *ret) {
        struct cursor c = { .data = payload, .size = size };

        take_bytes(&c, ret->nonce, sizeof(ret->nonce));
        ret->generation = take_u64(&c);
        ret->realtime_nsec = take_u64(&c);
        take_bytes(&c, ret->machine_id, sizeof(ret->machine_id));
        take_bytes(&c, ret->boot_token, sizeof(ret->boot_token));
        take_bytes(&c, ret->seed, sizeof(ret->seed));
        ret->disk_size = take_u64(&c);
        ret->memory_max = take_u64(&c);
        ret->address = take_u32(&c);
        ret->gateway = take_u32(&c);
        ret->prefix = take_u32(&c);
        ret->hostname = take_string(&c);
        if (ret->prefix > 32)
                return -EBADMSG;
        return cursor_end(&c);
}

int agent_get_receipt(const void *payload, size_t size, struct agent_receipt *ret) {
        struct cursor c = { .data = payload, .size = size };

        take_bytes(&c, ret->nonce, sizeof(ret->nonce));
        ret->generation = take_u64(&c);
        ret->steps = take_u32(&c);
        ret->error = take_u32(&c);
        ret->clock_step_nsec = (int64_t) take_u64(&c);
        ret->entropy_bytes = take_u32(&c);
        ret->message = take_string(&c);
        return cursor_end(&c);
}

int agent_get_status(const void *payload, size_t size, struct agent_status *ret) {
        struct cursor c = { .data = payload, .size = size };

        ret->error = take_u32(&c);
        ret->message = take_string(&c);
        return cursor_end(&c);
}

int agent_get_exec(const void *payload, size_t size, struct agent_exec *ret) {
        struct cursor c = { .data = payload, .size = size };

        ret->flags = take_u32(&c);
        ret->timeout_usec = take_u64(&c);
        ret->user = take_string(&c);
        ret->directory = take_string(&c);
        ret->argv = take_strings(&c);
        ret->environment = take_strings(&c);
        if (ret->argv.count == 0)
                return -EBADMSG;
        return cursor_end(&c);
}

int agent_get_started(const void *payload, size_t size, struct agent_started *ret) {
        struct cursor c = { .data = payload, .size = size };

        ret->pid = take_u32(&c);
        return cursor_end(&c);
}

int agent_get_credit(const void *payload, size_t size, struct agent_credit *ret) {
        struct cursor c = { .data = payload, .size = size };

        ret->bytes = take_u32(&c);
        return cursor_end(&c);
}

int agent_get_signal(const void *payload, size_t size, struct agent_signal *ret) {
        struct cursor c = { .data = payload, .size = size };

        ret->signal = take_u32(&c);
        ret->flags = take_u32(&c);
        return cursor_end(&c);
}

int agent_get_exited(const void *payload, size_t size, struct agent_exited *ret) {
        struct cursor c = { .data = payload, .size = size };

        ret->kind = take_u32(&c);
        ret->status = take_u32(&c);
        ret->cpu_usec = take_u64(&c);
        ret->memory_peak = take_u64(&c);
        ret->leftovers = take_u32(&c);
        return cursor_end(&c);
}

int agent_strings_next(struct agent_strings *strings, struct agent_string *ret) {
        struct cursor c = { .data = strings->data, .size = strings->size };

        if (strings->count == 0)
                return 0;
        *ret = take_string(&c);
        if (c.bad) { /* a list that didn't come from agent_get_exec() */
                *strings = (struct agent_strings){};
                return 0;
        }
        *strings = (struct agent_strings){ .count = strings->count - 1, .data = c.data, .size = (uint32_t) c.size };
        return 1;
}

/* ---- cutting frames ---- */

void agent_reader_done(struct agent_reader *r) {
        free(r->data);
        *r = (struct agent_reader){};
}

void agent_reader_reset(struct agent_reader *r) {
        r->start = r->end = 0;
}

void *agent_reader_room(struct agent_reader *r, size_t size) {
        if (r->start == r->end) {
                r->start = r->end = 0;
                if (r->allocated > BUFFER_KEEP)
                        agent_reader_done(r);
        }
        if (size > SIZE_MAX / 4 - r->end)
                return NULL;
        if (r->allocated - r->end >= size && r->data)
                return r->data + r->end;

        /* Grows by what arrives, never by what a header promised. */
        if (r->start > 0) {
                memmove(r->data, r->data + r->start, r->end - r->start);
                r->end -= r->start;
                r->start = 0;
        }
        if (r->allocated - r->end < size || !r->data) {
                size_t allocated = MAX(r->allocated, 4096U);
                while (allocated - r->end < size)
                        allocated *= 2;

                uint8_t *p = realloc(r->data, allocated);
                if (!p)
                        return NULL;
                r->data = p;
                r->allocated = allocated;
        }
        return r->data + r->end;
}

void agent_reader_added(struct agent_reader *r, size_t size) {
        r->end += MIN(size, r->allocated - r->end);
}

int agent_reader_next(struct agent_reader *r, struct agent_header *ret, const uint8_t **ret_payload) {
        size_t available = r->end - r->start;

        if (available < AGENT_HEADER_SIZE)
                return 0;

        const uint8_t *p = r->data + r->start;
        struct agent_header h = {
                .length = (uint32_t) decode(p, 4),
                .type = (uint16_t) decode(p + 4, 2),
                .flags = (uint16_t) decode(p + 6, 2),
                .stream = (uint32_t) decode(p + 8, 4),
        };
        if (!header_is_valid(&h))
                return -EBADMSG;
        if (available - AGENT_HEADER_SIZE < h.length)
                return 0;

        r->start += AGENT_HEADER_SIZE + h.length;
        *ret = h;
        *ret_payload = p + AGENT_HEADER_SIZE;
        return 1;
}
