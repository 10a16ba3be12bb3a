/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "template.h"

static struct template *parse(const char *text) {
        _cleanup_free_ char *message = NULL;
        struct template *t = NULL;
        int r;

        r = template_parse(text, strlen(text), &t, &message);
        if (r < 0)
                print_error("%s\n", strempty(message));
        assert_int_equal(r, 0);
        assert_non_null(t);
        assert_null(message);
        return t;
}

static void refused(const char *text, const char *want) {
        _cleanup_free_ char *message = NULL;
        struct template *t = NULL;

        assert_int_equal(template_parse(text, strlen(text), &t, &message), -EINVAL);
        assert_non_null(message);
        assert_string_equal(message, want);
        assert_null(t);
}

static void test_defaults(void **state) {
        _cleanup_(template_freep) struct template *t = parse("packages: []\n");

        assert_non_null(t->packages);
        assert_int_equal(strv_length(t->packages), 0);
        assert_null(t->rootfs);
        assert_null(t->suite);
        assert_null(t->description);
        assert_int_equal(t->n_copy, 0);
        assert_null(t->run);
        assert_null(t->start);
        assert_null(t->ready);
        assert_null(t->user);
        assert_null(t->egress);
        assert_int_equal(t->memory, 512 << 20);
        assert_true(t->disk == 8ULL << 30);
        assert_int_equal(t->cpus, 1);
        assert_int_equal(t->volumes, 4);
        assert_int_equal(t->timeout_usec, 600 * USEC_PER_SEC);
}

static void test_everything(void **state) {
        _cleanup_(template_freep) struct template *t =
                parse("# a comment\n"
                      "description: >\n  Several\n  words\n"
                      "suite: trixie\n"
                      "packages:\n- python3\n- libc6:amd64\n- \"g++\"\n"
                      "copy:\n- {from: a.sh, to: /usr/local/bin/a, mode: 0755}\n- from: data\n  to: /srv/data\n"
                      "run:\n- |\n  echo one\n  echo two\n- 'true'\n"
                      "timeout: 5min\n"
                      "start: exec server --port 80\n"
                      "ready:\n  command: curl -fs http://127.0.0.1/\n  interval: 200ms\n  timeout: 2min\n"
                      "environment:\n- LANG=C.UTF-8\n- EMPTY=\n"
                      "user: nobody\ndirectory: /srv\n"
                      "memory: 1G\ncpus: 2\ndisk: 20G\nvolumes: 0\n"
                      "egress:\n- pypi.org\n- {name: '*.example.com', ports: [443, \"80\"]}\n");
        json_t *want;

        assert_string_equal(t->description, "Several words\n");
        assert_string_equal(t->suite, "trixie");
        assert_int_equal(strv_length(t->packages), 3);
        assert_string_equal(t->packages[2], "g++");
        assert_int_equal(t->n_copy, 2);
        assert_string_equal(t->copy[0].to, "/usr/local/bin/a");
        assert_int_equal(t->copy[0].mode, 0755);
        assert_int_equal(t->copy[1].mode, (mode_t) -1);
        assert_string_equal(t->run[0], "echo one\necho two\n");
        assert_string_equal(t->run[1], "true");
        assert_int_equal(t->timeout_usec, 300 * USEC_PER_SEC);
        assert_string_equal(t->start, "exec server --port 80");
        assert_string_equal(t->ready, "curl -fs http://127.0.0.1/");
        assert_int_equal(t->ready_interval_usec, 200 * USEC_PER_MSEC);
        assert_int_equal(t->ready_timeout_usec, 120 * USEC_PER_SEC);
        assert_string_equal(t->environment[1], "EMPTY=");
        assert_string_equal(t->user, "nobody");
        assert_string_equal(t->directory, "/srv");
        assert_true(t->memory == 1ULL << 30 && t->disk == 20ULL << 30);
        assert_int_equal(t->cpus, 2);
        assert_int_equal(t->volumes, 0);
        want = json_loads("[\"pypi.org\", {\"name\": \"*.example.com\", \"ports\": [443, \"80\"]}]", 0, NULL);
        assert_true(json_equal(want, t->egress));
        json_decref(want);
}

static void test_rootfs(void **state) {
        _cleanup_(template_freep) struct template *t = parse("rootfs: ../root.tar\negress: none\n");

        assert_null(t->packages);
        assert_string_equal(t->rootfs, "../root.tar");
        assert_string_equal(json_string_value(t->egress), "none");
}

