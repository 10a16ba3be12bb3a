/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "format.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

char *format_size(uint64_t bytes, char buffer[FORMAT_MAX]) {
        static const char suffixes[] = "BKMGTPE";
        unsigned i = 0;

        if (bytes == UINT64_MAX)
                return strcpy(buffer, "-");
        while (i + 2 < sizeof(suffixes) && bytes >> (10 * (i + 1)) > 0)
                i++;
        if (bytes % (1ULL << (10 * i)) == 0)
                snprintf(buffer, FORMAT_MAX, "%llu%c", (unsigned long long) bytes >> (10 * i), suffixes[i]);
        else
                snprintf(buffer, FORMAT_MAX, "%.1f%c", (double) bytes / (double) (1ULL << (10 * i)), suffixes[i]);
        return buffer;
}

static const struct {
        const char *suffix;
        uint64_t usec;
} span_units[] = {
        { "w", 7 * 86400 * USEC_PER_SEC },
        { "d", 86400 * USEC_PER_SEC },
        { "h", 3600 * USEC_PER_SEC },
        { "min", 60 * USEC_PER_SEC },
        { "s", USEC_PER_SEC },
        { "ms", USEC_PER_MSEC },
        { "us", 1 },
};

char *format_span(uint64_t usec, char buffer[FORMAT_MAX]) {
        size_t i = 0;
        uint64_t first, second;

        if (usec == UINT64_MAX)
                return strcpy(buffer, "-");
        if (usec == 0)
                return strcpy(buffer, "0");
        while (usec < span_units[i].usec)
                i++;
        first = usec / span_units[i].usec;
        second = usec % span_units[i].usec;
        if (span_units[i].usec <= USEC_PER_SEC) {
                /* Below a minute a decimal says more than a second unit. */
                uint64_t tenths = second * 10 / span_units[i].usec;

                if (tenths > 0)
                        snprintf(buffer, FORMAT_MAX, "%llu.%llu%s", (unsigned long long) first,
                                 (unsigned long long) tenths, span_units[i].suffix);
                else
                        snprintf(buffer, FORMAT_MAX, "%llu%s", (unsigned long long) first, span_units[i].suffix);
                return buffer;
        }
        second /= span_units[i + 1].usec;
        if (second > 0)
                snprintf(buffer, FORMAT_MAX, "%llu%s %llu%s", (unsigned long long) first, span_units[i].suffix,
                         (unsigned long long) second, span_units[i + 1].suffix);
        else
                snprintf(buffer, FORMAT_MAX, "%llu%s", (unsigned long long) first, span_units[i].suffix);
        return buffer;
}

char *format_relative(uint64_t usec, uint64_t now, char buffer[FORMAT_MAX]) {
        uint64_t distance = usec > now ? usec - now : now - usec;
        char span[FORMAT_MAX];

        if (usec == 0 || usec == UINT64_MAX)
                return strcpy(buffer, "-");
        if (distance < USEC_PER_SEC)
                return strcpy(buffer, "now");
        /* Fractions of a second are noise in "4.5s ago". */
        format_span(distance - distance % USEC_PER_SEC, span);
        snprintf(buffer, FORMAT_MAX, usec > now ? "in %s" : "%s ago", span);
        return buffer;
}

char *format_timestamp(uint64_t usec, char buffer[FORMAT_MAX]) {
        time_t t = (time_t) (usec / USEC_PER_SEC);
        struct tm tm;

        if (usec == 0 || usec == UINT64_MAX || !localtime_r(&t, &tm) ||
            strftime(buffer, FORMAT_MAX, "%a %Y-%m-%d %H:%M:%S %Z", &tm) == 0)
                strcpy(buffer, "-");
        return buffer;
}

/* Bytes of the well-formed UTF-8 character at s, 0 where there's none. Overlong forms, surrogates and what lies beyond
 * U+10FFFF don't count as well-formed. */
static size_t utf8_length(const unsigned char *s) {
        size_t n;

        if (s[0] < 0x80)
                return 1;
        if (s[0] < 0xc2 || s[0] > 0xf4)
                return 0;
        n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
        for (size_t i = 1; i < n; i++)
                if ((s[i] & 0xc0) != 0x80)
                        return 0;
        if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
            (s[0] == 0xf4 && s[1] > 0x8f))
                return 0;
        return n;
}

/* C0, DEL, C1 (as a character, two bytes long), and the characters that turn the direction of what follows. */
static bool is_control(const unsigned char *s, size_t n) {
        if (n == 1)
                return s[0] < 0x20 || s[0] == 0x7f;
        if (n == 2)
                return s[0] == 0xc2 && s[1] < 0xa0;
        return n == 3 && s[0] == 0xe2 &&
               ((s[1] == 0x80 && s[2] >= 0xa8 && s[2] <= 0xae) || (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9));
}

