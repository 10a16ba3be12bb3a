/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#include "agent-protocol.h"
#include "util.h"

/* Takes the next frame of b through a reader; fails the test when there is none. */
static const uint8_t *next(struct agent_reader *r, struct agent_header *h) {
        const uint8_t *payload = NULL;

        assert_int_equal(agent_reader_next(r, h, &payload), 1);
        return payload;
}

static void feed(struct agent_reader *r, const void *data, size_t size) {
        void *room = agent_reader_room(r, size);

        assert_non_null(room);
        memcpy(room, data, size);
        agent_reader_added(r, size);
}

static void feed_header(struct agent_reader *r, uint32_t length, uint16_t type, uint16_t flags, uint32_t stream) {
        uint8_t raw[AGENT_HEADER_SIZE] = {
                (uint8_t) length, (uint8_t) (length >> 8), (uint8_t) (length >> 16), (uint8_t) (length >> 24),
                (uint8_t) type,   (uint8_t) (type >> 8),   (uint8_t) flags,          (uint8_t) (flags >> 8),
                (uint8_t) stream, (uint8_t) (stream >> 8), (uint8_t) (stream >> 16), (uint8_t) (stream >> 24),
        };

        feed(r, raw, sizeof(raw));
}

static void test_layout(void **state _unused_) {
        /* The bytes on the wire are the contract with agents in templates that were baked earlier. */
        static const uint8_t expected[] = { 8, 0, 0, 0, 16, 0, 0, 0, 0x04, 0x03, 0x02, 0x01, 15, 0, 0, 0, 1, 0, 0, 0 };
        struct agent_buffer b = {};

        assert_int_equal(agent_put_signal(&b, 0x01020304, 15, AGENT_SIGNAL_TREE), 0);
        assert_int_equal(b.size, sizeof(expected));
        assert_memory_equal(b.data, expected, sizeof(expected));
        agent_buffer_done(&b);
}

static void test_setup_receipt(void **state _unused_) {
        struct agent_setup in = { .generation = UINT64_MAX - 1,
                                  .realtime_nsec = 1234567890123456789ULL,
                                  .disk_size = 1ULL << 40,
                                  .memory_max = 5,
                                  .address = 0x0a000002,
                                  .gateway = 0x0a000001,
                                  .prefix = 30,
                                  .hostname = { "box", 3 } },
                           out;
        struct agent_receipt receipt = { .generation = 7,
                                         .steps = AGENT_STEPS_ALL,
                                         .clock_step_nsec = -5,
                                         .entropy_bytes = 64,
                                         .message = { "", 0 } },
                             back;
        struct agent_reader r = {};
        struct agent_buffer b = {};
        struct agent_header h;
        const uint8_t *p;

        memset(in.nonce, 1, sizeof(in.nonce));
        memset(in.machine_id, 2, sizeof(in.machine_id));
        memset(in.boot_token, 3, sizeof(in.boot_token));
        memset(in.seed, 4, sizeof(in.seed));
        assert_int_equal(agent_put_setup(&b, &in), 0);
        assert_int_equal(agent_put_receipt(&b, &receipt), 0);
        feed(&r, b.data, b.size);

        p = next(&r, &h);
        assert_int_equal(h.type, AGENT_SETUP);
        assert_int_equal(agent_get_setup(p, h.length, &out), 0);
        assert_true(out.generation == in.generation && out.realtime_nsec == in.realtime_nsec &&
                    out.disk_size == in.disk_size);
        assert_true(out.address == in.address && out.gateway == in.gateway && out.prefix == in.prefix &&
                    out.memory_max == 5);
        assert_memory_equal(out.seed, in.seed, sizeof(in.seed));
        assert_memory_equal(out.boot_token, in.boot_token, sizeof(in.boot_token));
        assert_string_equal(out.hostname.text, "box");
        assert_int_equal(agent_get_setup(p, h.length - 1, &out), -EBADMSG);

        p = next(&r, &h);
        assert_int_equal(agent_get_receipt(p, h.length, &back), 0);
        assert_true(back.steps == AGENT_STEPS_ALL && back.clock_step_nsec == -5 && back.generation == 7);
        assert_int_equal(agent_reader_next(&r, &h, &p), 0);

        in.prefix = 33;
        b.size = 0;
        assert_int_equal(agent_put_setup(&b, &in), 0);
        assert_int_equal(agent_get_setup(b.data + AGENT_HEADER_SIZE, b.size - AGENT_HEADER_SIZE, &out), -EBADMSG);
        agent_reader_done(&r);
        agent_buffer_done(&b);
}

