/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "util.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

char **strv_free(char **l) {
        for (char **p = l; p && *p; p++)
                free(*p);
        free(l);
        return NULL;
}

size_t strv_length(char *const *l) {
        size_t n = 0;

        while (l && l[n])
                n++;
        return n;
}

size_t strv_size(char *const *l) {
        size_t n = 0;

        for (; l && *l; l++)
                n += strlen(*l) + 1;
        return n;
}

int strv_consume(char ***l, char *s) {
        size_t n = strv_length(*l);
        char **grown;

        if (!s)
                return -ENOMEM;
        grown = reallocarray(*l, n + 2, sizeof(char *));
        if (!grown) {
                free(s);
                return -ENOMEM;
        }
        grown[n] = s;
        grown[n + 1] = NULL;
        *l = grown;
        return 0;
}

int strv_extend(char ***l, const char *s) {
        return strv_consume(l, strdup(s));
}

int strv_extendf(char ***l, const char *format, ...) {
        char *s = NULL;
        va_list ap;
        int r;

        va_start(ap, format);
        r = vasprintf(&s, format, ap);
        va_end(ap);
        return r < 0 ? -ENOMEM : strv_consume(l, s);
}

char **strv_copy(char *const *l) {
        char **copy = calloc(strv_length(l) + 1, sizeof(char *));

        if (!copy)
                return NULL;
        for (size_t i = 0; l && l[i]; i++) {
                copy[i] = strdup(l[i]);
                if (!copy[i])
                        return strv_free(copy);
        }
        return copy;
}

static uint64_t now_nsec(clockid_t clock) {
        struct timespec ts;

        clock_gettime(clock, &ts);
        return (uint64_t) ts.tv_sec * NSEC_PER_SEC + (uint64_t) ts.tv_nsec;
}

uint64_t now_realtime_usec(void) {
        return now_nsec(CLOCK_REALTIME) / NSEC_PER_USEC;
}

uint64_t now_boottime_usec(void) {
        return now_nsec(CLOCK_BOOTTIME) / NSEC_PER_USEC;
}

uint64_t now_monotonic_nsec(void) {
        return now_nsec(CLOCK_MONOTONIC);
}

/* Digits at *s; leaves *s behind them. */
static int parse_digits(const char **s, uint64_t *ret) {
        char *end;
        unsigned long long v;

        if (!isdigit((unsigned char) **s))
                return -EINVAL;
        errno = 0;
        v = strtoull(*s, &end, 10);
        if (errno > 0)
                return -errno;
        *s = end;
        *ret = v;
        return 0;
}

int parse_uint64(const char *s, uint64_t *ret) {
        uint64_t v;
        int r;

        r = parse_digits(&s, &v);
        if (r < 0)
                return r;
        if (*s)
                return -EINVAL;
        *ret = v;
        return 0;
}

int parse_size(const char *s, uint64_t *ret) {
        static const char suffixes[] = "KMGT";
        uint64_t v;
        int r;

        r = parse_digits(&s, &v);
        if (r < 0)
                return r;
        if (*s) {
                const char *suffix = strchr(suffixes, toupper((unsigned char) *s));
                unsigned shift;

                if (!suffix || (s[1] && !streq(s + 1, "B") && !streq(s + 1, "iB")))
                        return -EINVAL;
                shift = 10U * (unsigned) (suffix - suffixes + 1);
                if (v > UINT64_MAX >> shift)
                        return -ERANGE;
                v <<= shift;
        }
        *ret = v;
        return 0;
}

static const struct {
        const char *suffix;
        uint64_t usec;
} time_units[] = {
        { "", USEC_PER_SEC },
        { "us", 1 },
        { "usec", 1 },
        { "ms", USEC_PER_MSEC },
        { "msec", USEC_PER_MSEC },
        { "s", USEC_PER_SEC },
        { "sec", USEC_PER_SEC },
        { "m", 60 * USEC_PER_SEC },
        { "min", 60 * USEC_PER_SEC },
        { "h", 3600 * USEC_PER_SEC },
        { "hr", 3600 * USEC_PER_SEC },
        { "d", 86400 * USEC_PER_SEC },
        { "day", 86400 * USEC_PER_SEC },
        { "w", 7 * 86400 * USEC_PER_SEC },
        { "week", 7 * 86400 * USEC_PER_SEC },
};

static int parse_time_unit(const char *s, size_t n, uint64_t *ret) {
        for (size_t i = 0; i < ELEMENTSOF(time_units); i++)
                if (strlen(time_units[i].suffix) == n && strncmp(s, time_units[i].suffix, n) == 0) {
                        *ret = time_units[i].usec;
                        return 0;
                }
        return -EINVAL;
}