char *escape_terminal(const char *s, const char *keep) {
        char *out = malloc(strlen(s) * 4 + 1), *o = out;

        if (!out)
                return NULL;
        while (*s) {
                const unsigned char *u = (const unsigned char *) s;
                size_t n = utf8_length(u);

                if (n > 0 && (!is_control(u, n) || (n == 1 && keep && strchr(keep, *s)))) {
                        memcpy(o, s, n);
                        o += n;
                } else {
                        n = MAX(n, (size_t) 1);
                        for (size_t i = 0; i < n; i++)
                                o += sprintf(o, "\\x%02x", u[i]);
                }
                s += n;
        }
        *o = 0;
        return out;
}

size_t text_width(const char *s) {
        size_t n = 0;

        for (; *s; s++)
                n += ((unsigned char) *s & 0xc0) != 0x80;
        return n;
}

char *join_quoted(char *const *argv) {
        static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_";
        _cleanup_free_ char *line = NULL;
        size_t size;
        FILE *f = open_memstream(&line, &size);

        if (!f)
                return NULL;
        for (size_t i = 0; argv && argv[i]; i++) {
                const char *s = argv[i];

                if (i > 0)
                        fputc(' ', f);
                if (*s && s[strspn(s, plain)] == 0) {
                        fputs(s, f);
                        continue;
                }
                fputc('\'', f);
                for (; *s; s++)
                        *s == '\'' ? fputs("'\\''", f) : fputc(*s, f);
                fputc('\'', f);
        }
        if (fclose(f) != 0)
                return NULL;
        return escape_terminal(line, NULL);
}

int parse_signal(const char *s, int *ret) {
        uint64_t n;

        if (isdigit((unsigned char) *s)) {
                if (parse_uint64(s, &n) < 0 || n < 1 || n > (uint64_t) SIGRTMAX)
                        return -EINVAL;
                *ret = (int) n;
                return 0;
        }
        if (strncasecmp(s, "SIG", 3) == 0)
                s += 3;
        if (strncasecmp(s, "RTMIN+", 6) == 0) {
                if (parse_uint64(s + 6, &n) < 0 || n > (uint64_t) (SIGRTMAX - SIGRTMIN))
                        return -EINVAL;
                *ret = SIGRTMIN + (int) n;
                return 0;
        }
        for (int i = 1; i < SIGRTMIN; i++) {
                const char *name = sigabbrev_np(i);

                if (name && strcasecmp(s, name) == 0) {
                        *ret = i;
                        return 0;
                }
        }
        return -EINVAL;
}

static int parse_date(const char *s, uint64_t *ret) {
        static const char *const formats[] = { "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S" };

        for (size_t i = 0; i < ELEMENTSOF(formats); i++) {
                struct tm tm = { .tm_isdst = -1 };
                const char *end = strptime(s, formats[i], &tm);
                time_t t;

                if (!end || *end)
                        continue;
                tm.tm_isdst = -1;
                t = mktime(&tm);
                if (t < 0)
                        return -ERANGE;
                *ret = (uint64_t) t * USEC_PER_SEC;
                return 0;
        }
        return -EINVAL;
}

/* Midnight, local time, that many days before the day of now. */
static int midnight(uint64_t now, int days, uint64_t *ret) {
        time_t t = (time_t) (now / USEC_PER_SEC);
        struct tm tm;

        if (!localtime_r(&t, &tm))
                return -ERANGE;
        tm.tm_sec = tm.tm_min = tm.tm_hour = 0;
        tm.tm_mday -= days;
        tm.tm_isdst = -1;
        t = mktime(&tm);
        if (t < 0)
                return -ERANGE;
        *ret = (uint64_t) t * USEC_PER_SEC;
        return 0;
}

int parse_since(const char *s, uint64_t now, uint64_t *ret) {
        uint64_t v;
        int r;

        if (streq(s, "today"))
                return midnight(now, 0, ret);
        if (streq(s, "yesterday"))
                return midnight(now, 1, ret);
        if (*s == '@') {
                r = parse_uint64(s + 1, &v);
                if (r >= 0 && v > UINT64_MAX / USEC_PER_SEC)
                        r = -ERANGE;
                if (r >= 0)
                        *ret = v * USEC_PER_SEC;
                return r;
        }
        r = parse_date(s, ret);
        if (r != -EINVAL)
                return r;
        r = parse_usec(s, &v);
        if (r < 0)
                return r;
        if (v > now)
                return -ERANGE;
        *ret = now - v;
        return 0;
}
