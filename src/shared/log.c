/* SPDX-License-Identifier: LGPL-2.1-or-later */

#define SD_JOURNAL_SUPPRESS_LOCATION
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>

#define FIELDS_MAX 24

int log_max_level = LOG_INFO;
static const char *log_identifier = "sandboxd";

void log_setup(const char *identifier) {
        log_identifier = identifier;
}

/* $JOURNAL_STREAM names the device and inode of the journal's stream, when one of our outputs is it. */
bool log_to_journal(void) {
        static int cached = -1;
        const char *e;
        unsigned long long device, inode;
        struct stat st;

        if (cached >= 0)
                return cached;
        e = getenv("JOURNAL_STREAM");
        cached = e && sscanf(e, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) >= 0 &&
                 st.st_dev == device && st.st_ino == inode;
        return cached;
}

static void to_journal(int priority, const char *const *fields, const char *const *more, const char *text) {
        struct iovec iov[FIELDS_MAX];
        char *owned[3] = {};
        int n = 0;

        if (asprintf(&owned[0], "MESSAGE=%s", text) < 0)
                owned[0] = NULL;
        if (asprintf(&owned[1], "PRIORITY=%d", priority) < 0)
                owned[1] = NULL;
        if (asprintf(&owned[2], "SYSLOG_IDENTIFIER=%s", log_identifier) < 0)
                owned[2] = NULL;
        for (size_t i = 0; i < ELEMENTSOF(owned); i++)
                if (owned[i])
                        iov[n++] = (struct iovec){ owned[i], strlen(owned[i]) };
        for (; fields && *fields && n < FIELDS_MAX; fields++)
                iov[n++] = (struct iovec){ (void *) *fields, strlen(*fields) };
        for (; more && *more && n < FIELDS_MAX; more++)
                iov[n++] = (struct iovec){ (void *) *more, strlen(*more) };
        sd_journal_sendv(iov, n);
        for (size_t i = 0; i < ELEMENTSOF(owned); i++)
                free(owned[i]);
}

static void emit(int priority, int error, const char *const *fields, const char *const *more, const char *format,
                 va_list ap) {
        char text[2048];
        int n;

        n = vsnprintf(text, sizeof(text), format, ap);
        if (n >= 0 && (size_t) n < sizeof(text) && error != 0)
                snprintf(text + n, sizeof(text) - (size_t) n, ": %s", strerror(abs(error)));
        if (log_to_journal())
                to_journal(priority, fields, more, text);
        else
                fprintf(stderr, "%s: %s\n", log_identifier, text);
}

int log_full(int priority, int error, const char *file, int line, const char *function, const char *format, ...) {
        char code_file[256], code_line[32], code_function[128], code_errno[32];
        const char *more[] = { code_file, code_line, code_function, error != 0 ? code_errno : NULL, NULL };
        va_list ap;

        if (priority > log_max_level)
                return error;
        snprintf(code_file, sizeof(code_file), "CODE_FILE=%s", file);
        snprintf(code_line, sizeof(code_line), "CODE_LINE=%d", line);
        snprintf(code_function, sizeof(code_function), "CODE_FUNC=%s", function);
        snprintf(code_errno, sizeof(code_errno), "ERRNO=%d", abs(error));
        va_start(ap, format);
        emit(priority, error, NULL, more, format, ap);
        va_end(ap);
        return error;
}

int log_fields(int priority, int error, const char *const *fields, const char *format, ...) {
        va_list ap;

        if (priority > log_max_level)
                return error;
        va_start(ap, format);
        emit(priority, error, fields, NULL, format, ap);
        va_end(ap);
        return error;
}
