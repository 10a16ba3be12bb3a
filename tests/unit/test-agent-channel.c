/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The runner's end of the agent protocol and its commands, against a guest that is played here and lies. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include "agent-channel.h"
#include "command.h"

static struct {
        sd_event *event;
        AgentChannel *channel;
        Commands *commands;
        int guest; /* its end */
        struct agent_reader reader;
        uint8_t nonce[AGENT_NONCE_SIZE];

        unsigned n_open, n_broken, n_frozen, n_started, n_exited;
        bool closed;
        int frozen_error, started_error;
        enum command_result result;
        char message[512];
} t;

static void on_open(const struct agent_receipt *receipt, void *userdata) {
        t.n_open++;
}

static int on_frame(const struct agent_header *header, const uint8_t *payload, void *userdata) {
        return commands_frame(t.commands, header, payload);
}

static void on_drained(void *userdata) {
        commands_drained(t.commands);
}

static void on_frozen(int error, void *userdata) {
        t.n_frozen++;
        t.frozen_error = error;
}

static void on_broken(bool closed, const char *message, void *userdata) {
        t.n_broken++;
        t.closed = closed;
        (void) strncpy(t.message, message, sizeof(t.message) - 1);
}

static void on_started(Command *c, int error, const char *message, void *userdata) {
        t.n_started++;
        t.started_error = error;
}

static void on_exited(Command *c, void *userdata) {
        t.n_exited++;
        t.result = c->result;
}

static const struct agent_channel_callbacks channel_callbacks = { on_open, on_frame, on_drained, on_frozen,
                                                                  on_broken };
static const struct commands_callbacks commands_callbacks_ = { on_started, on_exited };

static void spin(void) {
        while (sd_event_run(t.event, 0) > 0)
                ;
}

static int setup(void **state) {
        int fds[2];

        (void) signal(SIGPIPE, SIG_IGN);
        memset(&t, 0, sizeof(t));
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        t.guest = fds[1];
        assert_int_equal(sd_event_new(&t.event), 0);
        assert_int_equal(agent_channel_new(t.event, fds[0], &channel_callbacks, NULL, &t.channel), 0);
        assert_int_equal(commands_new(t.event, t.channel, &commands_callbacks_, NULL, &t.commands), 0);
        return 0;
}

static int teardown(void **state) {
        commands_free(t.commands);
        agent_channel_free(t.channel);
        agent_reader_done(&t.reader);
        sd_event_unref(t.event);
        close_fd(t.guest);
        return 0;
}

/* Sends what was put into b, and lets the host handle it. */
static void say(struct agent_buffer *b) {
        assert_int_equal(b->error, 0);
        assert_int_equal(send(t.guest, b->data, b->size, 0), b->size);
        agent_buffer_done(b);
        spin();
}

#define SAY(put)                                                                                                      \
        do {                                                                                                          \
                struct agent_buffer b = {};                                                                           \
                put;                                                                                                  \
                say(&b);                                                                                              \
        } while (false)

/* The host's next frame. */
static struct agent_header hear(const uint8_t **ret_payload) {
        struct agent_header h = {};
        int r;

        while ((r = agent_reader_next(&t.reader, &h, ret_payload)) == 0) {
                ssize_t n = recv(t.guest, agent_reader_room(&t.reader, 65536), 65536, 0);

                assert_true(n > 0);
                agent_reader_added(&t.reader, (size_t) n);
        }
        assert_int_equal(r, 1);
        return h;
}

static void hear_opening(void) {
        static struct agent_setup setup_message;
        const uint8_t *payload;
        struct agent_header h;
        struct agent_hello hello;

        setup_message = (struct agent_setup){ .generation = 7, .hostname = { "box", 3 } };
        assert_int_equal(agent_channel_open(t.channel, &setup_message), 0);
        h = hear(&payload);
        assert_int_equal(h.type, AGENT_HELLO);
        assert_int_equal(agent_get_hello(payload, h.length, &hello), 0);
        memcpy(t.nonce, hello.nonce, sizeof(t.nonce));
}

