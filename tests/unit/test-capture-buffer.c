/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "capture-buffer.h"
#include "tail.h"

/* The byte at a place of an endless stream, so that a wrong place shows. */
static uint8_t byte_at(uint64_t i) {
        return (uint8_t) (i * 7 + i / 251);
}

static void add(CaptureBuffer *c, uint64_t from, size_t size) {
        _cleanup_free_ uint8_t *data = malloc(size + 1);

        for (size_t i = 0; i < size; i++)
                data[i] = byte_at(from + i);
        assert_int_equal(capture_buffer_add(c, data, size), 0);
}

/* Writes `total` bytes in portions and compares what was kept. */
static void check(size_t max, uint64_t total, size_t portion) {
        _cleanup_(capture_buffer_freep) CaptureBuffer *c = NULL;
        size_t kept = (size_t) MIN(total, max), head = MIN(kept, max - max / 2);
        _cleanup_free_ uint8_t *data = malloc(kept + 1);
        _cleanup_close_ int fd = -1;

        assert_int_equal(capture_buffer_new(max, &c), 0);
        for (uint64_t i = 0; i < total; i += portion)
                add(c, i, (size_t) MIN(portion, total - i));
        assert_true(capture_buffer_total(c) == total);

        fd = capture_buffer_to_memfd(c);
        assert_true(fd >= 0);
        assert_int_equal(read(fd, data, kept + 1), kept);
        for (size_t i = 0; i < kept; i++)
                assert_int_equal(data[i], byte_at(i < head ? i : total - kept + i));
        /* Nobody changes it later. */
        assert_true(write(fd, "x", 1) < 0);
        assert_true(ftruncate(fd, (off_t) kept + 1) < 0);
}

static void test_all_sizes(void **state) {
        for (size_t max = 0; max < 12; max++)
                for (uint64_t total = 0; total < 40; total++)
                        for (size_t portion = 1; portion < 14; portion++)
                                check(max, total, portion);
}

static void test_large(void **state) {
        check(100000, 99999, 4096);
        check(100000, 100000, 4096);
        check(100000, 1000003, 32768);
        check(99999, 1000003, 200000);
}

static void test_tail(void **state) {
        struct tail t = { .max = 8 };
        char *text;

        assert_null(tail_text(&t));
        tail_add(&t, "abc", 3);
        text = tail_text(&t);
        assert_string_equal(text, "abc");
        free(text);
        tail_add(&t, "defghijk", 8);
        tail_add(&t, "lm", 2);
        text = tail_text(&t);
        assert_string_equal(text, "fghijklm");
        free(text);
        tail_add(&t, "0123456789\033\r\n\t\xff", 15);
        text = tail_text(&t);
        assert_string_equal(text, "789?\n\t?");
        free(text);
        tail_done(&t);
        assert_null(tail_text(&t));
}

static void test_sanitise(void **state) {
        _cleanup_free_ char *a = text_sanitise("a\nb\033[2J\0c", 9, 100), *b = text_sanitise("abcdef", 6, 3);

        assert_string_equal(a, "a?b?[2J?c");
        assert_string_equal(b, "abc");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_all_sizes),
                cmocka_unit_test(test_large),
                cmocka_unit_test(test_tail),
                cmocka_unit_test(test_sanitise),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
