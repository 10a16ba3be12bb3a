/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "yaml-check.h"

#include <stdarg.h>
#include <stdio.h>
#include <yaml.h>

#define DEPTH_MAX 16U
#define NODES_MAX 4096U

struct check {
        yaml_parser_t parser;
        struct yaml_index *index;
        const char *const *unsupported;
        char **message;
};

static int fail(struct check *c, const yaml_mark_t *mark, const char *format, ...) _printf_(3, 4);
static int fail(struct check *c, const yaml_mark_t *mark, const char *format, ...) {
        _cleanup_free_ char *text = NULL;
        va_list ap;
        int r;

        va_start(ap, format);
        r = vasprintf(&text, format, ap);
        va_end(ap);
        if (r < 0) {
                text = NULL;
                return -ENOMEM;
        }
        if (asprintf(c->message, "line %zu, column %zu: %s", mark->line + 1, mark->column + 1, text) < 0) {
                *c->message = NULL;
                return -ENOMEM;
        }
        return -EINVAL;
}

/* The next event; the caller deletes it. Refuses here what is refused everywhere. */
static int next(struct check *c, yaml_event_t *ret) {
        int r = 0;

        if (!yaml_parser_parse(&c->parser, ret)) {
                if (c->parser.error == YAML_MEMORY_ERROR)
                        return -ENOMEM;
                return fail(c, c->parser.error == YAML_READER_ERROR ? &c->parser.mark : &c->parser.problem_mark, "%s",
                            c->parser.problem ?: "not YAML");
        }
        if (ret->type == YAML_ALIAS_EVENT)
                r = fail(c, &ret->start_mark, "aliases (*) aren't supported");
        else if (ret->type == YAML_SCALAR_EVENT && strlen((char *) ret->data.scalar.value) != ret->data.scalar.length)
                r = fail(c, &ret->start_mark, "a NUL character isn't allowed");
        if (r < 0)
                yaml_event_delete(ret);
        return r;
}

const struct yaml_position *yaml_index_find(const struct yaml_index *index, const char *path) {
        for (size_t i = 0; i < index->n_items; i++)
                if (streq(index->items[i].path, path))
                        return &index->items[i];
        return NULL;
}

void yaml_index_done(struct yaml_index *index) {
        for (size_t i = 0; i < index->n_items; i++)
                free(index->items[i].path);
        free(index->items);
        json_decref(index->ignored);
        *index = (struct yaml_index){};
}

static int remember(struct check *c, const char *path, const yaml_mark_t *mark) {
        struct yaml_index *index = c->index;
        struct yaml_position *grown;
        char *copy;

        if (index->n_items >= NODES_MAX)
                return fail(c, mark, "the file has too many values");
        if (index->n_items % 64 == 0) {
                grown = reallocarray(index->items, index->n_items + 64, sizeof(*grown));
                if (!grown)
                        return -ENOMEM;
                index->items = grown;
        }
        copy = strdup(path);
        if (!copy)
                return -ENOMEM;
        index->items[index->n_items++] =
                (struct yaml_position){ copy, (unsigned) mark->line + 1, (unsigned) mark->column + 1 };
        return 0;
}

static json_t *scalar_to_json(const yaml_event_t *event) {
        const char *text = (const char *) event->data.scalar.value;
        uint64_t number;

        if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && parse_uint64(text, &number) >= 0 &&
            number <= INT64_MAX)
                return json_integer((json_int_t) number);
        return json_string(text);
}

static int read_json(struct check *c, const yaml_event_t *first, unsigned depth, json_t **ret);

/* The inside of a list or map up to its end. */
static int read_json_items(struct check *c, bool is_map, unsigned depth, json_t *into) {
        for (;;) {
                _cleanup_free_ char *key = NULL;
                yaml_event_t event;
                json_t *value = NULL;
                int r;

                r = next(c, &event);
                if (r < 0)
                        return r;
                if (event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT) {
                        yaml_event_delete(&event);
                        return 0;
                }
                if (is_map) {
                        if (event.type != YAML_SCALAR_EVENT)
                                r = fail(c, &event.start_mark, "a key must be a text");
                        else if (json_object_get(into, (char *) event.data.scalar.value))
                                r = fail(c, &event.start_mark, "key \"%s\" is there twice", event.data.scalar.value);
                        else {
                                key = strdup((char *) event.data.scalar.value);
                                r = key ? 0 : -ENOMEM;
                        }
                        yaml_event_delete(&event);
                        r = r < 0 ? r : next(c, &event);
                        if (r < 0)
                                return r;
                }
                r = read_json(c, &event, depth, &value);
                yaml_event_delete(&event);
                if (r < 0)
                        return r;
                if ((is_map ? json_object_set_new(into, key, value) : json_array_append_new(into, value)) < 0)
                        return -ENOMEM;
        }
}

static int read_json(struct check *c, const yaml_event_t *first, unsigned depth, json_t **ret) {
        bool is_map = first->type == YAML_MAPPING_START_EVENT;
        json_t *json;
        int r;

        if (depth > DEPTH_MAX)
                return fail(c, &first->start_mark, "nested too deeply");
        if (first->type == YAML_SCALAR_EVENT) {
                *ret = scalar_to_json(first);
                return *ret ? 0 : -ENOMEM;
        }
        json = is_map ? json_object() : json_array();
        r = json ? read_json_items(c, is_map, depth + 1, json) : -ENOMEM;
        if (r < 0)
                json_decref(json);
        else
                *ret = json;
        return r;
}

static int check_value(struct check *c, const cyaml_schema_value_t *schema, const char *path,
                       const yaml_event_t *event);

