/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A digest over named inputs. Name and length go in with each, so that no two lists of inputs look alike. */

#include "util.h"

#define DIGEST_HEX_SIZE 65

struct digest;

int digest_new(struct digest **ret);
struct digest *digest_free(struct digest *d);
DEFINE_CLEANUP(struct digest *, digest_free)

int digest_add(struct digest *d, const char *name, const void *data, size_t size);
int digest_add_string(struct digest *d, const char *name, const char *value);
/* A file's contents; a folder with all that is in it: names, permissions, contents, targets of links. */
int digest_add_path(struct digest *d, const char *name, const char *path);
int digest_end(struct digest *d, char ret[DIGEST_HEX_SIZE]);
