/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Reading is strict and driven by a table: a record that doesn't say exactly what this program would have written is
 * refused, with the field named, rather than restored with a guess. */

#include "manifest.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

#include "machine.h"

#define MANIFEST_SIZE_MAX (4U * 1024U * 1024U)

struct manifest *manifest_free(struct manifest *m) {
        if (!m)
                return NULL;
        free(m->id);
        free(m->name);
        free(m->version);
        free(m->description);
        free(m->vmm_version);
        free(m->accelerator);
        free(m->cpu_model);
        free(m->kernel);
        free(m->user);
        free(m->directory);
        strv_free(m->environment);
        json_decref(m->egress);
        free(m);
        return NULL;
}

#define refuse(ret_message, ...) refuse_with(-EBADMSG, ret_message, __VA_ARGS__)

static bool is_hex(const char *s) {
        size_t n = strlen(s);

        return n >= 12 && n <= 64 && strspn(s, "0123456789abcdef") == n;
}

static bool is_accelerator(const char *s) {
        return streq(s, "kvm") || streq(s, "tcg");
}

static bool is_word(const char *s) {
        return *s && strlen(s) <= 256;
}

static bool is_text(const char *s) {
        return strlen(s) <= 4096;
}

static bool is_absolute(const char *s) {
        return s[0] == '/' && strlen(s) < 4096;
}

enum field_type {
        FIELD_STRING,      /* char * */
        FIELD_UNSIGNED,    /* unsigned */
        FIELD_UINT64,      /* uint64_t */
        FIELD_ENVIRONMENT, /* char **: an array of NAME=value */
        FIELD_JSON,        /* json_t *: a string, array or object, kept as it is */
};

