/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

#include <cmocka.h>

#include "format.h"

static void test_size(void **state _unused_) {
        static const struct {
                uint64_t bytes;
                const char *text;
        } cases[] = {
                { 0, "0B" },          { 1023, "1023B" },           { 1024, "1K" },
                { 1536, "1.5K" },     { 512ULL << 20, "512M" },    { (1ULL << 30) + (1ULL << 29), "1.5G" },
                { 1ULL << 40, "1T" }, { UINT64_MAX - 1, "16.0E" }, { UINT64_MAX, "-" },
        };
        char buffer[FORMAT_MAX];

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_string_equal(format_size(cases[i].bytes, buffer), cases[i].text);
}

static void test_span(void **state _unused_) {
        static const struct {
                uint64_t usec;
                const char *text;
        } cases[] = {
                { 0, "0" },
                { 1, "1us" },
                { 1500, "1.5ms" },
                { 250 * USEC_PER_MSEC, "250ms" },
                { USEC_PER_SEC, "1s" },
                { 4560 * USEC_PER_MSEC, "4.5s" },
                { 59999999, "59.9s" },
                { 60 * USEC_PER_SEC, "1min" },
                { 65 * USEC_PER_SEC, "1min 5s" },
                { 5400 * USEC_PER_SEC, "1h 30min" },
                { 90061 * USEC_PER_SEC, "1d 1h" },
                { 86400ULL * 15 * USEC_PER_SEC, "2w 1d" },
                { UINT64_MAX, "-" },
        };
        char buffer[FORMAT_MAX];

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_string_equal(format_span(cases[i].usec, buffer), cases[i].text);
}

static void test_relative(void **state _unused_) {
        uint64_t now = 1000 * USEC_PER_SEC;
        char buffer[FORMAT_MAX];

        assert_string_equal(format_relative(now - 65 * USEC_PER_SEC, now, buffer), "1min 5s ago");
        assert_string_equal(format_relative(now + 3600 * USEC_PER_SEC, now, buffer), "in 1h");
        assert_string_equal(format_relative(now + 2700 * USEC_PER_MSEC, now, buffer), "in 2s");
        assert_string_equal(format_relative(now - 1, now, buffer), "now");
        assert_string_equal(format_relative(0, now, buffer), "-");
}

static void test_timestamp(void **state _unused_) {
        char buffer[FORMAT_MAX];

        assert_string_equal(format_timestamp(1764515452 * USEC_PER_SEC + 999999, buffer),
                            "Sun 2025-11-30 15:10:52 UTC");
        assert_string_equal(format_timestamp(0, buffer), "-");
}

static void check_escape(const char *s, const char *keep, const char *expected) {
        _cleanup_free_ char *escaped = escape_terminal(s, keep);

        assert_string_equal(escaped, expected);
}

static void test_escape(void **state _unused_) {
        check_escape("plain, größer, 漢字, 🙂", NULL, "plain, größer, 漢字, 🙂");
        check_escape("\x1b[31m\a\x7f", NULL, "\\x1b[31m\\x07\\x7f");
        check_escape("a\nb\tc", NULL, "a\\x0ab\\x09c");
        check_escape("a\nb\tc", "\n", "a\nb\\x09c");
        /* C1 as characters, and the overrides of direction */
        check_escape("\xc2\x9b"
                     "31m",
                     NULL, "\\xc2\\x9b31m");
        check_escape("\xe2\x80\xae"
                     "x\xe2\x81\xa6",
                     NULL, "\\xe2\\x80\\xaex\\xe2\\x81\\xa6");
        /* not UTF-8: stray, cut, overlong, surrogate, beyond the end */
        check_escape("\x80\xff", NULL, "\\x80\\xff");
        check_escape("\xe2\x82", NULL, "\\xe2\\x82");
        check_escape("\xc0\x9b", NULL, "\\xc0\\x9b");
        check_escape("\xe0\x80\x9b", NULL, "\\xe0\\x80\\x9b");
        check_escape("\xed\xa0\x80", NULL, "\\xed\\xa0\\x80");
        check_escape("\xf4\x90\x80\x80", NULL, "\\xf4\\x90\\x80\\x80");
        assert_int_equal(text_width("größer"), 6);
}

static void test_join(void **state _unused_) {
        char *argv[] = { (char *) "sh", (char *) "-c", (char *) "it's; $x", (char *) "", (char *) "a=b", NULL };
        _cleanup_free_ char *line = join_quoted(argv), *none = join_quoted(NULL);

        assert_string_equal(line, "sh -c 'it'\\''s; $x' '' a=b");
        assert_string_equal(none, "");
}

static void test_signal(void **state _unused_) {
        static const struct {
                const char *text;
                int number;
        } cases[] = {
                { "TERM", SIGTERM }, { "SIGTERM", SIGTERM }, { "sigkill", SIGKILL }, { "9", 9 }, { "USR1", SIGUSR1 }
        };
        int number = 0;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_int_equal(parse_signal(cases[i].text, &number), 0);
                assert_int_equal(number, cases[i].number);
        }
        assert_int_equal(parse_signal("RTMIN+2", &number), 0);
        assert_int_equal(number, SIGRTMIN + 2);
        assert_int_equal(parse_signal("0", &number), -EINVAL);
        assert_int_equal(parse_signal("1000", &number), -EINVAL);
        assert_int_equal(parse_signal("RTMIN+99", &number), -EINVAL);
        assert_int_equal(parse_signal("TERMINATE", &number), -EINVAL);
        assert_int_equal(parse_signal("", &number), -EINVAL);
        assert_int_equal(parse_signal("-9", &number), -EINVAL);
}

static void test_since(void **state _unused_) {
        uint64_t now = 1764515452 * USEC_PER_SEC + 7, since = 0; /* 2025-11-30 15:10:52 UTC */
        static const struct {
                const char *text;
                uint64_t second;
        } cases[] = {
                { "@1700000000", 1700000000 },      { "today", 1764460800 },
                { "yesterday", 1764374400 },        { "2025-11-30", 1764460800 },
                { "2025-11-30 12:00", 1764504000 }, { "2025-11-30 12:00:01", 1764504001 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_int_equal(parse_since(cases[i].text, now, &since), 0);
                assert_true(since == cases[i].second * USEC_PER_SEC);
        }
        assert_int_equal(parse_since("2h", now, &since), 0);
        assert_true(since == now - 7200 * USEC_PER_SEC);
        assert_int_equal(parse_since("10000w", now, &since), -ERANGE);
        assert_int_equal(parse_since("infinity", now, &since), -ERANGE);
        assert_int_equal(parse_since("@99999999999999999", now, &since), -ERANGE);
        assert_int_equal(parse_since("2025-13-30", now, &since), -EINVAL);
        assert_int_equal(parse_since("soon", now, &since), -EINVAL);
        assert_int_equal(parse_since("", now, &since), -EINVAL);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_size),      cmocka_unit_test(test_span),   cmocka_unit_test(test_relative),
                cmocka_unit_test(test_timestamp), cmocka_unit_test(test_escape), cmocka_unit_test(test_join),
                cmocka_unit_test(test_signal),    cmocka_unit_test(test_since),
        };

        setenv("TZ", "UTC", true);
        tzset();
        return cmocka_run_group_tests(tests, NULL, NULL);
}
