/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "options.h"

static const struct verb verbs[] = {
        { .name = "list", .max = 0, .groups = GROUP_LIST | GROUP_FILTER, .synopsis = "" },
        { .name = "exec",
          .min = 2,
          .max = -1,
          .groups = GROUP_ENV | GROUP_COMMAND,
          .command = true,
          .synopsis = "SANDBOX COMMAND..." },
        { .name = "create", .min = 1, .max = 1, .groups = GROUP_CREATE | GROUP_ENV, .synopsis = "TEMPLATE" },
        { .name = "rm", .max = -1, .groups = GROUP_REMOVE | GROUP_FORCE, .synopsis = "" },
        {},
};

/* Words after the program's name; NULL ends them. The vector stays, as the arguments are in it. */
#define PARSE(o, ...) parse(o, (char *[16]){ (char *) "sandboxctl", __VA_ARGS__, NULL })
static int parse(struct options *o, char **argv) {
        return options_parse((int) strv_length(argv), argv, verbs, o);
}
#define W(s) ((char *) (s))

static void check_arguments(const struct options *o, const char *const *expected) {
        size_t n = 0;

        for (; expected[n]; n++)
                assert_string_equal(o->arguments[n], expected[n]);
        assert_null(o->arguments[n]);
}
#define CHECK_ARGUMENTS(o, ...) check_arguments(o, (const char *[]){ __VA_ARGS__, NULL })

static void test_default_verb(void **state _unused_) {
        struct options o;

        assert_int_equal(PARSE(&o, W("--json=pretty"), W("-q")), 0);
        assert_ptr_equal(o.verb, verbs);
        assert_int_equal(o.json, JSON_PRETTY);
        assert_true(o.quiet && !o.no_legend);
        assert_true(o.ttl_usec == UINT64_MAX && o.memory == 0);
        options_done(&o);
}

static void test_options_around_arguments(void **state _unused_) {
        struct options o;

        assert_int_equal(PARSE(&o, W("-q"), W("rm"), W("a"), W("-f"), W("b"), W("--all"), W("--"), W("-c")), 0);
        assert_true(o.quiet && o.force && o.all);
        CHECK_ARGUMENTS(&o, "a", "b", "-c");
        options_done(&o);
}

static void test_command_ends_options(void **state _unused_) {
        struct options o;

        assert_int_equal(PARSE(&o, W("exec"), W("-i"), W("box"), W("-w/x"), W("ls"), W("-q"), W("--"), W("--help")),
                         0);
        assert_true(o.interactive && !o.quiet && !o.help);
        assert_string_equal(o.directory, "/x");
        CHECK_ARGUMENTS(&o, "box", "ls", "-q", "--", "--help");
        options_done(&o);
        assert_int_equal(PARSE(&o, W("exec"), W("box"), W("--"), W("-x"), W("--")), 0);
        CHECK_ARGUMENTS(&o, "box", "-x", "--");
        options_done(&o);
        assert_int_equal(PARSE(&o, W("exec"), W("--"), W("box"), W("ls"), W("-q")), 0);
        CHECK_ARGUMENTS(&o, "box", "ls", "-q");
        options_done(&o);
}

static void test_values(void **state _unused_) {
        struct options o;

        assert_int_equal(PARSE(&o, W("create"), W("--ttl=infinity"), W("--runtime-max=1h30min"), W("--memory"),
                               W("2G"), W("--cpus=.5"), W("--metadata=a=b=c"), W("-eX="), W("base")),
                         0);
        assert_true(o.ttl_usec == 0);
        assert_true(o.runtime_max_usec == 5400 * USEC_PER_SEC);
        assert_true(o.memory == 2ULL << 30);
        assert_true(o.cpus > 0.49 && o.cpus < 0.51);
        assert_string_equal(o.metadata[0], "a=b=c");
        assert_string_equal(o.environment[0], "X=");
        options_done(&o);
}

static void test_environment_of_caller(void **state _unused_) {
        struct options o;

        setenv("SET", "from caller", true);
        unsetenv("UNSET");
        assert_int_equal(PARSE(&o, W("create"), W("base"), W("-e"), W("SET"), W("-e"), W("UNSET")), 0);
        assert_int_equal(strv_length(o.environment), 1);
        assert_string_equal(o.environment[0], "SET=from caller");
        options_done(&o);
}

static void test_refused(void **state _unused_) {
        static const char *const cases[][6] = {
                { "nosuchverb" },
                { "list", "--nosuchoption" },
                { "list", "extra" },
                { "list", "--memory=1G" }, /* of another verb */
                { "--memory=1G", "list" }, /* the same before it */
                { "create" },
                { "create", "base", "--memory=0" },
                { "create", "base", "--memory=1X" },
                { "create", "base", "--cpus=0" },
                { "create", "base", "--cpus=nan" },
                { "create", "base", "--cpus=1,5" },
                { "create", "base", "--ttl=-1" },
                { "create", "base", "--metadata==x" },
                { "create", "base", "-e=x" },
                { "create", "base", "--json=xml" },
                { "create", "base", "--name" },
                { "create", "base", "--quiet=1" },
                { "exec", "box" },
                { "exec", "box", "--nosuchoption", "ls" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char *argv[8] = { W("sandboxctl") };
                struct options o;

                for (size_t k = 0; k < ELEMENTSOF(cases[i]) && cases[i][k]; k++)
                        argv[k + 1] = W(cases[i][k]);
                assert_int_equal(parse(&o, argv), -EINVAL);
                options_done(&o);
        }
}

static void test_verb_is_known_after_error(void **state _unused_) {
        struct options o;

        /* The exit status depends on it. */
        assert_int_equal(PARSE(&o, W("exec"), W("--nosuchoption"), W("box"), W("ls")), -EINVAL);
        assert_ptr_equal(o.verb, verbs + 1);
        options_done(&o);
}

static void test_help(void **state _unused_) {
        struct options o;

        assert_int_equal(PARSE(&o, W("--help")), 0);
        assert_true(o.help);
        assert_null(o.verb);
        options_done(&o);
        assert_int_equal(PARSE(&o, W("exec"), W("-h")), 0); /* without the arguments that it needs */
        assert_true(o.help);
        assert_ptr_equal(o.verb, verbs + 1);
        options_done(&o);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_default_verb),
                cmocka_unit_test(test_options_around_arguments),
                cmocka_unit_test(test_command_ends_options),
                cmocka_unit_test(test_values),
                cmocka_unit_test(test_environment_of_caller),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_verb_is_known_after_error),
                cmocka_unit_test(test_help),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
