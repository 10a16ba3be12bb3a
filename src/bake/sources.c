/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "sources.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <strings.h>

#include "log.h"

#define SOURCES_SIZE_MAX (1024U * 1024U)
#define SPACE " \t\n"

void sources_done(struct sources *s) {
        for (size_t i = 0; i < s->n_items; i++) {
                free(s->items[i].options);
                free(s->items[i].uri);
                free(s->items[i].suite);
                free(s->items[i].components);
        }
        free(s->items);
        *s = (struct sources){};
}

static int add(struct sources *s, const char *options, const char *uri, const char *suite, const char *components) {
        struct source *grown = reallocarray(s->items, s->n_items + 1, sizeof(*grown)), *item;

        if (!grown)
                return -ENOMEM;
        s->items = grown;
        item = &grown[s->n_items++];
        *item = (struct source){ strdup(options), strdup(uri), strdup(suite), strdup(components) };
        return item->options && item->uri && item->suite && item->components ? 0 : -ENOMEM;
}

/* "deb [options] uri suite components…" */
static int parse_line(struct sources *s, char *line) {
        char *options = line + strlen(line), *uri, *suite, *rest = line;

        line[strcspn(line, "#\r")] = 0;
        line += strspn(line, SPACE);
        if (strncmp(line, "deb", 3) != 0 || !strchr(SPACE "[", line[3]) || !line[3])
                return 0;
        rest = line + 3 + strspn(line + 3, SPACE);
        if (*rest == '[') {
                options = rest + 1;
                rest = strchr(rest, ']');
                if (!rest)
                        return 0;
                *rest++ = 0;
        }
        rest += strspn(rest, SPACE);
        uri = strsep(&rest, SPACE);
        if (!rest)
                return 0;
        rest += strspn(rest, SPACE);
        suite = strsep(&rest, SPACE);
        rest = rest ? rest + strspn(rest, SPACE) : suite + strlen(suite);
        return *uri && *suite ? add(s, options, uri, suite, rest) : 0;
}

int sources_parse_list(struct sources *s, const char *text) {
        _cleanup_free_ char *copy = strdup(text);
        char *state = NULL;
        int r = copy ? 0 : -ENOMEM;

        for (char *line = r < 0 ? NULL : strtok_r(copy, "\n", &state); line && r >= 0;
             line = strtok_r(NULL, "\n", &state))
                r = parse_line(s, line);
        return r;
}

/* The fields of a stanza that matter here. */
enum field {
        FIELD_TYPES,
        FIELD_URIS,
        FIELD_SUITES,
        FIELD_COMPONENTS,
        FIELD_SIGNED_BY,
        FIELD_TRUSTED,
        FIELD_ENABLED,
        _FIELD_MAX,
};

static const char *const field_names[_FIELD_MAX] = {
        "Types", "URIs", "Suites", "Components", "Signed-By", "Trusted", "Enabled",
};

static bool has_word(const char *words, const char *word) {
        size_t n = strlen(word);

        for (const char *p = words; (p = strstr(p, word)); p += n)
                if ((p == words || strchr(SPACE, p[-1])) && strchr(SPACE, p[n]))
                        return true;
        return false;
}

static int add_suites(struct sources *s, const char *options, const char *uri, const char *suites,
                      const char *components) {
        _cleanup_free_ char *copy = strdup(suites);
        char *state = NULL;
        int r = copy ? 0 : -ENOMEM;

        for (char *suite = r < 0 ? NULL : strtok_r(copy, SPACE, &state); suite && r >= 0;
             suite = strtok_r(NULL, SPACE, &state))
                r = add(s, options, uri, suite, components);
        return r;
}

