/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "values.h"

#include "format.h"

static json_t *json_basic(char type, const void *raw) {
        union {
                uint8_t y;
                int32_t b;
                int16_t n;
                uint16_t q;
                int32_t i;
                uint32_t u;
                int64_t x;
                uint64_t t;
                double d;
                const char *s;
        } v;

        memcpy(&v, raw, sizeof(v));
        switch (type) {
        case 'y':
                return json_integer(v.y);
        case 'b':
                return json_boolean(v.b);
        case 'n':
                return json_integer(v.n);
        case 'q':
                return json_integer(v.q);
        case 'i':
                return json_integer(v.i);
        case 'u':
                return json_integer(v.u);
        case 'x':
                return json_integer(v.x);
        case 't':
                return v.t > INT64_MAX ? json_null() : json_integer((json_int_t) v.t);
        case 'd':
                return json_real(v.d);
        case 's':
        case 'o':
        case 'g':
                return json_string(v.s);
        default: /* descriptors mean nothing to who reads this */
                return json_null();
        }
}

static int read_basic(sd_bus_message *m, char type, json_t **ret) {
        uint64_t raw[2] = {}; /* room for whichever it is */
        int r = sd_bus_message_read_basic(m, type, raw);

        if (r < 0)
                return r;
        *ret = json_basic(type, raw);
        return *ret ? 0 : -ENOMEM;
}

/* One {key, value} of a dictionary. */
static int read_entry(sd_bus_message *m, const char *types, json_t *object) {
        json_t *value = NULL;
        const char *key;
        int r;

        r = sd_bus_message_enter_container(m, 'e', types);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(m, types[0], &key);
        if (r >= 0)
                r = read_value(m, &value);
        if (r >= 0 && json_object_set_new(object, key, value) < 0)
                r = -ENOMEM;
        return r < 0 ? r : sd_bus_message_exit_container(m);
}

static int read_elements(sd_bus_message *m, json_t *array) {
        int r;

        while ((r = sd_bus_message_at_end(m, false)) == 0) {
                json_t *value = NULL;

                r = read_value(m, &value);
                if (r >= 0 && json_array_append_new(array, value) < 0)
                        r = -ENOMEM;
                if (r < 0)
                        return r;
        }
        return r;
}

/* Dictionaries whose keys aren't strings don't occur. */
static int read_dictionary(sd_bus_message *m, const char *entry, json_t *object) {
        _cleanup_free_ char *types = strndup(entry + 1, strlen(entry) - 2);
        int r;

        if (!types)
                return -ENOMEM;
        if (!strchr("sog", types[0]))
                return -EOPNOTSUPP;
        while ((r = sd_bus_message_at_end(m, false)) == 0) {
                r = read_entry(m, types, object);
                if (r < 0)
                        return r;
        }
        return r;
}

static int read_container(sd_bus_message *m, char type, const char *contents, json_t **ret) {
        bool dictionary = type == 'a' && contents[0] == '{';
        _cleanup_free_ char *types = strdup(contents); /* the original goes with the next read */
        _cleanup_json_ json_t *v = NULL;
        int r;

        if (!types)
                return -ENOMEM;
        r = sd_bus_message_enter_container(m, type, types);
        if (r < 0)
                return r;
        if (type == 'v')
                r = read_value(m, &v);
        else {
                v = dictionary ? json_object() : json_array();
                r = !v ? -ENOMEM : dictionary ? read_dictionary(m, types, v) : read_elements(m, v);
        }
        if (r >= 0)
                r = sd_bus_message_exit_container(m);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(v);
        return 0;
}

int read_value(sd_bus_message *m, json_t **ret) {
        const char *contents;
        char type;
        int r;

        r = sd_bus_message_peek_type(m, &type, &contents);
        if (r == 0)
                return -ENXIO;
        if (r < 0)
                return r;
        return strchr("avr", type) ? read_container(m, type, contents, ret) : read_basic(m, type, ret);
}

int get_properties(struct ctl *c, const char *path, const char *interface, sd_bus_error *error, json_t **ret) {
        _cleanup_message_ sd_bus_message *reply = NULL;
        int r;

        r = ctl_call(c, path, "org.freedesktop.DBus.Properties", "GetAll", error, &reply, "s", interface);
        if (r < 0)
                return r;
        return read_value(reply, ret);
}

static int append_text(char ***words, const char *key, const json_t *v) {
        _cleanup_free_ char *text = value_to_text(v);

        if (!text)
                return -ENOMEM;
        return key ? strv_extendf(words, "%s=%s", key, text) : strv_extend(words, text);
}

static char *list_to_text(const json_t *v) {
        _cleanup_strv_free_ char **words = NULL;
        const char *key;
        json_t *element;
        size_t i;
        int r = 0;

        if (json_is_object(v))
                json_object_foreach ((json_t *) v, key, element)
                        r = r < 0 ? r : append_text(&words, key, element);
        else
                json_array_foreach (v, i, element)
                        r = r < 0 ? r : append_text(&words, NULL, element);
        return r < 0 ? NULL : join_quoted(words);
}

char *value_to_text(const json_t *v) {
        char *text = NULL;
        int r = 0;

        switch (json_typeof(v)) {
        case JSON_STRING:
                return escape_terminal(json_string_value(v), NULL);
        case JSON_INTEGER:
                r = asprintf(&text, "%lld", (long long) json_integer_value(v));
                break;
        case JSON_REAL:
                r = asprintf(&text, "%.15g", json_real_value(v));
                break;
        case JSON_TRUE:
        case JSON_FALSE:
                return strdup(json_is_true(v) ? "yes" : "no");
        case JSON_NULL:
                return strdup("[not set]");
        default:
                return list_to_text(v);
        }
        return r < 0 ? NULL : text;
}
