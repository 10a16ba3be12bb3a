/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "options.h"

#include <ctype.h>
#include <fcntl.h>

#include "sandboxd-names.h"

static int read_string(sd_bus_message *m, char **ret) {
        const char *s;
        int r;

        r = sd_bus_message_read_basic(m, 's', &s);
        if (r < 0)
                return r;
        free(*ret);
        *ret = strdup(s);
        return *ret ? 0 : -ENOMEM;
}

static int read_bool(sd_bus_message *m, bool *ret) {
        int b, r;

        r = sd_bus_message_read_basic(m, 'b', &b);
        if (r >= 0)
                *ret = b;
        return r;
}

static int read_dict(sd_bus_message *m, json_t **ret) {
        json_t *object = json_object();
        const char *key, *value;
        int r;

        if (!object)
                return -ENOMEM;
        r = sd_bus_message_enter_container(m, 'a', "{ss}");
        while (r >= 0 && (r = sd_bus_message_read(m, "{ss}", &key, &value)) > 0)
                if (json_object_set_new(object, key, json_string(value)) < 0)
                        r = -ENOMEM;
        if (r >= 0)
                r = sd_bus_message_exit_container(m);
        if (r < 0) {
                json_decref(object);
                return r;
        }
        json_decref(*ret);
        *ret = object;
        return 0;
}

static int read_fd(sd_bus_message *m, int *ret) {
        int fd, r;

        r = sd_bus_message_read_basic(m, 'h', &fd);
        if (r < 0)
                return r;
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return -errno;
        close_fd(*ret);
        *ret = fd;
        return 0;
}

static int read_bytes(sd_bus_message *m, struct option_bytes *ret) {
        const void *p;
        size_t n;
        int r;

        r = sd_bus_message_read_array(m, 'y', &p, &n);
        if (r < 0)
                return r;
        free(ret->data);
        ret->data = malloc(n + 1);
        if (!ret->data)
                return -ENOMEM;
        if (n > 0)
                memcpy(ret->data, p, n);
        ((char *) ret->data)[n] = 0;
        ret->size = n;
        return 0;
}

/* A path need not be UTF-8, but a caller with busctl would rather write a string. */
static int read_path(sd_bus_message *m, const char *contents, char **ret) {
        struct option_bytes bytes = {};
        int r;

        if (streq(contents, "s"))
                return read_string(m, ret);
        r = read_bytes(m, &bytes);
        if (r < 0)
                return r;
        if (memchr(bytes.data, 0, bytes.size)) {
                free(bytes.data);
                return -EINVAL;
        }
        free(*ret);
        *ret = bytes.data;
        return 0;
}

static const char *const signatures[] = {
        [OPTION_STRING] = "s", [OPTION_UINT64] = "t", [OPTION_UINT32] = "u",   [OPTION_DOUBLE] = "d",
        [OPTION_BOOL] = "b",   [OPTION_STRV] = "as",  [OPTION_DICT] = "a{ss}", [OPTION_FD] = "h",
        [OPTION_BYTES] = "ay", [OPTION_PATH] = "s",
};

static bool signature_fits(enum option_type type, const char *contents) {
        return streq(contents, signatures[type]) || (type == OPTION_PATH && streq(contents, "ay"));
}

static int read_value(sd_bus_message *m, const struct option *o, const char *contents) {
        switch (o->type) {
        case OPTION_STRING:
                return read_string(m, o->value);
        case OPTION_UINT64:
                return sd_bus_message_read_basic(m, 't', o->value);
        case OPTION_UINT32:
                return sd_bus_message_read_basic(m, 'u', o->value);
        case OPTION_DOUBLE:
                return sd_bus_message_read_basic(m, 'd', o->value);
        case OPTION_BOOL:
                return read_bool(m, o->value);
        case OPTION_STRV:
                *(char ***) o->value = strv_free(*(char ***) o->value);
                return sd_bus_message_read_strv(m, o->value);
        case OPTION_DICT:
                return read_dict(m, o->value);
        case OPTION_FD:
                return read_fd(m, o->value);
        case OPTION_BYTES:
                return read_bytes(m, o->value);
        case OPTION_PATH:
                return read_path(m, contents, o->value);
        }
        return -EINVAL;
}

static int read_option(sd_bus_message *m, const struct option *o, const char *key, sd_bus_error *error) {
        const char *contents;
        char type;
        int r;

        r = sd_bus_message_peek_type(m, &type, &contents);
        if (r < 0)
                return r;
        if (!signature_fits(o->type, contents))
                return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "Option %s has type %s, not %s", key,
                                         signatures[o->type], contents);
        r = sd_bus_message_enter_container(m, 'v', contents);
        if (r < 0)
                return r;
        r = read_value(m, o, contents);
        if (r == -EINVAL)
                return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "Option %s has an invalid value", key);
        if (r < 0)
                return r;
        if (o->present)
                *o->present = true;
        return sd_bus_message_exit_container(m);
}

int options_read(sd_bus_message *m, const struct option *options, sd_bus_error *error) {
        uint64_t seen = 0;
        int r;

        r = sd_bus_message_enter_container(m, 'a', "{sv}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
                const struct option *o = options;
                const char *key;

                r = sd_bus_message_read_basic(m, 's', &key);
                if (r < 0)
                        return r;
                while (o->name && !streq(o->name, key))
                        o++;
                if (!o->name)
                        return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "Unknown option %s", key);
                if (seen & (UINT64_C(1) << (o - options)))
                        return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "Option %s is given twice", key);
                seen |= UINT64_C(1) << (o - options);
                r = read_option(m, o, key, error);
                if (r < 0)
                        return r;
                r = sd_bus_message_exit_container(m);
                if (r < 0)
                        return r;
        }
        if (r < 0)
                return r;
        return sd_bus_message_exit_container(m);
}

int options_read_flags(sd_bus_message *m, sd_bus_error *error) {
        uint64_t flags;
        int r;

        r = sd_bus_message_read(m, "t", &flags);
        if (r < 0)
                return r;
        if (flags != 0)
                return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "Unknown flags 0x%llx",
                                         (unsigned long long) flags);
        return 0;
}

int options_check_environment(char *const *environment, sd_bus_error *error) {
        for (char *const *e = environment; e && *e; e++) {
                const char *p = *e;

                if (isalpha((unsigned char) *p) || *p == '_')
                        while (isalnum((unsigned char) *p) || *p == '_')
                                p++;
                if (p == *e || *p != '=')
                        return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT,
                                                 "Environment entry %zu isn't NAME=value",
                                                 (size_t) (e - environment) + 1);
        }
        return 0;
}
