/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Sources and sinks against pipes, sockets and files, without a guest. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

#include "stream-io.h"
#include "stream.h"

struct seen {
        uint8_t data[3 * AGENT_WINDOW];
        size_t size;
        uint64_t passed;
        unsigned n_ends, n_closed, n_done;
        bool ready;
};

static struct seen seen;
static sd_event *event;

static void spin(void) {
        while (sd_event_run(event, 0) > 0)
                ;
}

static bool on_data(const void *data, size_t size, void *userdata) {
        assert_true(seen.size + size <= sizeof(seen.data));
        memcpy(seen.data + seen.size, data, size);
        seen.size += size;
        return true;
}

static bool on_ready(void *userdata) {
        return seen.ready;
}

static void on_end(void *userdata) {
        seen.n_ends++;
}

static void on_passed(uint32_t bytes, void *userdata) {
        seen.passed += bytes;
}

static void on_closed(void *userdata) {
        seen.n_closed++;
}

static void on_done(void *userdata) {
        seen.n_done++;
}

static const struct source_callbacks source_callbacks = { on_data, on_ready, on_end };
static const struct sink_callbacks sink_callbacks = { on_passed, on_closed, on_done };

static int setup(void **state) {
        memset(&seen, 0, sizeof(seen));
        seen.ready = true;
        (void) signal(SIGPIPE, SIG_IGN);
        return sd_event_new(&event);
}

static int teardown(void **state) {
        event = sd_event_unref(event);
        stream_io_old_pipes = false;
        return 0;
}

static void make_pipe(bool sockets, int ret[2]) {
        assert_int_equal(sockets ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ret) : pipe2(ret, O_CLOEXEC), 0);
}

static void check_source(bool sockets) {
        _cleanup_(source_freep) Source *s = NULL;
        int fds[2];

        make_pipe(sockets, fds);
        assert_int_equal(source_new(event, fds[0], &source_callbacks, NULL, &s), 0);
        assert_int_equal(write(fds[1], "hello", 5), 5);
        spin();
        assert_int_equal(seen.size, 0); /* not kicked yet */
        source_kick(s);
        spin();
        assert_int_equal(seen.size, 5);
        assert_false(fcntl(fds[1], F_GETFL) & O_NONBLOCK);

        /* It stops at the end of its credit. */
        for (size_t total = 5; total < AGENT_WINDOW + 20000; total += 10000) {
                static const uint8_t zeros[10000];

                assert_int_equal(write(fds[1], zeros, sizeof(zeros)), sizeof(zeros));
                spin();
        }
        assert_int_equal(seen.size, AGENT_WINDOW);
        assert_int_equal(source_add_credit(s, AGENT_WINDOW + 1), -EBADMSG);
        assert_int_equal(source_add_credit(s, 1000), 0);
        spin();
        assert_int_equal(seen.size, AGENT_WINDOW + 1000);
        assert_int_equal(source_add_credit(s, AGENT_WINDOW), 0);
        close(fds[1]);
        assert_int_equal(seen.n_ends, 0);
        spin();
        assert_int_equal(seen.n_ends, 1);
        source_kick(s);
        spin();
        assert_int_equal(seen.n_ends, 1);
}

static void test_source_pipe(void **state) {
        check_source(false);
}

static void test_source_socket(void **state) {
        check_source(true);
}

static void test_source_old_pipe(void **state) {
        stream_io_old_pipes = true;
        check_source(false);
}

static void test_source_file(void **state) {
        _cleanup_(source_freep) Source *s = NULL;
        FILE *f = tmpfile();
        int fd = dup(fileno(f));

        assert_int_equal(write(fd, "skipped:kept", 12), 12);
        assert_int_equal(lseek(fd, 8, SEEK_SET), 8);
        assert_int_equal(source_new(event, fd, &source_callbacks, NULL, &s), 0);
        source_kick(s);
        spin();
        assert_int_equal(seen.size, 4);
        assert_memory_equal(seen.data, "kept", 4);
        assert_int_equal(seen.n_ends, 1);
        /* The position is the one that the client sees too. */
        assert_int_equal(lseek(fileno(f), 0, SEEK_CUR), 12);
        (void) fclose(f);
}

/* What a reader gets through a sink that it lets wait. */
static void check_sink(bool sockets) {
        static uint8_t data[AGENT_WINDOW], got[2 * AGENT_WINDOW];
        _cleanup_(sink_freep) Sink *s = NULL;
        size_t size = 0;
        int fds[2];
        ssize_t n;

        for (size_t i = 0; i < sizeof(data); i++)
                data[i] = (uint8_t) (i * 7 + i / 251);
        make_pipe(sockets, fds);
        assert_int_equal(sink_new(event, fds[1], NULL, &sink_callbacks, NULL, &s), 0);
        for (size_t i = 0; i < sizeof(data); i += AGENT_DATA_MAX)
                assert_int_equal(sink_add(s, data + i, AGENT_DATA_MAX), 0);
        spin();
        assert_true(sink_waiting(s) > 0);
        assert_int_equal(sink_add(s, data, AGENT_DATA_MAX), seen.passed >= AGENT_DATA_MAX ? 0 : -EBADMSG);
        size = seen.passed >= AGENT_DATA_MAX ? sizeof(data) + AGENT_DATA_MAX : sizeof(data);
        assert_int_equal(sink_end(s), 0);
        assert_int_equal(sink_end(s), -EBADMSG);
        assert_int_equal(sink_add(s, data, 1), -EBADMSG);

        size_t have = 0;
        (void) fcntl(fds[0], F_SETFL, O_NONBLOCK);
        while ((n = read(fds[0], got + have, MIN(sizeof(got) - have, 5000U))) != 0) {
                if (n > 0)
                        have += (size_t) n;
                spin();
        }
        assert_int_equal(have, size);
        assert_memory_equal(got, data, sizeof(data));
        assert_memory_equal(got + sizeof(data), data, size - sizeof(data));
        spin();
        assert_int_equal(seen.n_done, 1);
        assert_int_equal(seen.n_closed, 0);
        close(fds[0]);
}

