/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "agent-protocol.h"
#include "machine.h"
#include "qemu-args.h"

static struct qemu_machine machine(bool kvm, bool restore) {
        return (struct qemu_machine){
                .vmm = "/usr/bin/qemu",
                .name = "0123456789ab",
                .kvm = kvm,
                .restore = restore,
                .memory = 512ULL << 20,
                .cpus = 2,
                .volumes = 3,
                .command_line = "console=hvc0 quiet",
                .memory_fd = 10,
                .devices_fd = restore ? 11 : -1,
                .disk_fd = 12,
                .kernel_fd = restore ? -1 : 13,
                .initrd_fd = restore ? -1 : 14,
                .kvm_fd = kvm ? 15 : -1,
                .qmp_fd = 16,
                .agent_fd = 17,
                .console_fd = 18,
                .network_fd = 19,
        };
}

/* The n-th value (from 0) given to an option, or NULL. */
static const char *value(char **args, const char *option, unsigned n) {
        for (char **a = args; *a; a++)
                if (streq(*a, option) && n-- == 0)
                        return a[1];
        return NULL;
}

static bool contains(char **args, const char *text) {
        for (char **a = args; *a; a++)
                if (strstr(*a, text))
                        return true;
        return false;
}

static char **arguments(bool kvm, bool restore) {
        struct qemu_machine m = machine(kvm, restore);
        char **args = NULL;

        assert_int_equal(qemu_args(&m, &args), 0);
        return args;
}

static void test_boot(void **state) {
        _cleanup_strv_free_ char **args = arguments(false, false);

        assert_string_equal(args[0], "/usr/bin/qemu");
        assert_string_equal(value(args, "-kernel", 0), "/proc/self/fd/13");
        assert_string_equal(value(args, "-initrd", 0), "/proc/self/fd/14");
        assert_string_equal(value(args, "-append", 0), "console=hvc0 quiet");
        assert_null(value(args, "-incoming", 0));
        assert_non_null(strstr(value(args, "-object", 0), "mem-path=/proc/self/fd/10,share=on"));
        assert_non_null(strstr(value(args, "-accel", 0), "tcg,"));
        assert_string_equal(value(args, "-cpu", 0), "max");
}

static void test_restore(void **state) {
        _cleanup_strv_free_ char **args = arguments(true, true);

        assert_null(value(args, "-kernel", 0));
        assert_null(value(args, "-initrd", 0));
        assert_null(value(args, "-append", 0));
        assert_string_equal(value(args, "-incoming", 0), "file:/dev/fdset/11");
        assert_non_null(strstr(value(args, "-object", 0), "share=off,readonly=on,rom=off"));
        assert_string_equal(value(args, "-accel", 0), "kvm,device=/dev/fdset/15");
        assert_string_equal(value(args, "-cpu", 0), "max,-arch-capabilities");
}

/* A state fits only a machine with the same devices at the same places. */
static void test_devices_do_not_depend_on_the_mode(void **state) {
        for (int kvm = 0; kvm < 2; kvm++) {
                _cleanup_strv_free_ char **boot = arguments(kvm, false), **restore = arguments(kvm, true);
                static const char *const options[] = { "-machine", "-cpu",     "-smp",    "-m",       "-global",
                                                       "-device",  "-chardev", "-netdev", "-blockdev" };

                for (size_t i = 0; i < ELEMENTSOF(options); i++)
                        for (unsigned n = 0;; n++) {
                                const char *a = value(boot, options[i], n), *b = value(restore, options[i], n);

                                assert_true(streq_ptr(a, b));
                                if (!a)
                                        break;
                        }
        }
}

static void test_confinement(void **state) {
        _cleanup_strv_free_ char **args = arguments(false, true);

        assert_string_equal(value(args, "-sandbox", 0),
                            "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        assert_true(contains(args, "-nodefaults"));
        assert_true(contains(args, "-no-user-config"));
        assert_false(contains(args, "exec:"));
        assert_false(contains(args, "path=/dev/shm"));
        assert_false(contains(args, "-pci"));
        assert_false(contains(args, "balloon"));
        /* Every device is one of these. */
        for (unsigned n = 0; value(args, "-device", n); n++) {
                const char *d = value(args, "-device", n);

                assert_true(strncmp(d, "virtio-", 7) == 0 || strncmp(d, "virtconsole,", 12) == 0 ||
                            strncmp(d, "virtserialport,", 15) == 0);
        }
        assert_true(contains(args, "name=" AGENT_PORT_NAME));
        assert_true(contains(args, "auto-read-only=off"));
        assert_true(contains(args, "werror=report,rerror=report"));
        assert_true(contains(args, "send-configuration=off"));
        assert_true(contains(args, "suppress-vmdesc=on"));
}

static void test_volumes(void **state) {
        for (unsigned volumes = 0; volumes <= MACHINE_VOLUMES_MAX; volumes++) {
                struct qemu_machine m = machine(false, true);
                _cleanup_strv_free_ char **args = NULL;
                char text[64];

                m.volumes = volumes;
                assert_int_equal(qemu_args(&m, &args), 0);
                for (unsigned i = 0; i < MACHINE_VOLUMES_MAX; i++) {
                        (void) snprintf(text, sizeof(text), "serial=volume%u,bus=virtio-mmio-bus.%u,", i,
                                        (unsigned) _MACHINE_SLOT_MAX - 1 - MACHINE_SLOT_VOLUME - i);
                        assert_int_equal(contains(args, text), i < volumes);
                }
                /* The disk comes before them all: Linux counts from the last. */
                (void) snprintf(text, sizeof(text), "drive=disk,serial=disk,bus=virtio-mmio-bus.%u,",
                                (unsigned) _MACHINE_SLOT_MAX - 1 - MACHINE_SLOT_DISK);
                assert_true(contains(args, text));
        }
}

static void refuse(struct qemu_machine m) {
        char **args = NULL;

        assert_int_equal(qemu_args(&m, &args), -EINVAL);
        assert_null(args);
}

static void test_refused(void **state) {
        struct qemu_machine m;

#define REFUSE(change)                                                                                                \
        m = machine(true, true);                                                                                      \
        change;                                                                                                       \
        refuse(m)

        REFUSE(m.cpus = 0);
        REFUSE(m.cpus = MACHINE_CPUS_MAX + 1);
        REFUSE(m.volumes = MACHINE_VOLUMES_MAX + 1);
        REFUSE(m.memory = 0);
        REFUSE(m.memory = MACHINE_MEMORY_MAX + (1 << 20));
        REFUSE(m.memory++);
        REFUSE(m.vmm = "qemu");
        REFUSE(m.vmm = "");
        REFUSE(m.name = "");
        REFUSE(m.name = "a,debug-threads=on");
        REFUSE(m.memory_fd = -1);
        REFUSE(m.devices_fd = -1);
        REFUSE(m.kvm_fd = -1);
        REFUSE(m.qmp_fd = -1);
        REFUSE(m.agent_fd = -1);
        REFUSE(m.console_fd = -1);
        REFUSE(m.network_fd = -1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_boot),
                cmocka_unit_test(test_restore),
                cmocka_unit_test(test_devices_do_not_depend_on_the_mode),
                cmocka_unit_test(test_confinement),
                cmocka_unit_test(test_volumes),
                cmocka_unit_test(test_refused),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
