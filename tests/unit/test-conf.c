/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "conf-key.h"

static void refused(struct conf *c, const char *section, const char *key, const char *value, const char *want) {
        _cleanup_free_ char *message = NULL;

        assert_int_equal(conf_assign(c, section, key, value, &message), -EINVAL);
        assert_non_null(message);
        assert_string_equal(message, want);
}

static void accepted(struct conf *c, const char *key, const char *value) {
        _cleanup_free_ char *message = NULL;

        assert_int_equal(conf_assign(c, "Sandboxd", key, value, &message), 0);
        assert_null(message);
}

static void test_defaults(void **state) {
        _cleanup_(conf_freep) struct conf *c = conf_new();

        assert_non_null(c);
        assert_int_equal(c->accelerator, ACCELERATOR_AUTO);
        assert_null(c->vmm);
        assert_null(c->allow_missing_controllers);
        assert_int_equal(c->uid_base, 1879113728);
        assert_int_equal(c->max_sandboxes, 1024);
        assert_true(c->max_per_owner == UINT64_MAX);
        assert_int_equal(c->default_ttl_usec, 3600 * USEC_PER_SEC);
        assert_int_equal(c->memory_overhead, 192 << 20);
        assert_string_equal(c->suite, "trixie");
}

static void test_values(void **state) {
        _cleanup_(conf_freep) struct conf *c = conf_new();

        accepted(c, "Accelerator", "tcg");
        assert_int_equal(c->accelerator, ACCELERATOR_TCG);
        accepted(c, "VMM", "/opt/qemu");
        assert_string_equal(c->vmm, "/opt/qemu");
        accepted(c, "StorageSize", "20G");
        assert_true(c->storage_size == 20ULL << 30);
        accepted(c, "RuntimeMaxSec", "infinity");
        assert_true(c->runtime_max_usec == USEC_INFINITY);
        accepted(c, "MaxSandboxesPerOwner", "infinity");
        accepted(c, "MaxSandboxesPerOwner", "0");
        assert_int_equal(c->max_per_owner, 0);
        accepted(c, "AllowMissingControllers", "cpu  memory");
        accepted(c, "AllowMissingControllers", "pids");
        assert_int_equal(strv_length(c->allow_missing_controllers), 3);
        assert_string_equal(c->allow_missing_controllers[2], "pids");
        accepted(c, "Suite", "forky");
        assert_string_equal(c->suite, "forky");
}

static void test_empty_restores_default(void **state) {
        _cleanup_(conf_freep) struct conf *c = conf_new();

        accepted(c, "Suite", "forky");
        accepted(c, "Suite", "");
        assert_string_equal(c->suite, "trixie");
        accepted(c, "Kernel", "/boot/vmlinuz");
        accepted(c, "Kernel", "");
        assert_null(c->kernel);
        accepted(c, "TasksMax", "99");
        accepted(c, "TasksMax", "");
        assert_int_equal(c->tasks_max, 256);
        accepted(c, "AllowMissingControllers", "cpu");
        accepted(c, "AllowMissingControllers", "");
        assert_null(c->allow_missing_controllers);
}

static void test_refusals(void **state) {
        _cleanup_(conf_freep) struct conf *c = conf_new();

        refused(c, "Sandbox", "Suite", "x", "Suite= is in section [Sandbox], and only [Sandboxd] is known");
        refused(c, "Sandboxd", "suite", "x", "suite= is unknown");
        refused(c, "Sandboxd", "Accelerator", "xen", "\"xen\" is not one of auto, kvm, tcg");
        refused(c, "Sandboxd", "VMM", "qemu", "\"qemu\" is not an absolute path");
        refused(c, "Sandboxd", "Mirror", "a b", "\"a b\" must not have spaces");
        refused(c, "Sandboxd", "AllowMissingControllers", "io", "\"io\" is not one of cpu, memory, pids");
        refused(c, "Sandboxd", "TasksMax", "many", "\"many\" is not a number");
        refused(c, "Sandboxd", "TasksMax", "infinity", "\"infinity\" is not a number");
        refused(c, "Sandboxd", "TasksMax", "-1", "\"-1\" is not a number");
        refused(c, "Sandboxd", "TasksMax", "1", "1 is out of range");
        refused(c, "Sandboxd", "TasksMax", "99999999999999999999", "99999999999999999999 is out of range");
        refused(c, "Sandboxd", "StorageSize", "big", "\"big\" is not a size (512M, 2G)");
        refused(c, "Sandboxd", "BootTimeoutSec", "soon", "\"soon\" is not a time span (90s, 10min, 1h)");
        refused(c, "Sandboxd", "BootTimeoutSec", "infinity", "infinity is out of range");
        refused(c, "Sandboxd", "MaxSandboxes", "16384", "16384 is out of range");
        /* 2³² − 2 − 16384 is the last from which all uids are ones. */
        refused(c, "Sandboxd", "UIDBase", "4294950911", "4294950911 is out of range");
        accepted(c, "UIDBase", "4294950910");
}

struct file {
        char path[64];
};

static void write_file(struct file *f, const char *text) {
        int fd;

        strcpy(f->path, "/tmp/test-conf-XXXXXX");
        fd = mkstemp(f->path);
        assert_true(fd >= 0);
        assert_int_equal(write_all(fd, text, strlen(text)), 0);
        close(fd);
}

static int load(const char *text, struct conf **ret) {
        struct file f;
        int r;

        write_file(&f, text);
        r = conf_load(f.path, ret);
        unlink(f.path);
        return r;
}

static void test_files(void **state) {
        _cleanup_(conf_freep) struct conf *c = NULL;
        static char text[2048];

        assert_int_equal(
                load("# comment\n[Sandboxd]\n  Suite = forky \nDefaultTTLSec=infinity\nMirror=http://a:80/b\n", &c),
                0);
        assert_string_equal(c->suite, "forky");
        assert_string_equal(c->mirror, "http://a:80/b");
        assert_int_equal(c->default_ttl_usec, 0);
        c = conf_free(c);

        assert_int_equal(load("", &c), 0);
        c = conf_free(c);
        assert_int_equal(conf_load("/nonexistent/sandboxd.conf", &c), 0);
        c = conf_free(c);

        assert_int_equal(load("[Sandboxd]\nnonsense\n", &c), -EINVAL);
        assert_int_equal(load("[Sandboxd\nSuite=forky\n", &c), -EINVAL);
        assert_int_equal(load("Suite=forky\n", &c), -EINVAL);
        assert_int_equal(load("[Sandboxd]\nTasksMax=x\nSuite=forky\n", &c), -EINVAL);
        memset(text, 'x', sizeof(text) - 1);
        memcpy(text, "[Sandboxd]\nMirror=", 18);
        assert_int_equal(load(text, &c), -EINVAL);
        assert_null(c);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_defaults),
                cmocka_unit_test(test_values),
                cmocka_unit_test(test_empty_restores_default),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_files),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
