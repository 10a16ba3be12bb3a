/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Three steps: yaml_check() proves that the file has the schema's shape, libcyaml fills `struct raw`, and then each
 * value is judged. In the schema every scalar is a text, so that all judgement is in one place and gives the position.
 */

#include "template.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

#include "machine.h"
#include "yaml-check.h"

#define DISK_MIN (64ULL << 20)
#define DISK_MAX (16ULL << 40)

struct raw_copy {
        char *from, *to, *mode;
};

struct raw_ready {
        char *command, *interval, *timeout;
};

struct raw {
        char *description, *suite, *rootfs, *timeout, *start, *user, *directory, *memory, *cpus, *disk, *volumes;
        char **packages, **run, **environment;
        unsigned packages_count, run_count, environment_count;
        struct raw_copy *copy;
        unsigned copy_count;
        struct raw_ready *ready;
};

#define TEXT(type, field)                                                                                             \
        CYAML_FIELD_STRING_PTR(#field, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, type, field, 0, CYAML_UNLIMITED)
#define LIST(field, entry)                                                                                            \
        CYAML_FIELD_SEQUENCE(#field, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw, field, entry, 0,           \
                             CYAML_UNLIMITED)

static const cyaml_schema_value_t text_schema = { CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 0, CYAML_UNLIMITED) };

static const cyaml_schema_field_t copy_fields[] = {
        TEXT(struct raw_copy, from),
        TEXT(struct raw_copy, to),
        TEXT(struct raw_copy, mode),
        CYAML_FIELD_END,
};

static const cyaml_schema_value_t copy_schema = { CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_copy,
                                                                      copy_fields) };

static const cyaml_schema_field_t ready_fields[] = {
        TEXT(struct raw_ready, command),
        TEXT(struct raw_ready, interval),
        TEXT(struct raw_ready, timeout),
        CYAML_FIELD_END,
};

static const cyaml_schema_field_t fields[] = {
        TEXT(struct raw, description),
        TEXT(struct raw, suite),
        TEXT(struct raw, rootfs),
        TEXT(struct raw, timeout),
        TEXT(struct raw, start),
        TEXT(struct raw, user),
        TEXT(struct raw, directory),
        TEXT(struct raw, memory),
        TEXT(struct raw, cpus),
        TEXT(struct raw, disk),
        TEXT(struct raw, volumes),
        LIST(packages, &text_schema),
        LIST(run, &text_schema),
        LIST(environment, &text_schema),
        LIST(copy, &copy_schema),
        CYAML_FIELD_MAPPING_PTR("ready", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw, ready, ready_fields),
        CYAML_FIELD_IGNORE("egress", CYAML_FLAG_OPTIONAL),
        CYAML_FIELD_END,
};

static const cyaml_schema_value_t schema = { CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw, fields) };

static const cyaml_config_t config = {
        .mem_fn = cyaml_mem,
        .flags = CYAML_CFG_NO_ALIAS,
};

static const char *const unsupported[] = { "dockerfile", "image", NULL };

struct template *template_free(struct template *t) {
        if (!t)
                return NULL;
        free(t->description);
        free(t->suite);
        strv_free(t->packages);
        free(t->rootfs);
        for (size_t i = 0; i < t->n_copy; i++) {
                free(t->copy[i].from);
                free(t->copy[i].to);
        }
        free(t->copy);
        strv_free(t->run);
        free(t->start);
        free(t->ready);
        strv_free(t->environment);
        free(t->user);
        free(t->directory);
        json_decref(t->egress);
        free(t);
        return NULL;
}

struct parser {
        const struct raw *raw;
        struct yaml_index index;
        char **message;
};

/* Refuses the value at path. */
static int fail(struct parser *p, const char *path, const char *format, ...) _printf_(3, 4);
static int fail(struct parser *p, const char *path, const char *format, ...) {
        const struct yaml_position *position = yaml_index_find(&p->index, path);
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
        if (asprintf(p->message, "line %u, column %u: %s%s%s", position ? position->line : 1,
                     position ? position->column : 1, path, *path ? ": " : "", text) < 0) {
                *p->message = NULL;
                return -ENOMEM;
        }
        return -EINVAL;
}

static int take_text(struct parser *p, const char *path, const char *value, char **ret) {
        if (!value)
                return 0;
        if (!*value)
                return fail(p, path, "must not be empty");
        *ret = strdup(value);
        return *ret ? 0 : -ENOMEM;
}