static const struct field {
        const char *name;
        enum field_type type;
        bool required;
        size_t offset;
        bool (*valid)(const char *s); /* strings */
        uint64_t min, max;            /* numbers */
        uint64_t unit;                /* numbers: must be a multiple of it, 0: any */
} fields[] = {
#define STRING(field, required, valid)                                                                                \
        { #field, FIELD_STRING, required, offsetof(struct manifest, field), valid, 0, 0, 0 }
#define NUMBER(field, type, ...)                                                                                      \
        { #field, type, true, offsetof(struct manifest, field), NULL, __VA_ARGS__ }
        STRING(id, true, id_is_valid),
        STRING(name, false, name_is_valid),
        STRING(version, false, is_hex),
        STRING(description, false, is_text),
        NUMBER(created_usec, FIELD_UINT64, 0, INT64_MAX, 0),
        STRING(vmm_version, true, is_word),
        STRING(accelerator, true, is_accelerator),
        STRING(cpu_model, true, is_word),
        NUMBER(machine, FIELD_UNSIGNED, 1, UINT32_MAX, 0),
        NUMBER(memory, FIELD_UINT64, MACHINE_MEMORY_MIN, MACHINE_MEMORY_MAX, 1U << 20),
        NUMBER(cpus, FIELD_UNSIGNED, 1, MACHINE_CPUS_MAX, 0),
        NUMBER(volumes, FIELD_UNSIGNED, 0, MACHINE_VOLUMES_MAX, 0),
        STRING(kernel, false, is_word),
        NUMBER(disk_size, FIELD_UINT64, 0, INT64_MAX, 512),
        NUMBER(generation, FIELD_UINT64, 0, INT64_MAX, 0),
        STRING(user, false, is_word),
        STRING(directory, false, is_absolute),
        { "environment", FIELD_ENVIRONMENT, false, offsetof(struct manifest, environment), NULL, 0, 0, 0 },
        { "egress", FIELD_JSON, false, offsetof(struct manifest, egress), NULL, 0, 0, 0 },
#undef STRING
#undef NUMBER
};

static int read_string(const struct field *f, json_t *value, char **ret, char **ret_message) {
        const char *s = json_string_value(value);

        if (!s || !f->valid(s))
                return refuse(ret_message, "field \"%s\" isn't a string as it must be", f->name);
        *ret = strdup(s);
        return *ret ? 0 : -ENOMEM;
}

static int read_number(const struct field *f, json_t *value, uint64_t *ret, char **ret_message) {
        json_int_t v = json_integer_value(value);

        if (!json_is_integer(value) || v < 0)
                return refuse(ret_message, "field \"%s\" isn't a number from 0", f->name);
        if ((uint64_t) v < f->min || (uint64_t) v > f->max || (f->unit > 0 && (uint64_t) v % f->unit != 0))
                return refuse(ret_message, "field \"%s\" is out of range", f->name);
        *ret = (uint64_t) v;
        return 0;
}

static int read_environment(json_t *value, char ***ret, char **ret_message) {
        json_t *item;
        size_t i;
        int r;

        if (!json_is_array(value))
                return refuse(ret_message, "field \"environment\" isn't an array");
        *ret = strv_copy(NULL);
        if (!*ret)
                return -ENOMEM;
        json_array_foreach (value, i, item) {
                const char *s = strempty(json_string_value(item));

                if (s[0] == '=' || !strchr(s, '='))
                        return refuse(ret_message, "field \"environment\" has an entry that isn't NAME=value");
                r = strv_extend(ret, s);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int read_field(const struct field *f, json_t *value, struct manifest *m, char **ret_message) {
        void *target = (char *) m + f->offset;
        uint64_t number = 0;
        int r;

        switch (f->type) {
        case FIELD_STRING:
                return read_string(f, value, target, ret_message);
        case FIELD_ENVIRONMENT:
                return read_environment(value, target, ret_message);
        case FIELD_JSON:
                if (!json_is_string(value) && !json_is_array(value) && !json_is_object(value))
                        return refuse(ret_message, "field \"%s\" is neither string nor list nor map", f->name);
                *(json_t **) target = json_incref(value);
                return 0;
        case FIELD_UNSIGNED:
                r = read_number(f, value, &number, ret_message);
                *(unsigned *) target = (unsigned) number;
                return r;
        case FIELD_UINT64:
                return read_number(f, value, target, ret_message);
        }
        return -EINVAL;
}

static int check_keys(json_t *json, char **ret_message) {
        const char *key;
        json_t *value;

        json_object_foreach (json, key, value) {
                bool known = streq(key, "format");

                for (size_t i = 0; i < ELEMENTSOF(fields) && !known; i++)
                        known = streq(fields[i].name, key);
                if (!known)
                        return refuse(ret_message, "field \"%s\" is unknown", key);
        }
        return 0;
}

int manifest_from_json(json_t *json, struct manifest **ret, char **ret_message) {
        _cleanup_(manifest_freep) struct manifest *m = NULL;
        json_t *format;
        int r;

        *ret_message = NULL;
        if (!json_is_object(json))
                return refuse(ret_message, "it isn't a JSON object");
        /* First of all: of another format nothing else can be said. */
        format = json_object_get(json, "format");
        if (!json_is_integer(format) || json_integer_value(format) != MANIFEST_FORMAT)
                return refuse(ret_message, "field \"format\" isn't %d", MANIFEST_FORMAT);
        r = check_keys(json, ret_message);
        if (r < 0)
                return r;

        m = calloc(1, sizeof(*m));
        if (!m)
                return -ENOMEM;
        for (size_t i = 0; i < ELEMENTSOF(fields); i++) {
                json_t *value = json_object_get(json, fields[i].name);

                if (!value && fields[i].required)
                        return refuse(ret_message, "field \"%s\" is missing", fields[i].name);
                r = value ? read_field(&fields[i], value, m, ret_message) : 0;
                if (r < 0)
                        return r;
        }
        *ret = TAKE_PTR(m);
        return 0;
}

/* Fields that are NULL aren't written: *ret is NULL then. */
static int write_field(const struct field *f, const struct manifest *m, json_t **ret) {
        const void *source = (const char *) m + f->offset;
        char **list;

        *ret = NULL;
        switch (f->type) {
        case FIELD_STRING:
                if (!*(char *const *) source)
                        return 0;
                *ret = json_string(*(char *const *) source);
                break;
        case FIELD_ENVIRONMENT:
                list = *(char **const *) source;
                if (!list)
                        return 0;
                *ret = json_array();
                for (; *ret && *list; list++)
                        if (json_array_append_new(*ret, json_string(*list)) < 0) {
                                json_decref(*ret);
                                return -EINVAL;
                        }
                break;
        case FIELD_JSON:
                if (!*(json_t *const *) source)
                        return 0;
                *ret = json_incref(*(json_t *const *) source);
                break;
        case FIELD_UNSIGNED:
                *ret = json_integer((json_int_t) * (const unsigned *) source);
                break;
        case FIELD_UINT64:
                *ret = json_integer((json_int_t) * (const uint64_t *) source);
                break;
        }
        /* Strings that aren't UTF-8 are refused as well as a lack of memory. */
        return *ret ? 0 : -EINVAL;
}

int manifest_to_json(const struct manifest *m, json_t **ret) {
        json_t *json = json_pack("{s:i}", "format", MANIFEST_FORMAT);
        int r = json ? 0 : -ENOMEM;

        for (size_t i = 0; i < ELEMENTSOF(fields) && r >= 0; i++) {
                json_t *value;

                r = write_field(&fields[i], m, &value);
                if (r >= 0 && value && json_object_set_new(json, fields[i].name, value) < 0)
                        r = -ENOMEM;
        }
        if (r < 0) {
                json_decref(json);
                return r;
        }
        *ret = json;
        return 0;
}

int manifest_read_at(int dir_fd, const char *dir, struct manifest **ret, char **ret_message) {
        _cleanup_free_ char *text = NULL;
        _cleanup_close_ int fd = -1;
        json_error_t error;
        json_t *json;
        size_t size;
        int r;

        *ret_message = NULL;
        fd = openat(dir_fd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        r = fd < 0 ? -errno : read_file_at(fd, SNAPSHOT_MANIFEST, MANIFEST_SIZE_MAX, &text, &size);
        if (r < 0) {
                (void) refuse(ret_message, "can't read it: %s", strerror(-r));
                return r;
        }
        json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
        if (!json)
                return refuse(ret_message, "line %d, column %d: %s", error.line, error.column, error.text);
        r = manifest_from_json(json, ret, ret_message);
        json_decref(json);
        return r;
}
