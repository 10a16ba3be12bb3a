/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* sandboxd.conf: section [Sandboxd] of /etc/sandboxd/sandboxd.conf, then of /etc/sandboxd/sandboxd.conf.d/?*.conf in
 * the order of their names (later ones win). Read once at start. See sandboxd.conf(5). */

#include "util.h"

#define CONF_PATH "/etc/sandboxd/sandboxd.conf"

enum conf_accelerator {
        ACCELERATOR_AUTO, /* kvm where it works, else tcg */
        ACCELERATOR_KVM,
        ACCELERATOR_TCG,
};

struct conf {
        enum conf_accelerator accelerator; /* Accelerator= */
        char *vmm;                         /* VMM=: absolute path; NULL: found by itself */
        char *kernel; /* Kernel=: image for bakes; NULL: the newest /boot/vmlinuz-*-cloud-amd64, then vmlinuz-* */
        char **allow_missing_controllers; /* AllowMissingControllers=: of cpu, memory, pids */
        uint64_t storage_size; /* StorageSize=: of the loop image, default 80 % of the free space when it is made */
        uint64_t uid_base;     /* UIDBase=: first of SLOTS_MAX host uids, default 1879048192 + 0x10000 */
        uint64_t
                max_sandboxes; /* MaxSandboxes=: at once, default 1024, at most SLOTS_MAX - 1: the last is for bakes */
        uint64_t max_per_owner;      /* MaxSandboxesPerOwner=: default: no limit of its own */
        uint64_t default_ttl_usec;   /* DefaultTTLSec=, default 1 h; 0 or infinity: none */
        uint64_t runtime_max_usec;   /* RuntimeMaxSec=: hard cap, default 24 h; infinity: none */
        uint64_t tasks_max;          /* TasksMax=: per scope, default 256 */
        uint64_t memory_overhead;    /* MemoryOverhead=: what a VMM may use beside the guest's RAM, default 192M */
        uint64_t agent_timeout_usec; /* AgentTimeoutSec=: for a restored agent's answer, default 30 s */
        uint64_t boot_timeout_usec;  /* BootTimeoutSec=: for a bake's cold boot, default 180 s */
        char *mirror; /* Mirror=: where bakes take Debian's packages from; NULL: the host's apt configuration */
        char *suite;  /* Suite=: default trixie */
};

#define SLOTS_MAX 16384U

/* path NULL: CONF_PATH and its drop-ins. Absent files are no error. Unknown keys and bad values are logged with file
 * and line and refused: -EINVAL. */
int conf_load(const char *path, struct conf **ret);
struct conf *conf_free(struct conf *c);
DEFINE_CLEANUP(struct conf *, conf_free)
