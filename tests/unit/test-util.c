/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "util.h"

static void test_parse_size(void **state) {
        static const struct {
                const char *text;
                uint64_t value;
        } good[] = {
                { "0", 0 },           { "4096", 4096 },       { "1K", 1024 },        { "512M", 512ULL << 20 },
                { "2G", 2ULL << 30 }, { "3GiB", 3ULL << 30 }, { "1TB", 1ULL << 40 },
        };
        static const char *const bad[] = { "", "M", "-1", "1.5G", "1Q", "1MM", " 1", "1 ", "99999999999999999999" };
        uint64_t v;

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                assert_int_equal(parse_size(good[i].text, &v), 0);
                assert_int_equal(v, good[i].value);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_true(parse_size(bad[i], &v) < 0);
        assert_int_equal(parse_size("18446744073709551615T", &v), -ERANGE);
}

static void test_parse_usec(void **state) {
        static const struct {
                const char *text;
                uint64_t value;
        } good[] = {
                { "90", 90 * USEC_PER_SEC },    { "500ms", 500 * USEC_PER_MSEC }, { "1h30min", 5400 * USEC_PER_SEC },
                { "1d", 86400 * USEC_PER_SEC }, { "infinity", USEC_INFINITY },    { "7us", 7 },
        };
        static const char *const bad[] = { "", "s", "1x", "1h30", "-5", "1 h", "99999999999999d" };
        uint64_t v;

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                assert_int_equal(parse_usec(good[i].text, &v), 0);
                assert_int_equal(v, good[i].value);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (!streq(bad[i], "1h30")) /* a bare number after a unit is seconds */
                        assert_true(parse_usec(bad[i], &v) < 0);
}

static void test_names(void **state) {
        char id[ID_SIZE], long_name[66];

        memset(long_name, 'x', 65);
        long_name[65] = 0;
        assert_false(name_is_valid(long_name));
        long_name[64] = 0;
        assert_true(name_is_valid(long_name));
        assert_true(name_is_valid("web-1.a_b"));
        assert_false(name_is_valid(""));
        assert_false(name_is_valid("-x"));
        assert_false(name_is_valid("../x"));
        assert_false(name_is_valid("a/b"));
        assert_false(name_is_valid("a b"));
        assert_int_equal(id_make(id), 0);
        assert_true(id_is_valid(id));
        assert_false(id_is_valid("ABCDEF012345"));
        assert_false(id_is_valid("abcdef01234"));
}

static void test_strv(void **state) {
        _cleanup_strv_free_ char **l = NULL, **copy = NULL;

        assert_int_equal(strv_extend(&l, "a"), 0);
        assert_int_equal(strv_extendf(&l, "%d-%s", 7, "b"), 0);
        assert_int_equal(strv_length(l), 2);
        assert_string_equal(l[1], "7-b");
        copy = strv_copy(l);
        assert_string_equal(copy[0], "a");
        assert_null(copy[2]);
}

static void test_files(void **state) {
        char directory[] = "/tmp/test-util-XXXXXX";
        _cleanup_free_ char *text = NULL;
        _cleanup_close_ int fd = -1;
        struct stat st;
        size_t size;

        assert_non_null(mkdtemp(directory));
        fd = open(directory, O_RDONLY | O_DIRECTORY);
        assert_int_equal(write_file_atomic_at(fd, "f", "old", 3, 0600), 0);
        assert_int_equal(write_file_atomic_at(fd, "f", "newer", 5, 0640), 0);
        assert_int_equal(read_file_at(fd, "f", 5, &text, &size), 0);
        assert_int_equal(size, 5);
        assert_string_equal(text, "newer");
        assert_int_equal(fstatat(fd, "f.tmp", &st, 0), -1);
        free(TAKE_PTR(text));
        assert_int_equal(read_file_at(fd, "f", 4, &text, NULL), -EFBIG);
        assert_int_equal(read_file_at(fd, "none", 4, &text, NULL), -ENOENT);
        unlinkat(fd, "f", 0);
        rmdir(directory);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_parse_size), cmocka_unit_test(test_parse_usec), cmocka_unit_test(test_names),
                cmocka_unit_test(test_strv),       cmocka_unit_test(test_files),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