static int check_sequence(struct check *c, const cyaml_schema_value_t *schema, const char *path) {
        for (unsigned i = 0;; i++) {
                _cleanup_free_ char *child = NULL;
                yaml_event_t event;
                bool end;
                int r;

                r = next(c, &event);
                if (r < 0)
                        return r;
                end = event.type == YAML_SEQUENCE_END_EVENT;
                if (!end) {
                        if (asprintf(&child, "%s[%u]", path, i) < 0)
                                child = NULL;
                        r = child ? check_value(c, schema->sequence.entry, child, &event) : -ENOMEM;
                }
                yaml_event_delete(&event);
                if (r < 0 || end)
                        return r;
        }
}

static const cyaml_schema_field_t *find_field(const cyaml_schema_value_t *schema, const char *key) {
        for (const cyaml_schema_field_t *f = schema->mapping.fields; f->key; f++)
                if (streq(f->key, key))
                        return f;
        return NULL;
}

static int refuse_key(struct check *c, const yaml_event_t *event) {
        const char *key = (const char *) event->data.scalar.value;

        for (const char *const *p = c->unsupported; p && *p; p++)
                if (streq(*p, key))
                        return fail(c, &event->start_mark, "%s: isn't supported by this version", key);
        return fail(c, &event->start_mark, "key \"%s\" is unknown", key);
}

/* A key, already read, and its value. */
static int check_field(struct check *c, const cyaml_schema_value_t *schema, const char *path,
                       const yaml_event_t *key_event) {
        const char *key = (const char *) key_event->data.scalar.value;
        _cleanup_free_ char *child = NULL;
        const cyaml_schema_field_t *field;
        yaml_event_t event;
        int r;

        if (key_event->type != YAML_SCALAR_EVENT)
                return fail(c, &key_event->start_mark, "a key must be a text");
        field = find_field(schema, key);
        if (!field)
                return refuse_key(c, key_event);
        if (asprintf(&child, "%s%s%s", path, *path ? "." : "", key) < 0) {
                child = NULL;
                return -ENOMEM;
        }
        if (yaml_index_find(c->index, child))
                return fail(c, &key_event->start_mark, "key \"%s\" is there twice", key);
        r = next(c, &event);
        if (r < 0)
                return r;
        if (field->value.type == CYAML_IGNORE) {
                json_t *json = NULL;

                r = remember(c, child, &event.start_mark);
                if (r >= 0)
                        r = read_json(c, &event, 0, &json);
                if (r >= 0 && json_object_set_new(c->index->ignored, child, json) < 0)
                        r = -ENOMEM;
        } else
                r = check_value(c, &field->value, child, &event);
        yaml_event_delete(&event);
        return r;
}

static int check_mapping(struct check *c, const cyaml_schema_value_t *schema, const char *path) {
        for (;;) {
                yaml_event_t event;
                bool end;
                int r;

                r = next(c, &event);
                if (r < 0)
                        return r;
                end = event.type == YAML_MAPPING_END_EVENT;
                if (!end)
                        r = check_field(c, schema, path, &event);
                yaml_event_delete(&event);
                if (r < 0 || end)
                        return r;
        }
}

static int check_value(struct check *c, const cyaml_schema_value_t *schema, const char *path,
                       const yaml_event_t *event) {
        const yaml_mark_t *mark = &event->start_mark;
        const char *what = *path ? path : "the file";
        int r;

        r = remember(c, path, mark);
        if (r < 0)
                return r;
        switch (schema->type) {
        case CYAML_STRING:
                return event->type == YAML_SCALAR_EVENT ? 0 : fail(c, mark, "%s must be a text", what);
        case CYAML_SEQUENCE:
                if (event->type != YAML_SEQUENCE_START_EVENT)
                        return fail(c, mark, "%s must be a list", what);
                return check_sequence(c, schema, path);
        case CYAML_MAPPING:
                if (event->type != YAML_MAPPING_START_EVENT)
                        return fail(c, mark, "%s must have keys and values", what);
                return check_mapping(c, schema, path);
        default:
                return -ENOTSUP;
        }
}

/* Exactly one document: start of stream and document, value, end of both. */
static int check_stream(struct check *c, const cyaml_schema_value_t *schema) {
        static const yaml_event_type_t expected[] = { YAML_STREAM_START_EVENT, YAML_DOCUMENT_START_EVENT,
                                                      YAML_NO_EVENT, YAML_DOCUMENT_END_EVENT, YAML_STREAM_END_EVENT };

        for (size_t i = 0; i < ELEMENTSOF(expected); i++) {
                yaml_event_t event;
                int r;

                r = next(c, &event);
                if (r < 0)
                        return r;
                if (expected[i] == YAML_NO_EVENT)
                        r = check_value(c, schema, "", &event);
                else if (event.type == YAML_STREAM_END_EVENT && i == 1)
                        r = fail(c, &event.start_mark, "the file is empty");
                else if (event.type != expected[i])
                        r = fail(c, &event.start_mark, "a second document isn't supported");
                yaml_event_delete(&event);
                if (r < 0)
                        return r;
        }
        return 0;
}

int yaml_check(const void *data, size_t size, const cyaml_schema_value_t *schema, const char *const *unsupported,
               struct yaml_index *ret, char **ret_message) {
        struct yaml_index index = { .ignored = json_object() };
        struct check c = { .index = &index, .unsupported = unsupported, .message = ret_message };
        int r = -ENOMEM;

        *ret_message = NULL;
        if (index.ignored && yaml_parser_initialize(&c.parser)) {
                yaml_parser_set_input_string(&c.parser, data, size);
                r = check_stream(&c, schema);
                yaml_parser_delete(&c.parser);
        }
        if (r < 0)
                yaml_index_done(&index);
        else
                *ret = index;
        return r;
}