/* Comes only after the right answer to HELLO. */
static void hear_setup(void) {
        struct agent_setup setup_message;
        const uint8_t *payload;
        struct agent_header h;

        h = hear(&payload);
        assert_int_equal(h.type, AGENT_SETUP);
        assert_int_equal(agent_get_setup(payload, h.length, &setup_message), 0);
        assert_memory_equal(setup_message.nonce, t.nonce, sizeof(t.nonce));
        assert_true(setup_message.realtime_nsec / NSEC_PER_SEC - now_realtime_usec() / USEC_PER_SEC <= 1);
        assert_memory_not_equal(setup_message.seed, ((uint8_t[AGENT_SEED_SIZE]){}), AGENT_SEED_SIZE);
}

static struct agent_hello hello_reply(void) {
        struct agent_hello hello = { .version = AGENT_PROTOCOL_VERSION };

        memcpy(hello.nonce, t.nonce, sizeof(hello.nonce));
        return hello;
}

static struct agent_receipt receipt(void) {
        struct agent_receipt r = {
                .generation = 7, .steps = AGENT_STEPS_ALL, .entropy_bytes = AGENT_SEED_SIZE, .message = { "", 0 }
        };

        memcpy(r.nonce, t.nonce, sizeof(r.nonce));
        return r;
}

static void open_channel(void) {
        struct agent_hello hello;
        struct agent_receipt r;

        hear_opening();
        hello = hello_reply();
        SAY(agent_put_hello(&b, AGENT_HELLO_REPLY, &hello));
        hear_setup();
        r = receipt();
        SAY(agent_put_receipt(&b, &r));
        assert_int_equal(t.n_open, 1);
        assert_int_equal(t.n_broken, 0);
}

static void test_handshake(void **state) {
        open_channel();
        assert_true(agent_channel_is_open(t.channel));
}

static void refuse_hello(void (*change)(struct agent_hello *hello)) {
        struct agent_hello hello;

        hear_opening();
        hello = hello_reply();
        change(&hello);
        SAY(agent_put_hello(&b, AGENT_HELLO_REPLY, &hello));
        assert_int_equal(t.n_broken, 1);
        assert_false(t.closed);
}

static void other_hello_nonce(struct agent_hello *hello) {
        hello->nonce[3] ^= 1;
}

static void other_version(struct agent_hello *hello) {
        hello->version++;
}

static void test_hello_nonce(void **state) {
        refuse_hello(other_hello_nonce);
}

static void test_hello_version(void **state) {
        refuse_hello(other_version);
        assert_non_null(strstr(t.message, "version"));
}

static void refuse_receipt(void (*change)(struct agent_receipt *r)) {
        struct agent_hello hello;
        struct agent_receipt r;

        hear_opening();
        hello = hello_reply();
        SAY(agent_put_hello(&b, AGENT_HELLO_REPLY, &hello));
        hear_setup();
        r = receipt();
        change(&r);
        SAY(agent_put_receipt(&b, &r));
        assert_int_equal(t.n_open, 0);
        assert_int_equal(t.n_broken, 1);
}

static void other_nonce(struct agent_receipt *r) {
        r->nonce[0] ^= 1;
}

static void other_generation(struct agent_receipt *r) {
        r->generation++;
}

static void step_missing(struct agent_receipt *r) {
        r->steps &= ~(uint32_t) AGENT_STEP_RESEED;
        r->message = (struct agent_string){ "no\033[2J\npool", 11 };
}

static void test_receipt_nonce(void **state) {
        refuse_receipt(other_nonce);
}

static void test_receipt_generation(void **state) {
        refuse_receipt(other_generation);
}

static void test_receipt_incomplete(void **state) {
        refuse_receipt(step_missing);
        assert_non_null(strstr(t.message, "no?[2J?pool"));
}

static void test_receipt_without_hello(void **state) {
        struct agent_receipt r;

        hear_opening();
        r = receipt();
        SAY(agent_put_receipt(&b, &r));
        assert_int_equal(t.n_broken, 1);
}