static int end_stanza(struct sources *s, char **fields) {
        _cleanup_free_ char *options = NULL, *uris = NULL;
        char *state = NULL;
        int r = 0;

        if (!fields[FIELD_TYPES] || !has_word(fields[FIELD_TYPES], "deb") || !fields[FIELD_URIS] ||
            !fields[FIELD_SUITES] || (fields[FIELD_ENABLED] && strcasecmp(fields[FIELD_ENABLED], "no") == 0))
                return 0;
        /* A key written into the file itself has several lines, and no place in one-line style. */
        if (fields[FIELD_SIGNED_BY] && strchr(fields[FIELD_SIGNED_BY], '\n'))
                return 0;
        if (asprintf(&options, "%s%s%s", fields[FIELD_SIGNED_BY] ? "signed-by=" : "",
                     strempty(fields[FIELD_SIGNED_BY]),
                     fields[FIELD_TRUSTED] && strcasecmp(fields[FIELD_TRUSTED], "yes") == 0 ? " trusted=yes" : "") < 0)
                return -ENOMEM;
        for (char *p = options; *p; p++)
                if (*p == ' ' && p[1] == '/') /* several key files */
                        *p = ',';
        uris = strdup(fields[FIELD_URIS]);
        if (!uris)
                return -ENOMEM;
        for (char *uri = strtok_r(uris, SPACE, &state); uri && r >= 0; uri = strtok_r(NULL, SPACE, &state))
                r = add_suites(s, options + strspn(options, " "), uri, fields[FIELD_SUITES],
                               strempty(fields[FIELD_COMPONENTS]));
        return r;
}

/* "Name: value", or more of the value of the field before when the line is indented. Returns that field. */
static char **parse_field(char **fields, char **last, char *line) {
        char *colon = strchr(line, ':'), *joined;

        if (line[0] == ' ' || line[0] == '\t') {
                if (last && asprintf(&joined, "%s\n%s", strempty(*last), line + strspn(line, SPACE)) >= 0) {
                        free(*last);
                        *last = joined;
                }
                return last;
        }
        if (!colon)
                return NULL;
        *colon = 0;
        for (size_t i = 0; i < _FIELD_MAX; i++)
                if (strcasecmp(line, field_names[i]) == 0) {
                        free(fields[i]);
                        fields[i] = strdup(colon + 1 + strspn(colon + 1, SPACE));
                        return &fields[i];
                }
        return NULL;
}

int sources_parse_deb822(struct sources *s, const char *text) {
        _cleanup_free_ char *copy = strdup(text);
        char *fields[_FIELD_MAX] = {}, **last = NULL, *rest = copy;
        int r = copy ? 0 : -ENOMEM;

        while (r >= 0 && rest) {
                char *line = strsep(&rest, "\n");

                bool blank;

                line[strcspn(line, "\r")] = 0;
                blank = !line[strspn(line, SPACE)];
                if (!blank && line[0] != '#')
                        last = parse_field(fields, last, line);
                if (blank || !rest) {
                        r = end_stanza(s, fields);
                        for (size_t i = 0; i < _FIELD_MAX; i++) {
                                free(fields[i]);
                                fields[i] = NULL;
                        }
                        last = NULL;
                }
        }
        for (size_t i = 0; i < _FIELD_MAX; i++)
                free(fields[i]);
        return r;
}

static bool is_exact_path(const struct source *s) {
        return s->suite[strlen(s->suite) - 1] == '/';
}

/* Is it the release itself, its updates or its security updates? Backports and the like are a choice of the host's.
 * Returns what follows the name, or NULL. */
static const char *part_of_release(const struct source *s, const char *release) {
        size_t n = strlen(release);
        const char *rest = s->suite + n;

        if (strncmp(s->suite, release, n) != 0)
                return NULL;
        return streq(rest, "") || streq(rest, "-updates") || streq(rest, "-security") ? rest : NULL;
}

static int put(char ***lines, const struct source *s, const char *suite, const char *suffix) {
        bool is_file = strncmp(s->uri, "file:", 5) == 0;

        return strv_extendf(lines, "deb%s%s%s %s%s %s%s%s%s", *s->options ? " [" : "", s->options,
                            *s->options ? "]" : "", is_file ? "copy:" : "", is_file ? s->uri + 5 : s->uri, suite,
                            suffix, *s->components ? " " : "", s->components);
}

