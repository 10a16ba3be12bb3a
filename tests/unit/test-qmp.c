/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>

#include "qmp.h"

#define GREETING "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n"
#define ACCEPTED "{\"return\": {}, \"id\": 1}\r\n"

struct seen {
        unsigned n_greetings, n_events, n_replies, n_errors;
        char event[64], error[64];
};

static void on_event(const char *name, json_t *data, void *userdata) {
        struct seen *s = userdata;

        if (isempty(name))
                s->n_greetings++;
        else {
                s->n_events++;
                (void) strncpy(s->event, name, sizeof(s->event) - 1);
        }
}

static void on_reply(json_t *result, const char *error, void *userdata) {
        struct seen *s = userdata;

        s->n_replies++;
        assert_true(!result != !error);
        if (error) {
                s->n_errors++;
                (void) strncpy(s->error, error, sizeof(s->error) - 1);
        }
}

static int feed(Qmp *q, const char *text) {
        return qmp_feed(q, text, strlen(text));
}

/* Takes all that waits to be sent; returns the number of commands. */
static unsigned send_all(Qmp *q) {
        const char *data;
        unsigned n = 0;
        size_t size;
        int fd;

        while ((size = qmp_output(q, &data, &fd)) > 0) {
                assert_int_equal(data[size - 1], '\n');
                assert_null(memchr(data, '\n', size - 1));
                qmp_output_sent(q, size);
                n++;
        }
        return n;
}

static Qmp *ready(struct seen *s) {
        Qmp *q;

        *s = (struct seen){};
        assert_int_equal(qmp_new(on_event, s, &q), 0);
        assert_int_equal(send_all(q), 1);
        assert_int_equal(feed(q, GREETING ACCEPTED), 0);
        return q;
}

static void test_negotiation_comes_first(void **state) {
        _cleanup_(qmp_freep) Qmp *q = NULL;
        struct seen s = {};
        const char *data;
        int fd;

        assert_int_equal(qmp_new(on_event, &s, &q), 0);
        assert_int_equal(qmp_execute(q, "stop", NULL, -1, on_reply, &s), 0);
        assert_true(qmp_output(q, &data, &fd) > 0);
        assert_non_null(strstr(data, "qmp_capabilities"));
        assert_int_equal(send_all(q), 2);
        assert_int_equal(feed(q, GREETING), 0);
        assert_int_equal(s.n_greetings, 1);
        assert_int_equal(feed(q, ACCEPTED "{\"return\": {}, \"id\": 2}\n"), 0);
        assert_int_equal(s.n_replies, 1);
}

static void test_bytes_one_by_one(void **state) {
        static const char text[] = "{\"event\": \"STOP\", \"data\": {}}\r\n{\"return\": {\"a\": 1}, \"id\": 2}\r\n";
        struct seen s;
        _cleanup_(qmp_freep) Qmp *q = ready(&s);

        assert_int_equal(qmp_execute(q, "x", json_pack("{s:s}", "k", "v\n"), -1, on_reply, &s), 0);
        assert_int_equal(send_all(q), 1);
        for (size_t i = 0; i < strlen(text); i++)
                assert_int_equal(qmp_feed(q, text + i, 1), 0);
        assert_int_equal(s.n_events, 1);
        assert_string_equal(s.event, "STOP");
        assert_int_equal(s.n_replies, 1);
}

static void test_error(void **state) {
        struct seen s;
        _cleanup_(qmp_freep) Qmp *q = ready(&s);

        assert_int_equal(qmp_execute(q, "x", NULL, -1, on_reply, &s), 0);
        assert_int_equal(send_all(q), 1);
        assert_int_equal(feed(q, "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 2}\n"), 0);
        assert_int_equal(s.n_errors, 1);
        assert_string_equal(s.error, "no");
}

static void test_nonsense(void **state) {
        static const char *const lines[] = {
                "x\n",
                "[]\n",
                "1\n",
                "{}\n",
                "\"QMP\"\n",
                "{\"return\": {}}\n",
                "{\"return\": {}, \"id\": 2}\n",
                "{\"return\": {}, \"id\": \"1\"}\n",
                "{\"return\": {}, \"error\": {}, \"id\": 1}\n",
                "{\"error\": {\"desc\": 1}, \"id\": 1}\n",
                "{\"event\": 1}\n",
                "{\"event\": \"\"}\n",
                "{\"a\":1}x\n",
                "\xff\n",
        };

        for (size_t i = 0; i < ELEMENTSOF(lines); i++) {
                struct seen s;
                _cleanup_(qmp_freep) Qmp *q = ready(&s);

                assert_int_equal(feed(q, lines[i]), -EBADMSG);
        }
}

static void test_answer_before_the_command_was_sent(void **state) {
        struct seen s;
        _cleanup_(qmp_freep) Qmp *q = ready(&s);

        assert_int_equal(qmp_execute(q, "x", NULL, -1, on_reply, &s), 0);
        assert_int_equal(feed(q, "{\"return\": {}, \"id\": 2}\n"), -EBADMSG);
        assert_int_equal(s.n_replies, 0);
}

static void test_greeting_and_capabilities(void **state) {
        _cleanup_(qmp_freep) Qmp *a = NULL, *b = NULL;
        struct seen s = {};

        assert_int_equal(qmp_new(on_event, &s, &a), 0);
        assert_int_equal(feed(a, "{\"event\": \"STOP\"}\n"), -EBADMSG);
        assert_int_equal(qmp_new(on_event, &s, &b), 0);
        assert_int_equal(send_all(b), 1);
        assert_int_equal(feed(b, GREETING "{\"error\": {\"desc\": \"no\"}, \"id\": 1}\n"), -EBADMSG);
}

static void test_bounds(void **state) {
        struct seen s;
        _cleanup_(qmp_freep) Qmp *q = ready(&s);
        _cleanup_free_ char *much = malloc(QMP_MESSAGE_MAX);
        int r;

        memset(much, ' ', QMP_MESSAGE_MAX);
        assert_int_equal(qmp_feed(q, much, QMP_MESSAGE_MAX), 0);
        assert_int_equal(qmp_feed(q, " ", 1), -EMSGSIZE);

        for (unsigned i = 0; i < QMP_PENDING_MAX; i++)
                assert_int_equal(qmp_execute(q, "x", NULL, -1, NULL, NULL), 0);
        r = qmp_execute(q, "x", json_object(), open("/dev/null", O_RDONLY), NULL, NULL);
        assert_int_equal(r, -ENOBUFS);
}

static void test_descriptor_goes_with_the_first_byte(void **state) {
        struct seen s;
        _cleanup_(qmp_freep) Qmp *q = ready(&s);
        int null = open("/dev/null", O_RDONLY), fd;
        const char *data;

        assert_int_equal(qmp_execute(q, "add-fd", NULL, null, on_reply, &s), 0);
        assert_true(qmp_output(q, &data, &fd) > 1);
        assert_int_equal(fd, null);
        qmp_output_sent(q, 1);
        assert_true(qmp_output(q, &data, &fd) > 0);
        assert_int_equal(fd, -1);
        assert_true(fcntl(null, F_GETFD) < 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_negotiation_comes_first),
                cmocka_unit_test(test_bytes_one_by_one),
                cmocka_unit_test(test_error),
                cmocka_unit_test(test_nonsense),
                cmocka_unit_test(test_answer_before_the_command_was_sent),
                cmocka_unit_test(test_greeting_and_capabilities),
                cmocka_unit_test(test_bounds),
                cmocka_unit_test(test_descriptor_goes_with_the_first_byte),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
