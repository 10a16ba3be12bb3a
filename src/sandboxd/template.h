/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A template: a published name for a snapshot. What bakes publish on disk is read here. */

#include "manager.h"
#include "manifest.h"

struct template {
        LIST_ENTRY(template) templates;
        struct manager *manager;
        struct manifest *manifest; /* of the snapshot that it names */
        char *mismatch;            /* what of this host doesn't match it; NULL: it can be restored */
};

/* Reads templates/ again: new ones appear, withdrawn ones go, replaced ones change. Signals and collects accordingly.
 */
int templates_reload(struct manager *m);
void templates_free(struct manager *m);
struct template *template_by_name(struct manager *m, const char *name);
/* The object's path, to be freed. */
char *template_path(const struct template *t);
/* Sandboxes that came from this version. */
unsigned template_users(const struct template *t);
/* Withdraws it on disk and here. */
int template_remove(struct template *t);

/* Removes the snapshots that no template names and no sandbox uses. Not before adoption is done. */
void snapshots_collect(struct manager *m);

extern const sd_bus_vtable template_vtable[];
int template_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret,
                  sd_bus_error *error);
int template_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error);
