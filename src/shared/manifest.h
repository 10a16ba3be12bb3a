/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a snapshot is: the record beside its disk.raw, memory and devices, and what must match to restore it. Also the
 * names on disk, so that one place knows the layout of the storage:
 *
 *   STORAGE/templates/NAME.json         the published version: { "name", "snapshot": id } (replaced atomically)
 *   STORAGE/snapshots/ID/               read-only subvolume: disk.raw memory devices manifest.json
 *   STORAGE/sandboxes/ID/               writable subvolume of a sandbox: disk.raw
 *   STORAGE/sandboxes/ID.json           its record
 *   STORAGE/work/bake-ID/               subvolume of a bake in progress; renamed into snapshots/ when whole
 *   STORAGE/usage.jsonl                 the ledger */

#include <jansson.h>

#include "util.h"

#define STORAGE_PATH "/var/lib/sandboxd"
#define SNAPSHOT_DISK "disk.raw"
#define SNAPSHOT_MEMORY "memory"
#define SNAPSHOT_DEVICES "devices"
#define SNAPSHOT_MANIFEST "manifest.json"
#define MANIFEST_FORMAT 1

struct manifest {
        char *id;      /* the snapshot's, as in its path */
        char *name;    /* template: its name */
        char *version; /* template: hex digest over everything that went into it; 12 digits are enough to tell apart */
        char *description;     /* for people */
        uint64_t created_usec; /* CLOCK_REALTIME */

        /* must match on restore */
        char *vmm_version; /* as the VMM says: "10.0.2 (Debian 1:10.0.2+ds-2)" */
        char *accelerator; /* "kvm" or "tcg" */
        char *cpu_model;   /* kvm: host CPU as /proc/cpuinfo names it; tcg: "max" */
        unsigned machine;  /* version of the runner's machine layout, MACHINE_VERSION */
        uint64_t memory;   /* bytes of RAM */
        unsigned cpus;
        unsigned volumes; /* empty disk slots */

        char *kernel;        /* release, for people and cold boots */
        uint64_t disk_size;  /* bytes as the guest sees it */
        uint64_t generation; /* of the captured machine */

        /* defaults for commands */
        char *user;         /* NULL: root */
        char *directory;    /* NULL: home */
        char **environment; /* NAME=value */
        json_t *egress;     /* default policy as given in the template, or NULL */
};

struct manifest *manifest_free(struct manifest *m);
DEFINE_CLEANUP(struct manifest *, manifest_free)

/* Strict: -EBADMSG with *ret_message naming the field that is missing, unknown or out of range (the caller frees it).
 */
int manifest_from_json(json_t *json, struct manifest **ret, char **ret_message);
int manifest_to_json(const struct manifest *m, json_t **ret);
/* Reads DIR/manifest.json. */
int manifest_read_at(int dir_fd, const char *dir, struct manifest **ret, char **ret_message);
