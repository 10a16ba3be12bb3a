/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "control.h"

static void make_pair(int fds[2]) {
        int size = 4 * 1024 * 1024;

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
        (void) setsockopt(fds[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
}

static void test_message_with_fds(void **state) {
        static const char *const names[] = { "disk", "memory" };
        struct control_message m = {};
        int pair[2], pipes[2], fd;
        json_t *body = json_pack("{s:s,s:i}", "type", "start", "serial", 7);
        char byte;

        make_pair(pair);
        assert_int_equal(pipe(pipes), 0);
        assert_int_equal(control_send(pair[0], body, names, pipes, 2), 0);
        assert_int_equal(control_recv(pair[1], &m), 1);
        assert_int_equal(json_integer_value(json_object_get(m.body, "serial")), 7);
        assert_int_equal(control_message_take_fd(&m, "none"), -1);
        fd = control_message_take_fd(&m, "memory");
        assert_true(fd >= 0);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        assert_int_equal(control_message_take_fd(&m, "memory"), -1);
        assert_int_equal(write(fd, "x", 1), 1);
        assert_int_equal(read(pipes[0], &byte, 1), 1);
        control_message_done(&m);
        json_decref(body);
        assert_int_equal(control_recv(pair[1], &m), -EAGAIN);
        close(pair[0]);
        assert_int_equal(control_recv(pair[1], &m), 0);
        close(pair[1]);
        close(fd);
        close(pipes[0]);
        close(pipes[1]);
}

static void test_bad_messages(void **state) {
        static const char *const bad[] = {
                "nonsense",
                "[]",
                "{}",
                "{\"type\":7}",
                "{\"type\":\"a\",\"type\":\"b\"}",
                "{\"type\":\"a\",\"fds\":[\"x\"]}",
        };
        struct control_message m = {};
        int pair[2];

        make_pair(pair);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                assert_true(send(pair[0], bad[i], strlen(bad[i]), 0) > 0);
                assert_int_equal(control_recv(pair[1], &m), -EBADMSG);
        }
        close(pair[0]);
        close(pair[1]);
}

/* Descriptors without names don't stay open. */
static void test_unnamed_fds(void **state) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } ancillary = {};
        char text[] = "{\"type\":\"a\"}";
        struct iovec iov = { text, strlen(text) };
        struct msghdr message = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof(ancillary)
        };
        struct control_message m = {};
        int pair[2], pipes[2];
        char byte;

        make_pair(pair);
        assert_int_equal(pipe(pipes), 0);
        ancillary.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                                             .cmsg_type = SCM_RIGHTS,
                                             .cmsg_len = CMSG_LEN(sizeof(int)) };
        memcpy(CMSG_DATA(&ancillary.header), &pipes[1], sizeof(int));
        assert_true(sendmsg(pair[0], &message, 0) > 0);
        close(pipes[1]);
        assert_int_equal(control_recv(pair[1], &m), -EBADMSG);
        assert_int_equal(read(pipes[0], &byte, 1), 0);
        close(pipes[0]);
        close(pair[0]);
        close(pair[1]);
}

static void test_large(void **state) {
        _cleanup_free_ char *text = malloc(CONTROL_MESSAGE_MAX + 1);
        struct control_message m = {};
        json_t *body;
        int pair[2];

        make_pair(pair);
        memset(text, 'x', CONTROL_MESSAGE_MAX);
        text[CONTROL_MESSAGE_MAX] = 0;
        body = json_pack("{s:s,s:s}", "type", "exec", "text", text);
        assert_int_equal(control_send(pair[0], body, NULL, NULL, 0), -EMSGSIZE);
        json_decref(body);
        text[1024 * 1024] = 0;
        body = json_pack("{s:s,s:s}", "type", "exec", "text", text);
        assert_int_equal(control_send(pair[0], body, NULL, NULL, 0), 0);
        json_decref(body);
        assert_int_equal(control_recv(pair[1], &m), 1);
        assert_int_equal(json_string_length(json_object_get(m.body, "text")), 1024 * 1024);
        control_message_done(&m);
        close(pair[0]);
        close(pair[1]);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_message_with_fds),
                cmocka_unit_test(test_bad_messages),
                cmocka_unit_test(test_unnamed_fds),
                cmocka_unit_test(test_large),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