static void test_exec(void **state _unused_) {
        const char *const argv[] = { "sh", "-c", "", NULL }, *const environment[] = { "A=b", NULL },
                          *const none[] = { NULL };
        struct agent_buffer b = {};
        struct agent_exec m;
        struct agent_string s;

        assert_int_equal(agent_put_exec(&b, 9, AGENT_EXEC_STDIN, 77, NULL, "/tmp", argv, environment), 0);
        uint8_t *p = b.data + AGENT_HEADER_SIZE;
        size_t size = b.size - AGENT_HEADER_SIZE;

        assert_int_equal(agent_get_exec(p, size, &m), 0);
        assert_int_equal(m.flags, AGENT_EXEC_STDIN);
        assert_int_equal(m.timeout_usec, 77);
        assert_int_equal(m.user.length, 0);
        assert_string_equal(m.directory.text, "/tmp");
        assert_int_equal(m.argv.count, 3);
        for (size_t i = 0; i < 3; i++) {
                assert_int_equal(agent_strings_next(&m.argv, &s), 1);
                assert_string_equal(s.text, argv[i]);
                assert_int_equal(s.length, strlen(argv[i]));
        }
        assert_int_equal(agent_strings_next(&m.argv, &s), 0);
        assert_int_equal(agent_strings_next(&m.environment, &s), 1);
        assert_string_equal(s.text, "A=b");

        /* Cut anywhere it is refused, and with a NUL inside a string too. */
        for (size_t i = 0; i < size; i++)
                assert_int_equal(agent_get_exec(p, i, &m), -EBADMSG);
        *(uint8_t *) memchr(p, '/', size) = 0;
        assert_int_equal(agent_get_exec(p, size, &m), -EBADMSG);

        b.size = 0;
        assert_int_equal(agent_put_exec(&b, 9, 0, 0, NULL, NULL, none, NULL), -EINVAL);
        agent_buffer_done(&b);
}

static void test_errors_stick(void **state _unused_) {
        static const uint8_t big[AGENT_DATA_MAX + 1];
        struct agent_buffer b = {};

        assert_int_equal(agent_put_frame(&b, AGENT_DATA, AGENT_STDOUT, 1, big, AGENT_DATA_MAX), 0);
        size_t size = b.size;
        assert_int_equal(agent_put_frame(&b, AGENT_DATA, AGENT_STDOUT, 1, big, AGENT_DATA_MAX + 1), -EMSGSIZE);
        assert_int_equal(b.size, size);
        assert_int_equal(agent_put_credit(&b, 1, AGENT_STDIN, 1), -EMSGSIZE);
        assert_int_equal(b.size, size);

        b.error = 0;
        assert_int_equal(agent_put_frame(&b, AGENT_DATA, 3, 1, big, 1), -EINVAL);
        b.error = 0;
        assert_int_equal(agent_put_frame(&b, AGENT_DATA, 0, 0, big, 1), -EINVAL);
        b.error = 0;
        assert_int_equal(agent_put_frame(&b, AGENT_PING, 0, 0, NULL, 0), 0);
        agent_buffer_done(&b);
}

