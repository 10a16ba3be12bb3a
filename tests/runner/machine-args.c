/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Prints the VMM's command line, an argument a line, for tests that start it without a runner:
 * machine-args VMM kvm|tcg boot|restore FIRMWARE|- MEMORY-MIB VOLUMES
 * [kvm|memory|devices|disk|kernel|initrd|qmp|agent|console|network=FD]... */

#include <stdio.h>

#include "qemu-args.h"

static int set_fd(struct qemu_machine *m, const char *arg) {
        const struct {
                const char *name;
                int *fd;
        } table[] = {
                { "kvm=", &m->kvm_fd },         { "memory=", &m->memory_fd }, { "devices=", &m->devices_fd },
                { "disk=", &m->disk_fd },       { "kernel=", &m->kernel_fd }, { "initrd=", &m->initrd_fd },
                { "qmp=", &m->qmp_fd },         { "agent=", &m->agent_fd },   { "console=", &m->console_fd },
                { "network=", &m->network_fd },
        };

        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                if (strncmp(arg, table[i].name, strlen(table[i].name)) == 0) {
                        *table[i].fd = atoi(arg + strlen(table[i].name));
                        return 0;
                }
        if (strncmp(arg, "append=", 7) == 0) {
                m->command_line = arg + 7;
                return 0;
        }
        return -EINVAL;
}

int main(int argc, char **argv) {
        struct qemu_machine m = {
                .name = "test",
                .cpus = 1,
                .memory_fd = -1,
                .devices_fd = -1,
                .disk_fd = -1,
                .kernel_fd = -1,
                .initrd_fd = -1,
                .kvm_fd = -1,
                .qmp_fd = -1,
                .agent_fd = -1,
                .console_fd = -1,
                .network_fd = -1,
        };
        char **args;

        if (argc < 7)
                return 2;
        m.vmm = argv[1];
        m.kvm = streq(argv[2], "kvm");
        m.restore = streq(argv[3], "restore");
        m.firmware = streq(argv[4], "-") ? NULL : argv[4];
        m.memory = strtoull(argv[5], NULL, 10) << 20;
        m.volumes = (unsigned) atoi(argv[6]);
        for (int i = 7; i < argc; i++)
                if (set_fd(&m, argv[i]) < 0)
                        return 2;

        if (qemu_args(&m, &args) < 0)
                return 1;
        for (char **a = args; *a; a++)
                puts(*a);
        strv_free(args);
        return 0;
}
