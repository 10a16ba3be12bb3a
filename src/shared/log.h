/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Log once, where it is decided. To the journal with fields when stderr is connected to it, else to stderr. */

#include <syslog.h>

#include "util.h"

/* Message ids, with entries in units/sandboxd.catalog. */
#define MESSAGE_SANDBOX_START "5b7d3c2a1e9f4d0c8a6b2f4e7c1d9a30"  /* a sandbox became usable */
#define MESSAGE_SANDBOX_END "c0e4a7d85f1b4e6f9d3b7a2c6e8f1054"    /* a sandbox is gone, with its usage */
#define MESSAGE_SANDBOX_FAILED "7e2f9a4d6c3b4815b0d7e5a1f8c46293" /* a rung of the ladder failed */
#define MESSAGE_SWEPT "e91d5b3f7a2c4c68a4f0d6b8e3c7f125"          /* leftovers were found at start and removed */
#define MESSAGE_REFUSED "3a8c6e1f4d9b4f27b5e0c2d7a9f1864b"        /* the host lacks something; nothing is served */

extern int log_max_level; /* LOG_ERR … LOG_DEBUG; org.freedesktop.LogControl1 sets it */

/* Names this program in messages on stderr; call first. */
void log_setup(const char *identifier);
bool log_to_journal(void);

/* error: a negative errno, or 0. Its text is appended. Returns error. */
int log_full(int priority, int error, const char *file, int line, const char *function, const char *format, ...)
        _printf_(6, 7);
/* The same with journal fields: a NULL-terminated array of "NAME=value". Returns error. */
int log_fields(int priority, int error, const char *const *fields, const char *format, ...) _printf_(4, 5);

#define log_at(priority, error, ...) log_full(priority, error, __FILE__, __LINE__, __func__, __VA_ARGS__)
#define log_debug(...) ((void) log_at(LOG_DEBUG, 0, __VA_ARGS__))
#define log_info(...) ((void) log_at(LOG_INFO, 0, __VA_ARGS__))
#define log_notice(...) ((void) log_at(LOG_NOTICE, 0, __VA_ARGS__))
#define log_warning(...) ((void) log_at(LOG_WARNING, 0, __VA_ARGS__))
#define log_error(...) ((void) log_at(LOG_ERR, 0, __VA_ARGS__))
#define log_error_errno(error, ...) log_at(LOG_ERR, error, __VA_ARGS__)
#define log_warning_errno(error, ...) log_at(LOG_WARNING, error, __VA_ARGS__)
#define log_oom() log_at(LOG_ERR, -ENOMEM, "Out of memory")
