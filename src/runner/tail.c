/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "tail.h"

void tail_done(struct tail *t) {
        free(t->data);
        *t = (struct tail){ .max = t->max };
}

void tail_add(struct tail *t, const void *data, size_t size) {
        const char *p = data;

        if (!t->data)
                t->data = malloc(t->max);
        if (!t->data)
                return;
        if (size > t->max) {
                p += size - t->max;
                size = t->max;
        }

        size_t end = (t->start + t->used) % t->max, first = MIN(size, t->max - end);

        memcpy(t->data + end, p, first);
        memcpy(t->data, p + first, size - first);
        t->used += size;
        if (t->used > t->max) {
                t->start = (t->start + t->used - t->max) % t->max;
                t->used = t->max;
        }
}

static char printable(char c) {
        return c >= ' ' && c <= '~' ? c : '?';
}

char *tail_text(const struct tail *t) {
        char *text;
        size_t n = 0;

        if (t->used == 0)
                return NULL;
        text = malloc(t->used + 1);
        if (!text)
                return NULL;
        for (size_t i = 0; i < t->used; i++) {
                char c = t->data[(t->start + i) % t->max];

                if (c == '\r')
                        continue;
                text[n++] = c == '\n' || c == '\t' ? c : printable(c);
        }
        text[n] = 0;
        return text;
}

char *text_sanitise(const char *text, size_t size, size_t max) {
        char *copy;

        size = MIN(size, max);
        copy = malloc(size + 1);
        if (!copy)
                return NULL;
        for (size_t i = 0; i < size; i++)
                copy[i] = printable(text[i]);
        copy[size] = 0;
        return copy;
}
