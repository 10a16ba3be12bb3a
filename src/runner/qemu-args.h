/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* QEMU's command line: a pure function of what the machine is. */

#include "util.h"

/* Descriptors are numbers as QEMU inherits them, -1 where there is none. */
struct qemu_machine {
        const char *vmm;  /* absolute path */
        const char *name; /* shown by ps; nothing of the host */
        bool kvm;         /* else TCG */
        bool restore;     /* else a cold boot */
        uint64_t memory;  /* bytes */
        unsigned cpus;
        unsigned volumes;
        const char *command_line; /* cold boot; NULL without a kernel */
        const char *firmware;     /* NULL: the machine's own */

        int memory_fd;  /* RAM; reopened, so its mode must allow that to QEMU's uid */
        int devices_fd; /* restore: the device state */
        int disk_fd;    /* read and write */
        int kernel_fd;  /* cold boot; reopened */
        int initrd_fd;  /* cold boot; reopened */
        int kvm_fd;     /* /dev/kvm */
        int qmp_fd;     /* a connected stream socket each */
        int agent_fd;
        int console_fd;
        int network_fd; /* a datagram socket */
};

/* The agent's port, as QMP's VSERPORT_CHANGE calls it. */
#define QEMU_AGENT_ID "agent"
#define QEMU_DISK_NODE "disk"

/* -EINVAL for what no machine can be, -ENOMEM. */
int qemu_args(const struct qemu_machine *m, char ***ret);
