/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What libcyaml doesn't tell exactly: where in the file something is. One pass over libyaml's events, led by the same
 * schema, refuses unknown and duplicate keys and values of the wrong kind with their line and column, and remembers
 * the position of everything else for those who judge values later. */

#include <cyaml/cyaml.h>
#include <jansson.h>

#include "util.h"

struct yaml_position {
        char *path;            /* "copy[0].from" */
        unsigned line, column; /* of the value; both from 1 */
};

struct yaml_index {
        struct yaml_position *items;
        size_t n_items;
        json_t *ignored; /* top-level keys that the schema ignores (CYAML_IGNORE), as JSON of strings, numbers, lists,
                            maps */
};
void yaml_index_done(struct yaml_index *index);

/* Returns 0, -ENOMEM, or -EINVAL with *ret_message: "line 1, column 1: what is wrong". unsupported: NULL-terminated
 * names of keys that a person may expect, for a better message than "unknown". */
int yaml_check(const void *data, size_t size, const cyaml_schema_value_t *schema, const char *const *unsupported,
               struct yaml_index *ret, char **ret_message);

/* NULL when the file doesn't have it. */
const struct yaml_position *yaml_index_find(const struct yaml_index *index, const char *path);
