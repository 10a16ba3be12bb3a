/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Rows of cells, each with what people read and what programs read. */

#include <jansson.h>
#include <stdio.h>

#include "options.h"

struct column {
        const char *title; /* of the header */
        const char *key;   /* in JSON */
        bool right;        /* numbers align at their end */
};

struct table;

/* columns must outlive the table. NULL: no memory. */
struct table *table_new(const struct column *columns, size_t n_columns);
struct table *table_free(struct table *t);
DEFINE_CLEANUP(struct table *, table_free)

/* The next cell, row by row. Errors are kept until table_print(). NULL is an empty cell, null in JSON. Sizes and spans
 * of UINT64_MAX and times of 0 are not known: "-", null. */
void table_string(struct table *t, const char *s);
void table_uint(struct table *t, uint64_t v);
void table_size(struct table *t, uint64_t bytes);
void table_span(struct table *t, uint64_t usec);
/* 5min ago, against now; the exact microseconds in JSON. */
void table_time(struct table *t, uint64_t usec, uint64_t now);
/* Takes over json. */
void table_cell(struct table *t, const char *text, json_t *json);

/* The table as the options want it, followed by a sentence with the number of rows: "2 sandboxes listed." Returns 0 or
 * a negative errno. */
int table_print(struct table *t, FILE *f, const struct options *o, const char *singular, const char *plural);
size_t table_rows(const struct table *t);
/* How JSON goes out everywhere: with a newline at the end. */
void json_print(FILE *f, const json_t *json, enum json_mode mode);
