/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "table.h"

static const struct column columns[] = {
        { "NAME", "name", false },
        { "SIZE", "size", true },
        { "WHAT", "what", false },
};

static struct table *filled(void) {
        struct table *t = table_new(columns, ELEMENTSOF(columns));

        table_string(t, "größer");
        table_size(t, 1536);
        table_string(t, "x\x1b[2J");
        table_string(t, "b");
        table_size(t, UINT64_MAX);
        table_string(t, NULL);
        return t;
}

static void check(const struct options *o, struct table *t, const char *expected) {
        _cleanup_free_ char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);

        assert_int_equal(table_print(t, f, o, "thing", "things"), 0);
        fclose(f);
        assert_string_equal(text, expected);
        table_free(t);
}

static void test_text(void **state _unused_) {
        check(&(struct options){}, filled(),
              "NAME   SIZE WHAT\n"
              "größer 1.5K x\\x1b[2J\n"
              "b         - \n"
              "\n2 things listed.\n");
        check(&(struct options){ .no_legend = true }, filled(), "größer 1.5K x\\x1b[2J\nb         - \n");
        check(&(struct options){ .quiet = true }, filled(), "größer\nb\n");
}

static void test_json(void **state _unused_) {
        check(&(struct options){ .json = JSON_SHORT }, filled(),
              "[{\"name\":\"größer\",\"size\":1536,\"what\":\"x\\u001B[2J\"},{\"name\":\"b\",\"size\":null,\"what\":"
              "null}]\n");
        /* asked for JSON, nothing else counts */
        check(&(struct options){ .json = JSON_SHORT, .quiet = true }, table_new(columns, ELEMENTSOF(columns)), "[]\n");
}

static void test_empty(void **state _unused_) {
        check(&(struct options){}, table_new(columns, ELEMENTSOF(columns)), "No things.\n");
        check(&(struct options){ .no_legend = true }, table_new(columns, ELEMENTSOF(columns)), "");
        check(&(struct options){ .quiet = true }, table_new(columns, ELEMENTSOF(columns)), "");
}

static void test_one_and_many(void **state _unused_) {
        static const struct column one[] = { { "N", "n", true } };
        struct table *t = table_new(one, 1);

        table_uint(t, 7);
        check(&(struct options){}, t, "N\n7\n\n1 thing listed.\n");
        t = table_new(one, 1);
        for (unsigned i = 0; i < 1000; i++)
                table_uint(t, i);
        assert_int_equal(table_rows(t), 1000);
        table_free(t);
}

static void test_error_is_kept(void **state _unused_) {
        struct table *t = table_new(columns, ELEMENTSOF(columns));

        table_cell(t, "x", NULL);
        table_string(t, "y");
        assert_int_equal(table_print(t, stdout, &(struct options){}, "thing", "things"), -ENOMEM);
        table_free(t);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_text),          cmocka_unit_test(test_json),
                cmocka_unit_test(test_empty),         cmocka_unit_test(test_one_and_many),
                cmocka_unit_test(test_error_is_kept),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