static void test_speaks_unasked(void **state) {
        SAY(agent_put_started(&b, 1, 1));
        assert_int_equal(t.n_broken, 1);
}

static void test_noise(void **state) {
        open_channel();
        assert_int_equal(send(t.guest, "nonsense that is no frame", 25, 0), 25);
        spin();
        assert_int_equal(t.n_broken, 1);
        assert_false(t.closed);
}

static void test_closed(void **state) {
        open_channel();
        t.guest = close_fd(t.guest);
        spin();
        assert_int_equal(t.n_broken, 1);
        assert_true(t.closed);
}

static void test_timeout(void **state) {
        hear_opening();
        assert_int_equal(agent_channel_set_timeout(t.channel, 1000), 0);
        assert_true(sd_event_run(t.event, USEC_PER_SEC) > 0);
        spin();
        assert_int_equal(t.n_broken, 1);
        assert_non_null(strstr(t.message, "in time"));
}

static void test_freeze(void **state) {
        const uint8_t *payload;

        open_channel();
        assert_int_equal(agent_channel_freeze(t.channel, 0), 0);
        assert_int_equal(agent_channel_freeze(t.channel, 0), -EBUSY);
        assert_int_equal(hear(&payload).type, AGENT_FREEZE);
        SAY(agent_put_status(&b, AGENT_FROZEN, 0, EIO, "no"));
        assert_int_equal(t.frozen_error, -EIO);
        assert_true(agent_channel_is_open(t.channel));

        assert_int_equal(agent_channel_freeze(t.channel, 0), 0);
        SAY(agent_put_status(&b, AGENT_FROZEN, 0, 0, ""));
        assert_int_equal(t.n_frozen, 2);
        assert_int_equal(t.frozen_error, 0);
        /* Silence is what it promised. */
        SAY(agent_put_started(&b, 1, 1));
        assert_int_equal(t.n_broken, 1);
}

static void start_command(int stdout_fd) {
        struct command_spec spec = {
                .process = 5,
                .argv = (char *[]){ (char *) "cat", NULL },
                .environment = (char *[]){ NULL },
                .fds = { -1, stdout_fd, -1 },
        };
        const uint8_t *payload;

        open_channel();
        assert_int_equal(commands_exec(t.commands, &spec), 0);
        assert_int_equal(hear(&payload).type, AGENT_EXEC);
        spec.fds[1] = -1;
        assert_int_equal(commands_exec(t.commands, &spec), -EEXIST);
}

static const struct agent_exited exited = { .kind = AGENT_EXIT_CODE, .status = 3, .cpu_usec = 1 };

static void test_command(void **state) {
        start_command(-1);
        SAY(agent_put_started(&b, 1, 42));
        assert_int_equal(t.n_started, 1);
        SAY(agent_put_frame(&b, AGENT_DATA, AGENT_STDOUT, 1, "x", 1));
        SAY(agent_put_frame(&b, AGENT_EOF, AGENT_STDOUT, 1, NULL, 0));
        SAY(agent_put_frame(&b, AGENT_EOF, AGENT_STDERR, 1, NULL, 0));
        assert_int_equal(t.n_exited, 0);
        SAY(agent_put_exited(&b, 1, &exited));
        assert_int_equal(t.n_exited, 1);
        assert_int_equal(t.result, COMMAND_RESULT_CODE);
        assert_int_equal(commands_signal(t.commands, 5, SIGTERM, false), -ESRCH);
        assert_int_equal(commands_forget(t.commands, 5), 0);
        assert_int_equal(commands_forget(t.commands, 5), -ESRCH);
        /* The stream is over. */
        SAY(agent_put_exited(&b, 1, &exited));
        assert_int_equal(t.n_broken, 1);
}

