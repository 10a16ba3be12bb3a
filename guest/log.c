/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Messages go to the kernel's log: the only place that is there from the first instruction on, and whose end the host
 * sees on the console when a guest doesn't come up. */

#include <fcntl.h>
#include <stdio.h>
#include <sys/reboot.h>
#include <time.h>

#include "agent.h"

static void log_line(int level, const char *format, va_list ap) {
        static int fd = -1;
        char line[512];
        int n, m;

        if (fd < 0)
                fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0)
                return;
        n = snprintf(line, sizeof(line), "<%d>sandbox-agent: ", level);
        m = vsnprintf(line + n, sizeof(line) - (size_t) n, format, ap);
        if (m > 0)
                (void) !write(fd, line, MIN((size_t) (n + m), sizeof(line) - 1));
}

void say(const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        log_line(6, format, ap);
        va_end(ap);
}

void warn(const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        log_line(3, format, ap);
        va_end(ap);
}

void die(const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        log_line(2, format, ap);
        va_end(ap);

        /* PID 1 must not return: the kernel would panic. The host sees the machine end either way. */
        sync();
        (void) reboot(RB_POWER_OFF);
        for (;;)
                pause();
}

uint64_t now_usec(void) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}