static void test_sink_pipe(void **state) {
        check_sink(false);
}

static void test_sink_socket(void **state) {
        check_sink(true);
}

static void test_sink_old_pipe(void **state) {
        stream_io_old_pipes = true;
        check_sink(false);
}

static void test_sink_reader_gone(void **state) {
        static const uint8_t data[AGENT_DATA_MAX];
        _cleanup_(sink_freep) Sink *s = NULL;
        int fds[2];

        make_pipe(false, fds);
        assert_int_equal(sink_new(event, fds[1], NULL, &sink_callbacks, NULL, &s), 0);
        for (int i = 0; i < 5; i++)
                assert_int_equal(sink_add(s, data, sizeof(data)), 0);
        close(fds[0]);
        spin();
        assert_int_equal(seen.n_closed, 1);
        /* What comes is dropped, and given credit for. */
        for (int i = 0; i < 100; i++)
                assert_int_equal(sink_add(s, data, sizeof(data)), 0);
        assert_int_equal(seen.n_closed, 1);
        assert_int_equal(sink_end(s), 0);
        assert_int_equal(seen.n_done, 0);
        spin();
        assert_int_equal(seen.n_done, 1);
}

static void test_sink_abandoned(void **state) {
        static const uint8_t data[AGENT_DATA_MAX];
        _cleanup_(sink_freep) Sink *s = NULL;
        int fds[2];

        make_pipe(false, fds);
        assert_int_equal(sink_new(event, fds[1], NULL, &sink_callbacks, NULL, &s), 0);
        for (int i = 0; i < 5; i++)
                assert_int_equal(sink_add(s, data, sizeof(data)), 0);
        assert_int_equal(sink_end(s), 0);
        spin();
        assert_int_equal(seen.n_done, 0);
        sink_abandon(s);
        spin();
        assert_int_equal(seen.n_done, 1);
        assert_int_equal(seen.n_closed, 0);
        close(fds[0]);
}

static void test_sink_capture(void **state) {
        _cleanup_(capture_buffer_freep) CaptureBuffer *c = NULL;
        _cleanup_(sink_freep) Sink *s = NULL;

        assert_int_equal(capture_buffer_new(10, &c), 0);
        assert_int_equal(sink_new(event, -1, c, &sink_callbacks, NULL, &s), 0);
        assert_int_equal(sink_add(s, "hello", 5), 0);
        assert_int_equal(sink_end(s), 0);
        spin();
        assert_int_equal(seen.n_done, 1);
        assert_true(capture_buffer_total(c) == 5);
}

static void test_kinds(void **state) {
        enum stream_kind kind;
        int fds[2], fd;

        make_pipe(false, fds);
        assert_int_equal(stream_io_kind(fds[0], false, &kind), 0);
        assert_int_equal(kind, STREAM_PIPE);
        assert_int_equal(stream_io_kind(fds[0], true, &kind), -EINVAL);
        assert_int_equal(stream_io_kind(fds[1], false, &kind), -EINVAL);
        close(fds[0]);
        close(fds[1]);
        assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds), 0);
        assert_int_equal(stream_io_kind(fds[0], false, &kind), -EINVAL);
        close(fds[0]);
        close(fds[1]);
        fd = open("/", O_RDONLY | O_DIRECTORY);
        assert_int_equal(stream_io_kind(fd, false, &kind), -EINVAL);
        close(fd);
        fd = open("/dev/null", O_RDWR);
        assert_int_equal(stream_io_kind(fd, true, &kind), 0);
        assert_int_equal(kind, STREAM_DEVICE);
        close(fd);
        fd = open("/dev/null", O_PATH);
        assert_int_equal(stream_io_kind(fd, false, &kind), -EINVAL);
        close(fd);
        fd = posix_openpt(O_RDWR | O_NOCTTY);
        if (fd >= 0)
                assert_int_equal(stream_io_kind(fd, true, &kind), -EINVAL);
        close_fd(fd);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_source_pipe),     TEST(test_source_socket),
                TEST(test_source_old_pipe), TEST(test_source_file),
                TEST(test_sink_pipe),       TEST(test_sink_socket),
                TEST(test_sink_old_pipe),   TEST(test_sink_reader_gone),
                TEST(test_sink_abandoned),  TEST(test_sink_capture),
                TEST(test_kinds),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
