/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What this host can do: accelerator, VMM, kernel image. Runs the VMM once to ask for its version, so call it at
 * start, not from an event handler. */

#include "conf.h"

struct host {
        bool kvm;          /* the accelerator: KVM, else TCG */
        char *vmm;         /* absolute path */
        char *vmm_version; /* as it says of itself, without the program's name */
        char *cpu_model;   /* kvm: model name of /proc/cpuinfo; tcg: "max" */
};

/* Auto takes KVM only if /dev/kvm opens and kvm_intel or kvm_amd is present. *ret_message: what is missing and what to
 * install (the caller frees it). -ENOENT: no VMM; -EPROTONOSUPPORT: older than 8.2; -ENODEV: KVM was demanded and
 * isn't there. */
int host_probe(const struct conf *c, struct host **ret, char **ret_message);
struct host *host_free(struct host *h);
DEFINE_CLEANUP(struct host *, host_free)

/* The kernel image for bakes and its release. -ENOENT with a message. Also checks that /usr/lib/modules/RELEASE
 * exists. */
int host_find_kernel(const struct conf *c, char **ret_path, char **ret_release, char **ret_message);

/* The folder of the kernel's modules: the host's, else the one beside the image of a package unpacked elsewhere. */
int host_find_modules(const char *kernel, const char *release, char **ret);

const char *host_accelerator(const struct host *h); /* "kvm", "tcg" */