static int take_list(struct parser *p, const char *path, char *const *values, unsigned count,
                     bool (*valid)(const char *), const char *want, char ***ret) {
        for (unsigned i = 0; i < count; i++) {
                char item[64];
                int r;

                snprintf(item, sizeof(item), "%s[%u]", path, i);
                if (!values[i] || !*values[i])
                        return fail(p, item, "must not be empty");
                if (valid && !valid(values[i]))
                        return fail(p, item, "\"%s\" is not %s", values[i], want);
                r = strv_extend(ret, values[i]);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int take_size(struct parser *p, const char *path, const char *value, uint64_t min, uint64_t max,
                     uint64_t *ret) {
        uint64_t v;

        if (!value)
                return 0;
        if (parse_size(value, &v) < 0)
                return fail(p, path, "\"%s\" is not a size (512M, 2G)", value);
        if (v < min || v > max || v % (1U << 20) != 0)
                return fail(p, path, "%s is out of range, or not whole MiB", value);
        *ret = v;
        return 0;
}

static int take_number(struct parser *p, const char *path, const char *value, unsigned min, unsigned max,
                       unsigned *ret) {
        uint64_t v;

        if (!value)
                return 0;
        if (parse_uint64(value, &v) < 0 || v < min || v > max)
                return fail(p, path, "\"%s\" is not a number from %u to %u", value, min, max);
        *ret = (unsigned) v;
        return 0;
}

static int take_time(struct parser *p, const char *path, const char *value, uint64_t *ret) {
        uint64_t v;

        if (!value)
                return 0;
        if (parse_usec(value, &v) < 0)
                return fail(p, path, "\"%s\" is not a time span (500ms, 30s, 10min)", value);
        if (v < USEC_PER_MSEC || v > 86400 * USEC_PER_SEC)
                return fail(p, path, "%s is out of range", value);
        *ret = v;
        return 0;
}

/* What apt takes as name, name:architecture, name=version, name/suite; nothing that another program could take apart.
 */
static bool is_package(const char *s) {
        return islower((unsigned char) s[0]) || isdigit((unsigned char) s[0])
                       ? strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789+.-:=/~ABCDEFGHIJKLMNOPQRSTUVWXYZ_") ==
                                 strlen(s)
                       : false;
}

static bool is_assignment(const char *s) {
        size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");

        return n > 0 && s[n] == '=' && !isdigit((unsigned char) s[0]);
}

static bool is_suite(const char *s) {
        return isalpha((unsigned char) s[0]) && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789.-") == strlen(s);
}

static bool has_dot_dot(const char *path) {
        for (const char *p = path; (p = strstr(p, "..")); p += 2)
                if ((p == path || p[-1] == '/') && (p[2] == '/' || p[2] == 0))
                        return true;
        return false;
}

static int take_root(struct parser *p, struct template *t) {
        const struct raw *raw = p->raw;
        bool packages = yaml_index_find(&p->index, "packages");
        int r;

        if (packages && raw->rootfs)
                return fail(p, "rootfs", "can't go with packages: the root comes from one of them");
        if (!packages && !raw->rootfs)
                return fail(p, "", "packages or rootfs must be there: where does the root come from?");
        if (packages) {
                t->packages = strv_copy(NULL);
                if (!t->packages)
                        return -ENOMEM;
        }
        r = take_list(p, "packages", raw->packages, raw->packages_count, is_package, "the name of a package",
                      &t->packages);
        if (r >= 0)
                r = take_text(p, "rootfs", raw->rootfs, &t->rootfs);
        if (r >= 0)
                r = take_text(p, "suite", raw->suite, &t->suite);
        if (r >= 0 && t->suite && !is_suite(t->suite))
                r = fail(p, "suite", "\"%s\" is not the name of a Debian release", t->suite);
        if (r >= 0 && t->suite && t->rootfs)
                r = fail(p, "suite", "can't go with rootfs");
        return r;
}

static int take_copy(struct parser *p, unsigned i, struct template_copy *copy) {
        const struct raw_copy *raw = &p->raw->copy[i];
        char item[32], path[48];
        char *end;
        int r;

        snprintf(item, sizeof(item), "copy[%u]", i);
        if (!raw->from || !raw->to)
                return fail(p, item, "%s is missing", raw->from ? "to" : "from");
        snprintf(path, sizeof(path), "%s.from", item);
        r = take_text(p, path, raw->from, &copy->from);
        if (r < 0)
                return r;
        snprintf(path, sizeof(path), "%s.to", item);
        if (raw->to[0] != '/' || has_dot_dot(raw->to) || raw->to[strlen(raw->to) - 1] == '/')
                return fail(p, path, "\"%s\" is not an absolute path of what to make", raw->to);
        r = take_text(p, path, raw->to, &copy->to);
        copy->mode = (mode_t) -1;
        if (r < 0 || !raw->mode)
                return r;
        snprintf(path, sizeof(path), "%s.mode", item);
        copy->mode = (mode_t) strtoul(raw->mode, &end, 8);
        if (!isdigit((unsigned char) raw->mode[0]) || *end || strlen(raw->mode) > 5 || copy->mode > 07777)
                return fail(p, path, "\"%s\" is not an octal mode (0755)", raw->mode);
        return 0;
}

static int take_copies(struct parser *p, struct template *t) {
        t->copy = calloc(p->raw->copy_count ?: 1, sizeof(*t->copy));
        if (!t->copy)
                return -ENOMEM;
        for (unsigned i = 0; i < p->raw->copy_count; i++) {
                int r = take_copy(p, i, &t->copy[t->n_copy++]);

                if (r < 0)
                        return r;
        }
        return 0;
}

static int take_commands(struct parser *p, struct template *t) {
        const struct raw *raw = p->raw;
        int r;

        r = take_list(p, "run", raw->run, raw->run_count, NULL, NULL, &t->run);
        if (r >= 0)
                r = take_time(p, "timeout", raw->timeout, &t->timeout_usec);
        if (r >= 0)
                r = take_text(p, "start", raw->start, &t->start);
        if (r < 0 || !raw->ready)
                return r;
        if (!raw->ready->command)
                return fail(p, "ready", "command is missing");
        r = take_text(p, "ready.command", raw->ready->command, &t->ready);
        if (r >= 0)
                r = take_time(p, "ready.interval", raw->ready->interval, &t->ready_interval_usec);
        if (r >= 0)
                r = take_time(p, "ready.timeout", raw->ready->timeout, &t->ready_timeout_usec);
        return r;
}

static int take_defaults(struct parser *p, struct template *t) {
        const struct raw *raw = p->raw;
        json_t *egress = json_object_get(p->index.ignored, "egress");
        int r;

        r = take_list(p, "environment", raw->environment, raw->environment_count, is_assignment, "NAME=value",
                      &t->environment);
        if (r >= 0)
                r = take_text(p, "user", raw->user, &t->user);
        if (r >= 0 && t->user && !name_is_valid(t->user) && t->user[0] != '_')
                r = fail(p, "user", "\"%s\" is not the name or number of a user", t->user);
        if (r >= 0)
                r = take_text(p, "directory", raw->directory, &t->directory);
        if (r >= 0 && t->directory && t->directory[0] != '/')
                r = fail(p, "directory", "\"%s\" is not an absolute path", t->directory);
        if (r >= 0 && egress && !json_is_string(egress) && !json_is_array(egress))
                r = fail(p, "egress", "must be a text or a list");
        if (r >= 0)
                t->egress = json_incref(egress);
        return r;
}

static int take_machine(struct parser *p, struct template *t) {
        const struct raw *raw = p->raw;
        int r;

        r = take_size(p, "memory", raw->memory, MACHINE_MEMORY_MIN, MACHINE_MEMORY_MAX, &t->memory);
        if (r >= 0)
                r = take_size(p, "disk", raw->disk, DISK_MIN, DISK_MAX, &t->disk);
        if (r >= 0)
                r = take_number(p, "cpus", raw->cpus, 1, MACHINE_CPUS_MAX, &t->cpus);
        if (r >= 0)
                r = take_number(p, "volumes", raw->volumes, 0, MACHINE_VOLUMES_MAX, &t->volumes);
        return r;
}

static int judge(struct parser *p, struct template **ret) {
        _cleanup_(template_freep) struct template *t = calloc(1, sizeof(*t));
        int r;

        if (!t)
                return -ENOMEM;
        t->timeout_usec = 600 * USEC_PER_SEC;
        t->ready_interval_usec = USEC_PER_SEC;
        t->ready_timeout_usec = 60 * USEC_PER_SEC;
        t->memory = 512ULL << 20;
        t->disk = 8ULL << 30;
        t->cpus = 1;
        t->volumes = 4;
        if (p->raw->description) {
                t->description = strdup(p->raw->description);
                if (!t->description)
                        return -ENOMEM;
        }
        r = take_root(p, t);
        if (r >= 0)
                r = take_copies(p, t);
        if (r >= 0)
                r = take_commands(p, t);
        if (r >= 0)
                r = take_defaults(p, t);
        if (r >= 0)
                r = take_machine(p, t);
        if (r >= 0)
                *ret = TAKE_PTR(t);
        return r;
}

int template_parse(const void *data, size_t size, struct template **ret, char **ret_message) {
        struct parser p = { .message = ret_message };
        struct raw *raw = NULL;
        cyaml_err_t e;
        int r;

        r = yaml_check(data, size, &schema, unsupported, &p.index, ret_message);
        if (r < 0)
                return r;
        e = cyaml_load_data(data, size, &config, &schema, (cyaml_data_t **) &raw, NULL);
        if (e == CYAML_OK && raw) {
                p.raw = raw;
                r = judge(&p, ret);
        } else
                r = e == CYAML_ERR_OOM ? -ENOMEM : fail(&p, "", "%s", cyaml_strerror(e));
        (void) cyaml_free(&config, &schema, raw, 0);
        yaml_index_done(&p.index);
        return r;
}
