/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Whatever a bus message holds, as JSON, without knowing what it means. */

#include "ctl.h"

/* The next complete value of m. Dictionaries of strings become objects, other containers arrays, a variant what is in
 * it. Numbers beyond 2^63, of which the interfaces have one, "not known", become null. Returns 0 or a negative errno.
 */
int read_value(sd_bus_message *m, json_t **ret);
/* All properties of an object's interface, as an object in the order of the reply. */
int get_properties(struct ctl *c, const char *path, const char *interface, sd_bus_error *error, json_t **ret);
/* As in NAME=value, on one line: lists with spaces between their elements, quoted where needed. NULL: no memory. */
char *value_to_text(const json_t *v);