static void test_command_fails(void **state) {
        start_command(-1);
        SAY(agent_put_status(&b, AGENT_EXEC_FAILED, 1, ENOENT, "no such file"));
        assert_int_equal(t.started_error, -ENOENT);
        assert_int_equal(t.n_exited, 0);
        assert_int_equal(commands_forget(t.commands, 5), -ESRCH);
}

static void test_command_lost(void **state) {
        start_command(-1);
        SAY(agent_put_started(&b, 1, 42));
        commands_lost(t.commands);
        assert_int_equal(t.n_exited, 1);
        assert_int_equal(t.result, COMMAND_RESULT_LOST);
}

static void test_command_lost_while_starting(void **state) {
        start_command(-1);
        commands_lost(t.commands);
        assert_int_equal(t.n_started, 1);
        assert_int_equal(t.started_error, -ECONNRESET);
        assert_int_equal(t.n_exited, 0);
}

/* Each lie is told by a guest of its own. */
static void lie(unsigned which) {
        static const uint8_t data[AGENT_DATA_MAX];
        struct agent_exited e = exited;

        switch (which) {
        case 0: /* ends before it began */
                SAY(agent_put_exited(&b, 1, &exited));
                return;
        case 1: /* speaks before it began */
                SAY(agent_put_frame(&b, AGENT_DATA, AGENT_STDOUT, 1, "x", 1));
                return;
        case 2: /* a stream that nobody opened */
                SAY(agent_put_started(&b, 2, 1));
                return;
        default:
                SAY(agent_put_started(&b, 1, 42));
        }
        switch (which) {
        case 3: /* begins twice */
                SAY(agent_put_started(&b, 1, 42));
                return;
        case 4: /* writes to its input */
                SAY(agent_put_frame(&b, AGENT_DATA, AGENT_STDIN, 1, "x", 1));
                return;
        case 5: /* after its end */
                SAY(agent_put_frame(&b, AGENT_EOF, AGENT_STDOUT, 1, NULL, 0));
                SAY(agent_put_frame(&b, AGENT_DATA, AGENT_STDOUT, 1, "x", 1));
                return;
        case 6: /* two ends */
                SAY(agent_put_frame(&b, AGENT_EOF, AGENT_STDERR, 1, NULL, 0));
                SAY(agent_put_frame(&b, AGENT_EOF, AGENT_STDERR, 1, NULL, 0));
                return;
        case 7: /* no such exit */
                e.kind = 77;
                SAY(agent_put_exited(&b, 1, &e));
                return;
        case 8: /* no such status */
                e.status = 256;
                SAY(agent_put_exited(&b, 1, &e));
                return;
        case 9: /* only the host says this */
                SAY(agent_put_signal(&b, 1, 9, 0));
                return;
        case 10: /* fails after success */
                SAY(agent_put_status(&b, AGENT_EXEC_FAILED, 1, ENOENT, ""));
                return;
        case 11: /* more than its credit: nobody reads */
                for (size_t i = 0; i < 2 * AGENT_WINDOW && t.n_broken == 0; i += sizeof(data))
                        SAY(agent_put_frame(&b, AGENT_DATA, AGENT_STDOUT, 1, data, sizeof(data)));
                return;
        }
}

static void test_lies(void **state) {
        for (unsigned which = 0; which < 12; which++) {
                int fds[2];

                assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
                start_command(fds[1]);
                lie(which);
                assert_int_equal(t.n_broken, 1);
                assert_int_equal(t.n_exited, 0);
                close(fds[0]);
                teardown(NULL);
                setup(NULL);
        }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_handshake),
                TEST(test_hello_nonce),
                TEST(test_hello_version),
                TEST(test_receipt_nonce),
                TEST(test_receipt_generation),
                TEST(test_receipt_incomplete),
                TEST(test_receipt_without_hello),
                TEST(test_speaks_unasked),
                TEST(test_noise),
                TEST(test_closed),
                TEST(test_timeout),
                TEST(test_freeze),
                TEST(test_command),
                TEST(test_command_fails),
                TEST(test_command_lost),
                TEST(test_command_lost_while_starting),
                TEST(test_lies),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