int parse_usec(const char *s, uint64_t *ret) {
        uint64_t sum = 0;

        if (streq(s, "infinity")) {
                *ret = USEC_INFINITY;
                return 0;
        }
        do {
                uint64_t v, unit;
                size_t n = 0;
                int r;

                r = parse_digits(&s, &v);
                if (r < 0)
                        return r;
                while (isalpha((unsigned char) s[n]))
                        n++;
                r = parse_time_unit(s, n, &unit);
                if (r < 0)
                        return r;
                s += n;
                if (__builtin_mul_overflow(v, unit, &v) || __builtin_add_overflow(sum, v, &sum) ||
                    sum == USEC_INFINITY)
                        return -ERANGE;
        } while (*s);
        *ret = sum;
        return 0;
}

char *text_printable(const char *s) {
        char *copy = strdup(strempty(s));

        for (char *p = copy; p && *p; p++)
                if (*p < ' ' || *p > '~')
                        *p = '?';
        return copy;
}

int refuse_with(int error, char **ret_message, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        if (vasprintf(ret_message, format, ap) < 0)
                *ret_message = NULL;
        va_end(ap);
        return error;
}

void hex_encode(const void *data, size_t size, char *ret) {
        static const char digits[] = "0123456789abcdef";
        const uint8_t *p = data;

        for (size_t i = 0; i < size; i++) {
                *ret++ = digits[p[i] >> 4];
                *ret++ = digits[p[i] & 15];
        }
        *ret = 0;
}

int read_file_at(int dir_fd, const char *path, size_t max, char **ret, size_t *ret_size) {
        _cleanup_close_ int fd = -1;
        _cleanup_free_ char *data = NULL;
        size_t allocated = 0, size = 0;

        fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        for (;;) {
                ssize_t n;

                if (size + 1 >= allocated) {
                        char *grown = realloc(data, allocated = allocated ? allocated * 2 : 4096);

                        if (!grown)
                                return -ENOMEM;
                        data = grown;
                }
                n = read(fd, data + size, allocated - size - 1);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        break;
                size += (size_t) n;
                if (size > max)
                        return -EFBIG;
        }
        data[size] = 0;
        *ret = TAKE_PTR(data);
        if (ret_size)
                *ret_size = size;
        return 0;
}

int write_all(int fd, const void *data, size_t size) {
        const char *p = data;

        while (size > 0) {
                ssize_t n = write(fd, p, size);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                p += n;
                size -= (size_t) n;
        }
        return 0;
}

/* fsyncs the folder that path (relative to dir_fd) is in, so that a rename there lasts. */
static int fsync_parent(int dir_fd, const char *path) {
        const char *slash = strrchr(path, '/');
        _cleanup_free_ char *parent = slash ? strndup(path, slash == path ? 1 : (size_t) (slash - path)) : strdup(".");
        _cleanup_close_ int fd = -1;

        if (!parent)
                return -ENOMEM;
        fd = openat(dir_fd, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fsync(fd) < 0)
                return -errno;
        return 0;
}

int write_file_atomic_at(int dir_fd, const char *path, const void *data, size_t size, mode_t mode) {
        _cleanup_free_ char *temporary = NULL;
        _cleanup_close_ int fd = -1;
        int r;

        if (asprintf(&temporary, "%s.tmp", path) < 0)
                return -ENOMEM;
        fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd < 0)
                return -errno;
        r = write_all(fd, data, size);
        if (r >= 0 && fsync(fd) < 0)
                r = -errno;
        if (r >= 0 && renameat(dir_fd, temporary, dir_fd, path) < 0)
                r = -errno;
        if (r < 0) {
                unlinkat(dir_fd, temporary, 0);
                return r;
        }
        return fsync_parent(dir_fd, path);
}

bool name_is_valid(const char *s) {
        size_t n = strlen(s);

        if (n < 1 || n > 64 || !isalnum((unsigned char) s[0]) || !isascii(s[0]))
                return false;
        return strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

bool id_is_valid(const char *s) {
        return strlen(s) == ID_SIZE - 1 && strspn(s, "0123456789abcdef") == ID_SIZE - 1;
}

int random_bytes(void *buffer, size_t size) {
        char *p = buffer;

        while (size > 0) {
                ssize_t n = getrandom(p, size, 0);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                p += n;
                size -= (size_t) n;
        }
        return 0;
}

int id_make(char ret[ID_SIZE]) {
        uint8_t bytes[(ID_SIZE - 1) / 2];
        int r;

        r = random_bytes(bytes, sizeof(bytes));
        if (r < 0)
                return r;
        hex_encode(bytes, sizeof(bytes), ret);
        return 0;
}
