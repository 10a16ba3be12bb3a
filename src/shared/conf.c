/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The keys are a table; what one assignment does is decided in conf_assign(), which touches no file. */

#include "conf.h"

#include <dirent.h>
#include <ini.h>
#include <stdio.h>

#include "conf-key.h"
#include "log.h"

#define SECTION "Sandboxd"

enum key_type {
        KEY_ACCELERATOR, /* auto, kvm or tcg */
        KEY_PATH,        /* an absolute path; default: NULL */
        KEY_STRING,      /* without white space; default: NULL, or the table's */
        KEY_CONTROLLERS, /* names of cgroup controllers; assignments add up */
        KEY_NUMBER,      /* decimal, or "infinity" where the maximum is UINT64_MAX */
        KEY_SIZE,        /* bytes, with K, M, G, T */
        KEY_TIME,        /* a time span */
};

static const struct key {
        const char *name;
        enum key_type type;
        size_t offset;
        uint64_t value; /* numbers: the default */
        uint64_t min, max;
        const char *text; /* strings: the default */
} keys[] = {
#define KEY(name, type, field, ...)                                                                                   \
        { name, type, offsetof(struct conf, field), ##__VA_ARGS__ }
        KEY("Accelerator", KEY_ACCELERATOR, accelerator),
        KEY("VMM", KEY_PATH, vmm),
        KEY("Kernel", KEY_PATH, kernel),
        KEY("AllowMissingControllers", KEY_CONTROLLERS, allow_missing_controllers),
        KEY("StorageSize", KEY_SIZE, storage_size, 0, 1ULL << 30, INT64_MAX),
        /* Above what distributions and systemd's containers give out; a range must not wrap around. */
        KEY("UIDBase", KEY_NUMBER, uid_base, 1879048192ULL + 0x10000, 65536, UINT32_MAX - 1ULL - SLOTS_MAX),
        /* The last uid of the range is that of machines that bake. */
        KEY("MaxSandboxes", KEY_NUMBER, max_sandboxes, 1024, 1, SLOTS_MAX - 1),
        KEY("MaxSandboxesPerOwner", KEY_NUMBER, max_per_owner, UINT64_MAX, 0, UINT64_MAX),
        KEY("DefaultTTLSec", KEY_TIME, default_ttl_usec, 3600 * USEC_PER_SEC, 0, USEC_INFINITY),
        KEY("RuntimeMaxSec", KEY_TIME, runtime_max_usec, 86400 * USEC_PER_SEC, USEC_PER_SEC, USEC_INFINITY),
        KEY("TasksMax", KEY_NUMBER, tasks_max, 256, 16, UINT32_MAX),
        KEY("MemoryOverhead", KEY_SIZE, memory_overhead, 192ULL << 20, 16ULL << 20, 1ULL << 40),
        KEY("AgentTimeoutSec", KEY_TIME, agent_timeout_usec, 30 * USEC_PER_SEC, USEC_PER_SEC, 86400 * USEC_PER_SEC),
        KEY("BootTimeoutSec", KEY_TIME, boot_timeout_usec, 180 * USEC_PER_SEC, USEC_PER_SEC, 86400 * USEC_PER_SEC),
        KEY("Mirror", KEY_STRING, mirror),
        KEY("Suite", KEY_STRING, suite, .text = "trixie"),
#undef KEY
};

#define refuse(ret_message, ...) refuse_with(-EINVAL, ret_message, __VA_ARGS__)

static int assign_text(char **field, const char *value) {
        char *copy = NULL;

        if (value) {
                copy = strdup(value);
                if (!copy)
                        return -ENOMEM;
        }
        free(*field);
        *field = copy;
        return 0;
}

static int assign_default(void *field, const struct key *k) {
        switch (k->type) {
        case KEY_ACCELERATOR:
                *(enum conf_accelerator *) field = ACCELERATOR_AUTO;
                return 0;
        case KEY_PATH:
        case KEY_STRING:
                return assign_text(field, k->text);
        case KEY_CONTROLLERS:
                *(char ***) field = strv_free(*(char ***) field);
                return 0;
        default:
                *(uint64_t *) field = k->value;
                return 0;
        }
}

static int assign_accelerator(enum conf_accelerator *field, const char *value, char **ret_message) {
        static const char *const names[] = {
                [ACCELERATOR_AUTO] = "auto",
                [ACCELERATOR_KVM] = "kvm",
                [ACCELERATOR_TCG] = "tcg",
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (streq(value, names[i])) {
                        *field = (enum conf_accelerator) i;
                        return 0;
                }
        return refuse(ret_message, "\"%s\" is not one of auto, kvm, tcg", value);
}

static int assign_controllers(char ***field, const char *value, char **ret_message) {
        _cleanup_free_ char *copy = strdup(value);
        char *state = NULL;
        int r;

        if (!copy)
                return -ENOMEM;
        for (char *word = strtok_r(copy, " \t", &state); word; word = strtok_r(NULL, " \t", &state)) {
                if (!streq(word, "cpu") && !streq(word, "memory") && !streq(word, "pids"))
                        return refuse(ret_message, "\"%s\" is not one of cpu, memory, pids", word);
                r = strv_extend(field, word);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int assign_number(uint64_t *field, const struct key *k, const char *value, char **ret_message) {
        uint64_t v;
        int r;

        if (k->type == KEY_TIME)
                r = parse_usec(value, &v);
        else if (k->type == KEY_SIZE)
                r = parse_size(value, &v);
        else if (k->max == UINT64_MAX && streq(value, "infinity"))
                v = UINT64_MAX, r = 0;
        else
                r = parse_uint64(value, &v);
        if (r == -EINVAL)
                return refuse(ret_message, "\"%s\" is not a %s", value,
                              k->type == KEY_TIME   ? "time span (90s, 10min, 1h)"
                              : k->type == KEY_SIZE ? "size (512M, 2G)"
                                                    : "number");
        if (r < 0 || v < k->min || v > k->max)
                return refuse(ret_message, "%s is out of range", value);
        *field = v;
        return 0;
}

static const struct key *find_key(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(keys); i++)
                if (streq(keys[i].name, name))
                        return &keys[i];
        return NULL;
}

int conf_assign(struct conf *c, const char *section, const char *key, const char *value, char **ret_message) {
        const struct key *k = find_key(key);
        void *field;

        *ret_message = NULL;
        if (!streq(section, SECTION))
                return refuse(ret_message, "%s= is in section [%s], and only [" SECTION "] is known", key, section);
        if (!k)
                return refuse(ret_message, "%s= is unknown", key);
        field = (char *) c + k->offset;
        if (isempty(value))
                return assign_default(field, k);

        switch (k->type) {
        case KEY_ACCELERATOR:
                return assign_accelerator(field, value, ret_message);
        case KEY_PATH:
                if (value[0] != '/')
                        return refuse(ret_message, "\"%s\" is not an absolute path", value);
                return assign_text(field, value);
        case KEY_STRING:
                if (strpbrk(value, " \t"))
                        return refuse(ret_message, "\"%s\" must not have spaces", value);
                return assign_text(field, value);
        case KEY_CONTROLLERS:
                return assign_controllers(field, value, ret_message);
        default:
                return assign_number(field, k, value, ret_message);
        }
}

struct conf *conf_new(void) {
        struct conf *c = calloc(1, sizeof(*c));

        for (size_t i = 0; c && i < ELEMENTSOF(keys); i++)
                if (assign_default((char *) c + keys[i].offset, &keys[i]) < 0)
                        c = conf_free(c);
        return c;
}

struct conf *conf_free(struct conf *c) {
        if (!c)
                return NULL;
        free(c->vmm);
        free(c->kernel);
        strv_free(c->allow_missing_controllers);
        free(c->mirror);
        free(c->suite);
        free(c);
        return NULL;
}

struct parser {
        struct conf *conf;
        const char *path;
        FILE *file;
        char *line; /* getline's */
        size_t allocated;
        unsigned number; /* of the line that was read last */
        int error;
};

static void fail(struct parser *p, int error, const char *message) {
        log_error("%s:%u: %s", p->path, p->number, message ?: "Out of memory");
        if (p->error == 0)
                p->error = error;
}

/* Feeds the library whole lines only: it would take the rest of a long one for a line of its own, and an indented one
 * for more of the value before. */
static char *read_line(char *buffer, int size, void *userdata) {
        struct parser *p = userdata;
        ssize_t n = getline(&p->line, &p->allocated, p->file);
        const char *start;

        if (n < 0)
                return NULL;
        p->number++;
        start = p->line + strspn(p->line, " \t");
        if (strlen(p->line) != (size_t) n || strlen(start) + 1 > (size_t) size) {
                fail(p, -EINVAL, "Line is too long or not text");
                start = "\n";
        }
        return strcpy(buffer, start);
}

static int handle_assignment(void *userdata, const char *section, const char *key, const char *value) {
        struct parser *p = userdata;
        _cleanup_free_ char *message = NULL;
        int r;

        r = conf_assign(p->conf, section, key, value, &message);
        if (r < 0)
                fail(p, r, message);
        return 1; /* go on: one run shows every fault */
}

static int load_file(struct conf *c, const char *path) {
        struct parser p = { .conf = c, .path = path };
        int r;

        p.file = fopen(path, "re");
        if (!p.file)
                return errno == ENOENT ? 0 : log_error_errno(-errno, "Can't read %s", path);
        r = ini_parse_stream(read_line, &p, handle_assignment, &p);
        if (r != 0) {
                p.number = r > 0 ? (unsigned) r : 0;
                fail(&p, r > 0 ? -EINVAL : -ENOMEM, r > 0 ? "Neither [section] nor Key=value" : NULL);
        }
        if (ferror(p.file) && p.error == 0)
                p.error = log_error_errno(-EIO, "Can't read %s", path);
        free(p.line);
        fclose(p.file);
        return p.error;
}

static int is_dropin(const struct dirent *entry) {
        size_t n = strlen(entry->d_name);

        return entry->d_name[0] != '.' && n > 5 && streq(entry->d_name + n - 5, ".conf");
}

/* Not alphasort(), whose order depends on the locale. */
static int compare_names(const struct dirent **a, const struct dirent **b) {
        return strcmp((*a)->d_name, (*b)->d_name);
}

static int load_dropins(struct conf *c, const char *dir) {
        struct dirent **entries = NULL;
        int n, r = 0;

        n = scandir(dir, &entries, is_dropin, compare_names);
        if (n < 0)
                return errno == ENOENT ? 0 : log_error_errno(-errno, "Can't read %s", dir);
        for (int i = 0; i < n; i++) {
                _cleanup_free_ char *path = NULL;
                int k;

                k = asprintf(&path, "%s/%s", dir, entries[i]->d_name) < 0 ? log_oom() : load_file(c, path);
                if (k < 0 && r >= 0)
                        r = k;
                free(entries[i]);
        }
        free(entries);
        return r;
}

int conf_load(const char *path, struct conf **ret) {
        _cleanup_(conf_freep) struct conf *c = conf_new();
        int r, k = 0;

        if (!c)
                return log_oom();
        r = load_file(c, path ?: CONF_PATH);
        if (!path)
                k = load_dropins(c, CONF_PATH ".d");
        if (r < 0 || k < 0)
                return r < 0 ? r : k;
        if (c->default_ttl_usec == USEC_INFINITY)
                c->default_ttl_usec = 0;
        *ret = TAKE_PTR(c);
        return 0;
}