/* The shape of the file: what yaml_check() refuses. */
static void test_shape(void **state) {
        refused("", "line 1, column 1: the file is empty");
        refused("# nothing\n", "line 2, column 1: the file is empty");
        refused("- a\n", "line 1, column 1: the file must have keys and values");
        refused("text\n", "line 1, column 1: the file must have keys and values");
        refused("packages: []\ncolour: red\n", "line 2, column 1: key \"colour\" is unknown");
        refused("packages: [colour]\ncopy:\n- from: a\n  to: /b\n  colour: red\n",
                "line 5, column 3: key \"colour\" is unknown");
        refused("packages: []\nready: {command: a, retries: 3}\n", "line 2, column 21: key \"retries\" is unknown");
        refused("packages: []\ncpus: 1\npackages: [a]\n", "line 3, column 1: key \"packages\" is there twice");
        refused("packages: []\ncopy:\n- {from: a, to: /b}\n- {from: a, to: /b, from: c}\n",
                "line 4, column 21: key \"from\" is there twice");
        refused("packages: []\ndockerfile: x\n", "line 2, column 1: dockerfile: isn't supported by this version");
        refused("packages: python3\n", "line 1, column 11: packages must be a list");
        refused("packages:\ncpus: 1\n", "line 1, column 10: packages must be a list");
        refused("packages: [[a]]\n", "line 1, column 12: packages[0] must be a text");
        refused("packages: []\ncpus: [1]\n", "line 2, column 7: cpus must be a text");
        refused("packages: []\ncopy: [a]\n", "line 2, column 8: copy[0] must have keys and values");
        refused("packages: []\n? [a]\n: b\n", "line 2, column 3: a key must be a text");
        refused("packages: &p [a]\nrun: *p\n", "line 2, column 6: aliases (*) aren't supported");
        refused("packages: []\n---\ncpus: 1\n", "line 2, column 1: a second document isn't supported");
        refused("packages: [\"a\\0b\"]\n", "line 1, column 12: a NUL character isn't allowed");
        refused("packages: []\negress: [{a: b, a: c}]\n", "line 2, column 17: key \"a\" is there twice");
        refused("packages: []\negress: [[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]\n",
                "line 2, column 26: nested too deeply");
        refused("packages: [\n", "line 2, column 1: did not find expected node content");
        refused("packages: []\n\tcpus: 1\n", "line 2, column 1: found character that cannot start any token");
}

static void test_values(void **state) {
        refused("cpus: 1\n", "line 1, column 1: packages or rootfs must be there: where does the root come from?");
        refused("packages: []\nrootfs: a.tar\n",
                "line 2, column 9: rootfs: can't go with packages: the root comes from one of them");
        refused("rootfs:\n", "line 1, column 8: rootfs: must not be empty");
        refused("rootfs: a\nsuite: sid\n", "line 2, column 8: suite: can't go with rootfs");
        refused("packages:\n- a\n- -o\n", "line 3, column 3: packages[1]: \"-o\" is not the name of a package");
        refused("packages: ['a b']\n", "line 1, column 12: packages[0]: \"a b\" is not the name of a package");
        refused("packages: ['']\n", "line 1, column 12: packages[0]: must not be empty");
        refused("packages: []\nsuite: ../x\n",
                "line 2, column 8: suite: \"../x\" is not the name of a Debian release");
        refused("packages: []\ncopy:\n- to: /b\n", "line 3, column 3: copy[0]: from is missing");
        refused("packages: []\ncopy:\n- from: a\n", "line 3, column 3: copy[0]: to is missing");
        refused("packages: []\ncopy:\n- {from: a, to: b}\n",
                "line 3, column 17: copy[0].to: \"b\" is not an absolute path of what to make");
        refused("packages: []\ncopy:\n- {from: a, to: /b/../../c}\n",
                "line 3, column 17: copy[0].to: \"/b/../../c\" is not an absolute path of what to make");
        refused("packages: []\ncopy:\n- {from: a, to: /}\n",
                "line 3, column 17: copy[0].to: \"/\" is not an absolute path of what to make");
        refused("packages: []\ncopy:\n- {from: a, to: /b, mode: 0999}\n",
                "line 3, column 27: copy[0].mode: \"0999\" is not an octal mode (0755)");
        refused("packages: []\nrun: ['']\n", "line 2, column 7: run[0]: must not be empty");
        refused("packages: []\ntimeout: x\n",
                "line 2, column 10: timeout: \"x\" is not a time span (500ms, 30s, 10min)");
        refused("packages: []\ntimeout: 0\n", "line 2, column 10: timeout: 0 is out of range");
        refused("packages: []\nready: {interval: 1s}\n", "line 2, column 8: ready: command is missing");
        refused("packages: []\nenvironment: [A]\n", "line 2, column 15: environment[0]: \"A\" is not NAME=value");
        refused("packages: []\nenvironment: ['1=a']\n",
                "line 2, column 15: environment[0]: \"1=a\" is not NAME=value");
        refused("packages: []\nuser: a/b\n", "line 2, column 7: user: \"a/b\" is not the name or number of a user");
        refused("packages: []\ndirectory: srv\n", "line 2, column 12: directory: \"srv\" is not an absolute path");
        refused("packages: []\negress: {a: b}\n", "line 2, column 9: egress: must be a text or a list");
        refused("packages: []\nmemory: lots\n", "line 2, column 9: memory: \"lots\" is not a size (512M, 2G)");
        refused("packages: []\nmemory: 1M\n", "line 2, column 9: memory: 1M is out of range, or not whole MiB");
        refused("packages: []\nmemory: 134217729\n",
                "line 2, column 9: memory: 134217729 is out of range, or not whole MiB");
        refused("packages: []\ncpus: 0\n", "line 2, column 7: cpus: \"0\" is not a number from 1 to 64");
        refused("packages: []\nvolumes: 21\n", "line 2, column 10: volumes: \"21\" is not a number from 0 to 20");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_defaults), cmocka_unit_test(test_everything), cmocka_unit_test(test_rootfs),
                cmocka_unit_test(test_shape),    cmocka_unit_test(test_values),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
