/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The description of a template, NAME.yaml: see sandbox-template(5). */

#include <jansson.h>
#include <sys/types.h>

#include "util.h"

#define TEMPLATE_SIZE_MAX (1024U * 1024U)

struct template_copy {
        char *from;  /* as written */
        char *to;    /* absolute, in the guest */
        mode_t mode; /* permissions of a file; (mode_t) -1: those of the source */
};

struct template {
        char *description; /* NULL: none */
        char *suite;       /* NULL: of the service's configuration */
        char **packages;   /* NULL: the root comes from rootfs */
        char *rootfs;      /* path of a tar archive as written, or NULL */
        struct template_copy *copy;
        size_t n_copy;
        char **run;            /* shell commands, as root, in the guest */
        uint64_t timeout_usec; /* of each of them */
        char *start;           /* shell command that runs when the state is captured, or NULL */
        char *ready;           /* shell command that succeeds when it is ready, or NULL */
        uint64_t ready_interval_usec;
        uint64_t ready_timeout_usec;
        char **environment;    /* NAME=value */
        char *user;            /* NULL: root */
        char *directory;       /* NULL: home */
        uint64_t memory, disk; /* bytes */
        unsigned cpus, volumes;
        json_t *egress; /* as written, or NULL */
};

/* Pure. -EINVAL with *ret_message: "line 3, column 1: …" (the caller frees it), -ENOMEM. */
int template_parse(const void *data, size_t size, struct template **ret, char **ret_message);
struct template *template_free(struct template *t);
DEFINE_CLEANUP(struct template *, template_free)
