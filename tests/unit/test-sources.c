/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sources.h"

enum style {
        LIST,
        DEB822,
};

/* What bakes of `suite` on a host of release `host` would take: want is NULL-terminated. */
static void chosen(enum style style, const char *text, const char *suite, const char *host, const char *const *want) {
        _cleanup_strv_free_ char **lines = NULL;
        struct sources s = {};

        assert_int_equal(style == LIST ? sources_parse_list(&s, text) : sources_parse_deb822(&s, text), 0);
        assert_int_equal(sources_choose(&s, suite, host, &lines), 0);
        for (size_t i = 0; want[i]; i++) {
                assert_true(i < strv_length(lines));
                assert_string_equal(lines[i], want[i]);
        }
        for (size_t n = 0; want[n] || n < strv_length(lines); n++)
                assert_non_null(want[n]);
        sources_done(&s);
}

#define CHOSEN(style, text, suite, host, ...)                                                                         \
        chosen(style, text, suite, host, (const char *const[]){ __VA_ARGS__, NULL })

static void test_list(void **state) {
        static const char text[] =
                "# deb http://a/ trixie main\n"
                "deb-src http://a/debian trixie main\n"
                "  deb [signed-by=/k.gpg arch=amd64]  http://a/debian\ttrixie   main  contrib # it\n"
                "deb http://a/debian trixie-updates main\n"
                "deb http://s/debian-security trixie-security main\n"
                "deb http://a/debian trixie-backports main\n"
                "deb http://a/debian sid main\n"
                "debug http://a/debian trixie main\n"
                "deb [broken http://a/debian trixie main\n"
                "deb http://a/debian\n"
                "deb\n";

        CHOSEN(LIST, text, "trixie", "trixie",
               "deb [signed-by=/k.gpg arch=amd64] http://a/debian trixie main  contrib ",
               "deb http://a/debian trixie-updates main", "deb http://s/debian-security trixie-security main");
}

static void test_deb822(void **state) {
        static const char text[] =
                "# comment\n"
                "Types: deb deb-src\n"
                "URIs: http://a/debian http://b/debian\n"
                "# another\n"
                "suites: trixie trixie-updates\n"
                "Components: main\n"
                "Signed-By: /k.gpg\n"
                "\n\n"
                "Types: deb\nURIs: http://off/\nSuites: trixie\nComponents: main\nEnabled: no\n"
                "\n"
                "Types: deb-src\nURIs: http://src/\nSuites: trixie\nComponents: main\n"
                "\n"
                "Types: deb\nURIs: http://key/\nSuites: trixie\nComponents: main\nSigned-By:\n -----BEGIN\n .\n x\n"
                "\n"
                "Types: deb\nURIs: http://t/\nSuites: trixie\nComponents: main\nTrusted: yes";

        CHOSEN(DEB822, text, "trixie", "trixie", "deb [signed-by=/k.gpg] http://a/debian trixie main",
               "deb [signed-by=/k.gpg] http://a/debian trixie-updates main",
               "deb [signed-by=/k.gpg] http://b/debian trixie main",
               "deb [signed-by=/k.gpg] http://b/debian trixie-updates main",
               "deb [trusted=yes] http://t/ trixie main");
}

static void test_other_release(void **state) {
        static const char text[] = "deb [signed-by=/k.gpg] http://a/debian bookworm main\n"
                                   "deb http://s/debian-security bookworm-security main\n"
                                   "deb http://vendor/ bookworm stable\n"
                                   "deb http://vendor/ ./\n";

        CHOSEN(LIST, text, "trixie", "bookworm", "deb [signed-by=/k.gpg] http://a/debian trixie main",
               "deb http://s/debian-security trixie-security main");
        /* The host's own entry of that release wins over a translated one. */
        CHOSEN(LIST, "deb http://a/debian bookworm main\ndeb http://b/debian trixie main\n", "trixie", "bookworm",
               "deb http://b/debian trixie main");
}

static void test_local(void **state) {
        CHOSEN(LIST, "deb [trusted=yes] copy:///srv/debs ./\n", "trixie", "trixie",
               "deb [trusted=yes] copy:///srv/debs ./");
        CHOSEN(LIST, "deb [trusted=yes] file:/srv/debs ./\n", "trixie", NULL, "deb [trusted=yes] copy:/srv/debs ./");
        CHOSEN(LIST, "deb [trusted=yes] copy:///srv/debs ./\ndeb http://a/debian trixie main\n", "trixie", "trixie",
               "deb http://a/debian trixie main", "deb [trusted=yes] copy:///srv/debs ./");
}

static void test_nothing(void **state) {
        /* A name that only begins alike is another release. */
        static const char *const texts[] = { "", "deb http://a/debian trixie-pgdg main\n" };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                _cleanup_(sources_done) struct sources s = {};
                _cleanup_strv_free_ char **lines = NULL;

                assert_int_equal(sources_parse_list(&s, texts[i]), 0);
                assert_int_equal(sources_choose(&s, "trixie", "fedora", &lines), -ENODATA);
                assert_null(lines);
        }
}

static void test_mirror(void **state) {
        _cleanup_strv_free_ char **lines = NULL;
        struct conf c = { .mirror = (char *) "http://m/debian" };

        assert_int_equal(sources_load(&c, "trixie", &lines), 0);
        assert_int_equal(strv_length(lines), 1);
        assert_string_equal(lines[0], "deb http://m/debian trixie main");
        lines = strv_free(lines);
        c.mirror = (char *) "file:///nonexistent/debs";
        assert_int_equal(sources_load(&c, "trixie", &lines), 0);
        assert_string_equal(lines[0], "deb [trusted=yes] copy:///nonexistent/debs ./");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_list),  cmocka_unit_test(test_deb822),  cmocka_unit_test(test_other_release),
                cmocka_unit_test(test_local), cmocka_unit_test(test_nothing), cmocka_unit_test(test_mirror),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
