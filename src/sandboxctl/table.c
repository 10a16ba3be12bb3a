/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "table.h"

#include "format.h"

struct cell {
        char *text; /* escaped for a terminal */
        json_t *json;
};

struct table {
        const struct column *columns; /* borrowed */
        size_t n_columns;
        struct cell *cells; /* row by row */
        size_t n_cells, allocated;
        int error; /* the first one; nothing is added after it */
};

struct table *table_new(const struct column *columns, size_t n_columns) {
        struct table *t = malloc(sizeof(*t));

        if (t)
                *t = (struct table){ .columns = columns, .n_columns = n_columns };
        return t;
}

struct table *table_free(struct table *t) {
        if (!t)
                return NULL;
        for (size_t i = 0; i < t->n_cells; i++) {
                free(t->cells[i].text);
                json_decref(t->cells[i].json);
        }
        free(t->cells);
        free(t);
        return NULL;
}

size_t table_rows(const struct table *t) {
        return t->n_cells / t->n_columns;
}

void table_cell(struct table *t, const char *text, json_t *json) {
        struct cell cell = { escape_terminal(text, NULL), json };

        if (t->error == 0 && t->n_cells == t->allocated) {
                size_t n = MAX(2 * t->allocated, (size_t) 64);
                struct cell *grown = reallocarray(t->cells, n, sizeof(*grown));

                if (grown) {
                        t->cells = grown;
                        t->allocated = n;
                } else
                        t->error = -ENOMEM;
        }
        if (!cell.text || !json)
                t->error = -ENOMEM;
        if (t->error < 0) {
                free(cell.text);
                json_decref(json);
                return;
        }
        t->cells[t->n_cells++] = cell;
}

void table_string(struct table *t, const char *s) {
        table_cell(t, strempty(s), s ? json_string(s) : json_null());
}

/* JSON's integers end at 2^63 here; the one value on the bus beyond it means "not known" or "no limit". */
static json_t *json_unsigned(uint64_t v) {
        return v > INT64_MAX ? json_null() : json_integer((json_int_t) v);
}

void table_uint(struct table *t, uint64_t v) {
        char buffer[FORMAT_MAX];

        snprintf(buffer, sizeof(buffer), "%llu", (unsigned long long) v);
        table_cell(t, buffer, json_unsigned(v));
}

void table_size(struct table *t, uint64_t bytes) {
        char buffer[FORMAT_MAX];

        table_cell(t, format_size(bytes, buffer), json_unsigned(bytes));
}

void table_span(struct table *t, uint64_t usec) {
        char buffer[FORMAT_MAX];

        table_cell(t, format_span(usec, buffer), json_unsigned(usec));
}

void table_time(struct table *t, uint64_t usec, uint64_t now) {
        char buffer[FORMAT_MAX];

        table_cell(t, format_relative(usec, now, buffer), usec == 0 ? json_null() : json_unsigned(usec));
}

void json_print(FILE *f, const json_t *json, enum json_mode mode) {
        size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);

        json_dumpf(json, f, flags | (mode == JSON_PRETTY ? JSON_INDENT(8) : JSON_COMPACT));
        fputc('\n', f);
}

static int print_as_json(struct table *t, FILE *f, enum json_mode mode) {
        json_t *rows = json_array(), *row = NULL;
        int r = rows ? 0 : -ENOMEM;

        for (size_t i = 0; i < t->n_cells && r >= 0; i++) {
                if (i % t->n_columns == 0) {
                        row = json_object();
                        r = json_array_append_new(rows, row);
                }
                if (r >= 0)
                        r = json_object_set(row, t->columns[i % t->n_columns].key, t->cells[i].json);
        }
        if (r >= 0)
                json_print(f, rows, mode);
        json_decref(rows);
        return r < 0 ? -ENOMEM : 0;
}

static void print_cell(FILE *f, const char *text, size_t width, bool right, bool last) {
        size_t n = text_width(text), padding = width > n ? width - n : 0;

        if (right)
                fprintf(f, "%*s%s", (int) padding, "", text);
        else
                fprintf(f, "%s%*s", text, last ? 0 : (int) padding, "");
        fputc(last ? '\n' : ' ', f);
}

/* One line a row, each column as wide as its widest cell; n of the columns only. */
static int print_rows(struct table *t, FILE *f, size_t n, bool header) {
        _cleanup_free_ size_t *widths = calloc(t->n_columns, sizeof(*widths));

        if (!widths)
                return -ENOMEM;
        for (size_t i = 0; i < t->n_columns && header; i++)
                widths[i] = text_width(t->columns[i].title);
        for (size_t k = 0; k < t->n_cells; k++)
                widths[k % t->n_columns] = MAX(widths[k % t->n_columns], text_width(t->cells[k].text));
        for (size_t i = 0; i < n && header; i++)
                print_cell(f, t->columns[i].title, widths[i], t->columns[i].right, i + 1 == n);
        for (size_t row = 0; row < table_rows(t); row++)
                for (size_t i = 0; i < n; i++)
                        print_cell(f, t->cells[row * t->n_columns + i].text, widths[i], t->columns[i].right,
                                   i + 1 == n);
        return 0;
}

int table_print(struct table *t, FILE *f, const struct options *o, const char *singular, const char *plural) {
        size_t rows = table_rows(t);
        int r = 0;

        if (t->error < 0)
                return t->error;
        if (o->json != JSON_OFF)
                return print_as_json(t, f, o->json);
        if (o->quiet)
                return print_rows(t, f, 1, false);
        if (rows > 0)
                r = print_rows(t, f, t->n_columns, !o->no_legend);
        if (o->no_legend || r < 0)
                return r;
        if (rows == 0)
                fprintf(f, "No %s.\n", plural);
        else
                fprintf(f, "\n%zu %s listed.\n", rows, rows == 1 ? singular : plural);
        return 0;
}