static void test_long_message_is_cut(void **state _unused_) {
        char text[3000];
        struct agent_buffer b = {};
        struct agent_status m;

        memset(text, 'x', sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        assert_int_equal(agent_put_status(&b, AGENT_EXEC_FAILED, 4, ENOENT, text), 0);
        assert_int_equal(agent_get_status(b.data + AGENT_HEADER_SIZE, b.size - AGENT_HEADER_SIZE, &m), 0);
        assert_int_equal(m.error, ENOENT);
        assert_int_equal(m.message.length, 1000);
        agent_buffer_done(&b);
}

static void test_bad_headers(void **state _unused_) {
        static const struct {
                uint32_t length;
                uint16_t type, flags;
                uint32_t stream;
        } bad[] = {
                { 0, 0, 0, 0 },                              /* type 0 */
                { 0, _AGENT_TYPE_MAX, 0, 0 },                /* unknown type */
                { AGENT_DATA_MAX + 1, AGENT_DATA, 0, 1 },    /* over the cap of DATA */
                { AGENT_PAYLOAD_MAX + 1, AGENT_EXEC, 0, 1 }, /* over the cap of the rest */
                { UINT32_MAX, AGENT_EXEC, 0, 1 },
                { 1, AGENT_DATA, _AGENT_CHANNEL_MAX, 1 }, /* no such channel */
                { 0, AGENT_DATA, 0, 1 },                  /* DATA without data */
                { 1, AGENT_DATA, 0, 0 },                  /* DATA of the machine */
                { 0, AGENT_THAW, 0, 3 },                  /* THAW of a command */
                { 0, AGENT_FREEZE, 2, 0 },                /* undefined flag */
                { 65, AGENT_PING, 0, 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                struct agent_reader r = {};
                struct agent_header h;
                const uint8_t *p;

                feed_header(&r, bad[i].length, bad[i].type, bad[i].flags, bad[i].stream);
                assert_int_equal(agent_reader_next(&r, &h, &p), -EBADMSG);
                agent_reader_reset(&r);
                assert_int_equal(agent_reader_next(&r, &h, &p), 0);
                agent_reader_done(&r);
        }
}

static void test_byte_by_byte(void **state _unused_) {
        static const char data[] = "some bytes";
        struct agent_buffer b = {};
        struct agent_reader r = {};
        unsigned frames = 0;

        for (uint32_t i = 1; i <= 20; i++)
                assert_int_equal(agent_put_frame(&b, AGENT_DATA, AGENT_STDERR, i, data, 1 + i % 10), 0);
        for (size_t i = 0; i < b.size; i++) {
                struct agent_header h;
                const uint8_t *p;

                feed(&r, b.data + i, 1);
                while (agent_reader_next(&r, &h, &p) > 0) {
                        frames++;
                        assert_int_equal(h.stream, frames);
                        assert_int_equal(h.length, 1 + frames % 10);
                        assert_memory_equal(p, data, h.length);
                }
        }
        assert_int_equal(frames, 20);
        agent_buffer_done(&b);
        agent_reader_done(&r);
}

static void test_claimed_length_allocates_nothing(void **state _unused_) {
        struct agent_reader r = {};
        struct agent_header h;
        const uint8_t *p;

        feed_header(&r, AGENT_PAYLOAD_MAX, AGENT_EXEC, 0, 1);
        assert_int_equal(agent_reader_next(&r, &h, &p), 0);
        feed(&r, "x", 1);
        assert_true(r.allocated <= 8192);
        agent_reader_done(&r);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_layout),
                cmocka_unit_test(test_setup_receipt),
                cmocka_unit_test(test_exec),
                cmocka_unit_test(test_errors_stick),
                cmocka_unit_test(test_long_message_is_cut),
                cmocka_unit_test(test_bad_headers),
                cmocka_unit_test(test_byte_by_byte),
                cmocka_unit_test(test_claimed_length_allocates_nothing),
        };

        return cmocka_run_group_tests_name("agent-protocol", tests, NULL, NULL);
}
