/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The jail that runner and VMM share. Prepared while the controller still arranges the scope around the process, which
 * costs a create nothing; entered once it says "start". Everything that QEMU gets beyond it is a descriptor. */

#include "util.h"

typedef struct Jail Jail;

struct jail_spec {
        const char *vmm;      /* absolute path, which is also its path inside */
        const char *hostname; /* of the uts namespace */
        uid_t uid;            /* and gid */
        bool kvm;
};

/* On failure *ret_what says what could not be done. */
int jail_prepare(Jail **ret, const char **ret_what);
/* No way back: after a failure the process can only end. *ret_kvm_fd: -1 without KVM. */
int jail_enter(Jail *j, const struct jail_spec *spec, int *ret_kvm_fd, const char **ret_what);
void jail_free(Jail *j);
DEFINE_CLEANUP(Jail *, jail_free)

/* The parts of jail_enter() that aren't about files; see jail-privileges.c. */
int jail_limits(const char **ret_what);
int jail_identity(uid_t uid, const char **ret_what);
int jail_filter_new(void **ret, const char **ret_what);
int jail_filter_load(void *filter, const char **ret_what);
void jail_filter_free(void *filter);
