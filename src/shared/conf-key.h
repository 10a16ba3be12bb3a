/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The keys of sandboxd.conf, without its files: for conf.c and its tests. */

#include "conf.h"

/* With the defaults. Returns NULL without memory. */
struct conf *conf_new(void);

/* Applies one assignment. An empty value restores the default. Returns 0, -ENOMEM, or -EINVAL with *ret_message: what
 * is wrong with it, as a sentence for a person (the caller frees it; NULL without memory). */
int conf_assign(struct conf *c, const char *section, const char *key, const char *value, char **ret_message);