int sources_choose(const struct sources *s, const char *suite, const char *host, char ***ret) {
        _cleanup_strv_free_ char **exact = NULL, **own = NULL, **translated = NULL;
        int r = 0;

        for (size_t i = 0; i < s->n_items && r >= 0; i++) {
                const struct source *item = &s->items[i];
                const char *rest;

                if (is_exact_path(item))
                        r = put(&exact, item, item->suite, "");
                else if ((rest = part_of_release(item, suite)))
                        r = put(&own, item, suite, rest);
                else if (host && (rest = part_of_release(item, host)) && has_word(item->components, "main"))
                        r = put(&translated, item, suite, rest);
        }
        if (r < 0)
                return r;
        if (own || (exact && !translated)) {
                for (char **p = exact; p && *p; p++)
                        if ((r = strv_extend(&own, *p)) < 0)
                                return r;
                *ret = TAKE_PTR(own);
                return 0;
        }
        if (!translated)
                return -ENODATA;
        *ret = TAKE_PTR(translated);
        return 0;
}

static bool has_suffix(const char *s, const char *suffix) {
        size_t n = strlen(s), k = strlen(suffix);

        return n > k && streq(s + n - k, suffix);
}

static int load_file(struct sources *s, int dir_fd, const char *name) {
        _cleanup_free_ char *text = NULL;
        int r;

        r = read_file_at(dir_fd, name, SOURCES_SIZE_MAX, &text, NULL);
        if (r < 0)
                return r == -ENOENT ? 0 : log_error_errno(r, "Can't read %s of /etc/apt", name);
        return has_suffix(name, ".sources") ? sources_parse_deb822(s, text) : sources_parse_list(s, text);
}

static int is_source(const struct dirent *entry) {
        return entry->d_name[0] != '.' &&
               (has_suffix(entry->d_name, ".list") || has_suffix(entry->d_name, ".sources"));
}

static int load_apt(struct sources *s) {
        struct dirent **entries = NULL;
        _cleanup_close_ int fd = -1;
        int n, r;

        r = load_file(s, AT_FDCWD, "/etc/apt/sources.list");
        if (r < 0)
                return r;
        fd = open("/etc/apt/sources.list.d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        n = fd < 0 ? -1 : scandirat(fd, ".", &entries, is_source, alphasort);
        if (n < 0)
                return errno == ENOENT ? 0 : log_error_errno(-errno, "Can't read /etc/apt/sources.list.d");
        for (int i = 0; i < n; i++) {
                if (r >= 0)
                        r = load_file(s, fd, entries[i]->d_name);
                free(entries[i]);
        }
        free(entries);
        return r;
}

/* VERSION_CODENAME of os-release; NULL where there is none. */
static char *host_codename(void) {
        _cleanup_free_ char *text = NULL;
        const char *p;

        if (read_file_at(AT_FDCWD, "/etc/os-release", 65536, &text, NULL) < 0)
                return NULL;
        p = strstr(text, "\nVERSION_CODENAME=");
        if (!p)
                return NULL;
        p += strlen("\nVERSION_CODENAME=");
        p += strspn(p, "\"'");
        return strndup(p, strcspn(p, "\"'\n"));
}

/* A local mirror may be a flat directory of packages. Its signature is not asked for: who can write there is root
 * here. */
static int load_mirror(const struct conf *c, const char *suite, char ***ret) {
        const char *path = strchr(c->mirror, '/');
        bool local = strncmp(c->mirror, "copy:", 5) == 0 || strncmp(c->mirror, "file:", 5) == 0;
        _cleanup_free_ char *dists = NULL;

        if (!local)
                return strv_extendf(ret, "deb %s %s main", c->mirror, suite);
        path = path ? path + strspn(path, "/") : "";
        if (asprintf(&dists, "/%s/dists/%s", path, suite) < 0)
                return -ENOMEM;
        return access(dists, F_OK) == 0 ? strv_extendf(ret, "deb [trusted=yes] copy:///%s %s main", path, suite)
                                        : strv_extendf(ret, "deb [trusted=yes] copy:///%s ./", path);
}

int sources_load(const struct conf *c, const char *suite, char ***ret) {
        _cleanup_free_ char *host = NULL;
        struct sources s = {};
        int r;

        if (c->mirror)
                return load_mirror(c, suite, ret);
        host = host_codename();
        r = load_apt(&s);
        if (r >= 0)
                r = sources_choose(&s, suite, host, ret);
        sources_done(&s);
        return r;
}
