/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Users, from the guest's /etc/passwd and /etc/group. Both are read by the agent itself, so they must be regular files
 * of a sane size; and the answer is kept while neither changes, for most commands run as the same user, and looking at
 * two files' times is a fraction of reading them, above all in a machine that was just restored. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "agent.h"

#define FILE_MAX (1024 * 1024)

static const char *const files[] = { "/etc/passwd", "/etc/group" };

static struct {
        bool valid;
        char asked[64];
        struct stat seen[ELEMENTSOF(files)];
        struct user user;
} cache;

static bool same_file(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
               a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
               a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static bool is_cached(const char *asked, struct stat now[static ELEMENTSOF(files)]) {
        bool same = cache.valid && streq(cache.asked, asked);

        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                if (stat(files[i], &now[i]) < 0)
                        memset(&now[i], 0, sizeof(now[i]));
                same = same && same_file(&now[i], &cache.seen[i]);
        }
        return same;
}

/* The whole file as a string; an absent one is empty. */
static int read_users(const char *path, char **ret) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        _cleanup_free_ char *text = NULL;
        size_t size = 0;
        struct stat st;

        if (fd < 0 && errno != ENOENT)
                return -errno;
        if (fd >= 0 && fstat(fd, &st) < 0)
                return -errno;
        if (fd >= 0 && (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX))
                return -EFBIG;

        size_t room = fd >= 0 ? (size_t) st.st_size : 0;
        text = malloc(room + 1);
        if (!text)
                return -ENOMEM;
        while (size < room) {
                ssize_t n = read(fd, text + size, room - size);
                if (n < 0)
                        return -errno;
                if (n == 0)
                        break;
                size += (size_t) n;
        }
        text[size] = 0;
        *ret = TAKE_PTR(text);
        return 0;
}

static int parse_id(const char *s, uint32_t *ret) {
        char *end;

        if (*s < '0' || *s > '9')
                return -EINVAL;
        errno = 0;
        unsigned long value = strtoul(s, &end, 10);
        if (errno || *end || value >= UINT32_MAX)
                return -EINVAL;
        *ret = (uint32_t) value;
        return 0;
}

/* Cuts the next line off *text into its fields, in place. Returns how many, 0 at the end. */
static size_t next_entry(char **text, char *fields[], size_t max) {
        char *line = *text;
        size_t n = 0, length = strcspn(line, "\n");

        if (!*line)
                return 0;
        *text = line + length + (line[length] ? 1 : 0);
        line[length] = 0;
        while (n < max) {
                fields[n++] = line;
                line = n < max ? strchr(line, ':') : NULL;
                if (!line)
                        break;
                *line++ = 0;
        }
        return n;
}

static void add_group(struct user *u, gid_t gid) {
        for (size_t i = 0; i < u->n_groups; i++)
                if (u->groups[i] == gid)
                        return;
        if (u->n_groups < USER_GROUPS_MAX)
                u->groups[u->n_groups++] = gid;
}

static bool is_member(char *members, const char *name) {
        char *save = NULL;

        for (char *m = strtok_r(members, ",", &save); m; m = strtok_r(NULL, ",", &save))
                if (streq(m, name))
                        return true;
        return false;
}

static int find_entry(char *passwd, const char *asked, struct user *ret) {
        uint32_t wanted = 0, uid, gid;
        bool by_number = parse_id(asked, &wanted) >= 0;
        char *f[7];
        size_t n;

        while ((n = next_entry(&passwd, f, ELEMENTSOF(f))) > 0) {
                if (n < 6 || !*f[0] || parse_id(f[2], &uid) < 0 || parse_id(f[3], &gid) < 0)
                        continue;
                if (by_number ? uid != wanted : !streq(f[0], asked))
                        continue;
                ret->uid = uid;
                ret->gid = gid;
                snprintf(ret->name, sizeof(ret->name), "%s", f[0]);
                snprintf(ret->home, sizeof(ret->home), "%s", *f[5] ? f[5] : "/");
                snprintf(ret->shell, sizeof(ret->shell), "%s", n > 6 && *f[6] ? f[6] : "/bin/sh");
                return 0;
        }
        if (!by_number)
                return -ENOENT;

        /* A number that /etc/passwd doesn't know is fine; its group is its own, never root's by accident. */
        ret->uid = ret->gid = wanted;
        snprintf(ret->name, sizeof(ret->name), "%s", wanted == 0 ? "root" : asked);
        snprintf(ret->home, sizeof(ret->home), "%s", wanted == 0 ? "/root" : "/");
        snprintf(ret->shell, sizeof(ret->shell), "/bin/sh");
        return 0;
}

static void find_groups(char *group, struct user *ret) {
        uint32_t gid;
        char *f[4];
        size_t n;

        add_group(ret, ret->gid);
        while ((n = next_entry(&group, f, ELEMENTSOF(f))) > 0)
                if (n == 4 && parse_id(f[2], &gid) >= 0 && is_member(f[3], ret->name))
                        add_group(ret, gid);
}

int user_find(const char *name_or_uid, const struct user **ret) {
        _cleanup_free_ char *passwd = NULL, *group = NULL;
        const char *asked = isempty(name_or_uid) ? "0" : name_or_uid;
        struct stat now[ELEMENTSOF(files)];
        int r;

        if (strlen(asked) >= sizeof(cache.asked))
                return -ENOENT;
        *ret = &cache.user;
        if (is_cached(asked, now))
                return 0;

        cache.valid = false;
        r = read_users(files[0], &passwd);
        if (r < 0)
                return r;
        r = read_users(files[1], &group);
        if (r < 0)
                return r;
        cache.user.n_groups = 0;
        r = find_entry(passwd, asked, &cache.user);
        if (r < 0)
                return r;
        find_groups(group, &cache.user);
        snprintf(cache.asked, sizeof(cache.asked), "%s", asked);
        memcpy(cache.seen, now, sizeof(now));
        cache.valid = true;
        return 0;
}
