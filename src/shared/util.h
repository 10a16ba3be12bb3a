/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Ownership helpers and small conversions that every program uses. */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _printf_(a, b) __attribute__((format(printf, a, b)))
#define _unused_ __attribute__((unused))

#define ELEMENTSOF(x) (sizeof(x) / sizeof((x)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define USEC_PER_SEC 1000000ULL
#define USEC_PER_MSEC 1000ULL
#define NSEC_PER_USEC 1000ULL
#define NSEC_PER_SEC 1000000000ULL
#define USEC_INFINITY UINT64_MAX

/* Hands ownership on: yields the value and leaves nothing behind. */
#define TAKE_PTR(p)                                                                                                   \
        ({                                                                                                            \
                typeof(p) *_pp = &(p);                                                                                \
                typeof(p) _v = *_pp;                                                                                  \
                *_pp = NULL;                                                                                          \
                _v;                                                                                                   \
        })
#define TAKE_FD(fd)                                                                                                   \
        ({                                                                                                            \
                int *_pfd = &(fd);                                                                                    \
                int _v = *_pfd;                                                                                       \
                *_pfd = -1;                                                                                           \
                _v;                                                                                                   \
        })

static inline void freep(void *p) {
        free(*(void **) p);
}
/* Closes fd if it is one; errno stays as it was. Returns -1, to be stored. */
static inline int close_fd(int fd) {
        if (fd >= 0) {
                int e = errno;
                close(fd);
                errno = e;
        }
        return -1;
}
static inline void closep(int *fd) {
        close_fd(*fd);
}
#define _cleanup_free_ _cleanup_(freep)
#define _cleanup_close_ _cleanup_(closep)

#define DEFINE_CLEANUP(type, function)                                                                                \
        static inline void function##p(type *p) {                                                                     \
                if (*p)                                                                                               \
                        function(*p);                                                                                 \
        }

static inline bool streq(const char *a, const char *b) {
        return strcmp(a, b) == 0;
}
static inline bool streq_ptr(const char *a, const char *b) {
        return a && b ? strcmp(a, b) == 0 : a == b;
}
static inline const char *strempty(const char *s) {
        return s ? s : "";
}
static inline bool isempty(const char *s) {
        return !s || !*s;
}

/* Frees a NULL-terminated array and its strings; takes NULL. Returns NULL. */
char **strv_free(char **l);
DEFINE_CLEANUP(char **, strv_free)
#define _cleanup_strv_free_ _cleanup_(strv_freep)
size_t strv_length(char *const *l);
/* Bytes of all its strings with their NULs. */
size_t strv_size(char *const *l);
/* Appends a copy of s / a formatted string / s itself (freed on failure). Return 0 or -ENOMEM. */
int strv_extend(char ***l, const char *s);
int strv_extendf(char ***l, const char *format, ...) _printf_(2, 3);
int strv_consume(char ***l, char *s);
char **strv_copy(char *const *l);

/* Microseconds since the epoch / since boot, suspended time included. */
uint64_t now_realtime_usec(void);
uint64_t now_boottime_usec(void);
/* Nanoseconds of CLOCK_MONOTONIC, for measuring. */
uint64_t now_monotonic_nsec(void);

/* Decimal, whole string, no sign. -EINVAL or -ERANGE. */
int parse_uint64(const char *s, uint64_t *ret);
/* "512M", "2G", "1048576", base 1024 with suffixes K M G T. -EINVAL or -ERANGE. */
int parse_size(const char *s, uint64_t *ret);
/* "90", "90s", "10min", "2h", "1d", "500ms", "1h30min", "infinity" → microseconds (a bare number is seconds). */
int parse_usec(const char *s, uint64_t *ret);

/* A copy with all but printable ASCII replaced by "?": what a peer says, fit for the bus and a terminal. NULL counts
 * as empty. NULL without memory. */
char *text_printable(const char *s);

/* Puts the formatted text into *ret_message (NULL without memory) and returns error. */
int refuse_with(int error, char **ret_message, const char *format, ...) _printf_(3, 4);

/* Lower-case hex of size bytes into ret (2 × size + 1 chars). */
void hex_encode(const void *data, size_t size, char *ret);

/* Reads a whole (small) file, at most `max` bytes, as a string. -EFBIG when longer. */
int read_file_at(int dir_fd, const char *path, size_t max, char **ret, size_t *ret_size);
/* Writes under a temporary name in the same folder, fsyncs file and folder, renames: old or new, never a part. */
int write_file_atomic_at(int dir_fd, const char *path, const void *data, size_t size, mode_t mode);
/* Writes all of it or fails. */
int write_all(int fd, const void *data, size_t size);

/* Is this a name that a sandbox or template may have: 1…64 of [A-Za-z0-9._-], starting with a letter or digit? */
bool name_is_valid(const char *s);
/* Is it an id as sandboxd makes them: 12 lower-case hex digits? */
bool id_is_valid(const char *s);
#define ID_SIZE 13 /* with the NUL */
/* Fills buffer with random bytes from the kernel. */
int random_bytes(void *buffer, size_t size);
int id_make(char ret[ID_SIZE]);
