/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* SETUP, step by step. The order matters: randomness before what is drawn from it, and the workload last, only after
 * all else succeeded. A later step is still tried after one failed, so that the receipt says all that is wrong; but
 * then nothing thaws. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>

#include "agent.h"

/* From the kernel's interface; musl has no headers of Linux. */
struct pool_info {
        int entropy_bits;
        int size;
        uint8_t data[AGENT_SEED_SIZE];
};
#define RNDADDENTROPY_ _IOW('R', 0x03, int[2])
#define RNDRESEEDCRNG_ _IO('R', 0x07)

static int64_t realtime_nsec(void) {
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (int64_t) ts.tv_sec * (int64_t) NSEC_PER_SEC + ts.tv_nsec;
}

/* The monotonic clock doesn't move: timers that run in the guest keep their distance. */
static int step_clock(const struct agent_setup *m, struct agent_receipt *receipt, char *message, size_t size) {
        int64_t before = realtime_nsec();
        struct timespec ts = {
                .tv_sec = (time_t) (m->realtime_nsec / NSEC_PER_SEC),
                .tv_nsec = (long) (m->realtime_nsec % NSEC_PER_SEC),
        };

        if (clock_settime(CLOCK_REALTIME, &ts) < 0) {
                int r = -errno;
                snprintf(message, size, "cannot set the clock: %s", strerror(-r));
                return r;
        }
        receipt->clock_step_nsec = (int64_t) m->realtime_nsec - before;
        return 0;
}

/* One descriptor for both steps, opened at the first SETUP and kept. */
static int open_random(void) {
        static int fd = -1;

        if (fd < 0)
                fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return fd;
}

static int step_entropy(const struct agent_setup *m, struct agent_receipt *receipt, char *message, size_t size) {
        struct pool_info info = { .entropy_bits = 8 * AGENT_SEED_SIZE, .size = AGENT_SEED_SIZE };
        int r = 0;

        memcpy(info.data, m->seed, sizeof(info.data));
        if (ioctl(open_random(), (int) RNDADDENTROPY_, &info) < 0) {
                r = -errno;
                snprintf(message, size, "cannot credit entropy: %s", strerror(-r));
        } else
                receipt->entropy_bytes = AGENT_SEED_SIZE;
        explicit_bzero(&info, sizeof(info));
        return r;
}

static int step_reseed(char *message, size_t size) {
        if (ioctl(open_random(), (int) RNDRESEEDCRNG_, NULL) < 0) {
                int r = -errno;
                snprintf(message, size, "cannot reseed the kernel's generator: %s", strerror(-r));
                return r;
        }
        return 0;
}

static int step_resources(const struct agent_setup *m, char *message, size_t size) {
        int r = disk_grow(m->disk_size, message, size);

        if (r < 0)
                return r;
        r = cgroup_limit(m->memory_max);
        if (r < 0)
                snprintf(message, size, "cannot limit the workload's memory: %s", strerror(-r));
        return r;
}

static int step_generation(const struct agent_setup *m, char *message, size_t size) {
        char text[32];
        int r;

        /* After all else, for programs watch it: who sees it change finds the rest new. */
        snprintf(text, sizeof(text), "%llu\n", (unsigned long long) m->generation);
        r = write_published(PUBLISHED_GENERATION, text);
        if (r < 0)
                snprintf(message, size, "cannot publish the generation: %s", strerror(-r));
        return r;
}

static int step_thaw(char *message, size_t size) {
        int r = cgroup_freeze(false);

        if (r < 0)
                snprintf(message, size, "cannot thaw the workload: %s", strerror(-r));
        return r;
}

static int perform(enum agent_step step, const struct agent_setup *m, struct agent_receipt *receipt, char *message,
                   size_t size) {
        switch (step) {
        case AGENT_STEP_CLOCK:
                return step_clock(m, receipt, message, size);
        case AGENT_STEP_ENTROPY:
                return step_entropy(m, receipt, message, size);
        case AGENT_STEP_RESEED:
                return step_reseed(message, size);
        case AGENT_STEP_IDENTITY:
                return identity_renew(m, message, size);
        case AGENT_STEP_NETWORK:
                return network_renew(m, message, size);
        case AGENT_STEP_RESOURCES:
                return step_resources(m, message, size);
        case AGENT_STEP_GENERATION:
                return step_generation(m, message, size);
        case AGENT_STEP_THAW:
                /* Fails closed. */
                return receipt->error ? -ECANCELED : step_thaw(message, size);
        default:
                return -EINVAL;
        }
}

void setup_perform(const struct agent_setup *m, struct agent_receipt *ret, char *message, size_t size) {
        *ret = (struct agent_receipt){ .generation = m->generation };
        memcpy(ret->nonce, m->nonce, sizeof(ret->nonce));

        for (uint32_t step = AGENT_STEP_CLOCK; step <= AGENT_STEP_THAW; step <<= 1) {
                char text[256] = "";
                int r = perform(step, m, ret, text, sizeof(text));

                if (r >= 0)
                        ret->steps |= step;
                else if (!ret->error) {
                        ret->error = (uint32_t) -r;
                        snprintf(message, size, "%s", text);
                }
        }
}
