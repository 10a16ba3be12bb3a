/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* One bake: everything that its steps share. Each step returns 0, or an error after bake_fail() has said what a person
 * should know. */

#include "conf.h"
#include "digest.h"
#include "host.h"
#include "manifest.h"
#include "process.h"
#include "template.h"

#define EXIT_UNCHANGED 3

struct bake {
        const char *name;
        const char *definition; /* path of the description, or NULL: looked up by name */
        bool force;
        const char *libexec; /* where the other programs are */

        struct conf *conf;
        struct host *host;
        struct template *template;
        char *folder; /* of the description: relative paths start there */
        char *kernel, *release, *modules;
        char version[DIGEST_HEX_SIZE];
        char id[ID_SIZE]; /* of the snapshot to be */

        int interrupt_fd;
        int storage_fd; /* STORAGE_PATH */
        char *work;     /* path of the subvolume; NULL: there is none (any more) */
        int work_fd;    /* open on it, and locked */
        char *error;    /* the sentence of the first failure */
};

/* The uid of the machine that bakes: the last of the service's range, which no sandbox gets. */
static inline uid_t bake_uid(const struct bake *b) {
        return (uid_t) (b->conf->uid_base + SLOTS_MAX - 1);
}

/* "NN% what it does now" for whoever watches the unit. */
void bake_status(unsigned percent, const char *what);
/* Keeps the first sentence. error is appended when it says something that the sentence doesn't: pass it as negative
 * errno, or positive to leave its text out. Returns it negative. */
int bake_fail(struct bake *b, int error, const char *format, ...) _printf_(3, 4);

/* inputs.c: reads the description, finds what else goes in, and makes the version of it. */
int bake_inputs(struct bake *b);
/* Returns 1 when the published snapshot is of b->version already. */
int bake_is_published(struct bake *b);

/* workspace.c: the subvolume work/bake-NAME, made empty and locked, with another for the root tree; their undo; and
 * the way into snapshots/. */
int workspace_make(struct bake *b);
int workspace_drop_root(struct bake *b);
void workspace_remove(struct bake *b);
int workspace_publish(struct bake *b, const struct manifest *m);

/* root.c: the tree of the guest's root in work/bake-NAME/root, and disk.raw made of it. */
int root_make(struct bake *b);
int image_make(struct bake *b);

/* machine.c: boots it, runs the template's commands, captures memory and devices. */
int machine_bake(struct bake *b);
