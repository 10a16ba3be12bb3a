/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The head grows as it fills; the tail is a ring that exists only once the head is full. */

#include "capture-buffer.h"

#include <fcntl.h>
#include <sys/mman.h>

struct CaptureBuffer {
        size_t head_max, tail_max;
        uint8_t *head;
        size_t head_size, head_allocated;
        uint8_t *tail;
        size_t tail_start, tail_used;
        uint64_t total;
};

int capture_buffer_new(size_t max, CaptureBuffer **ret) {
        CaptureBuffer *c = calloc(1, sizeof(*c));

        if (!c)
                return -ENOMEM;
        c->head_max = max - max / 2;
        c->tail_max = max / 2;
        *ret = c;
        return 0;
}

void capture_buffer_free(CaptureBuffer *c) {
        if (!c)
                return;
        free(c->head);
        free(c->tail);
        free(c);
}

static int grow_head(CaptureBuffer *c, size_t size) {
        size_t allocated = MAX(c->head_allocated, 4096U);
        uint8_t *p;

        while (allocated < size)
                allocated *= 2;
        allocated = MIN(allocated, c->head_max);
        if (allocated == c->head_allocated)
                return 0;
        p = realloc(c->head, allocated);
        if (!p)
                return -ENOMEM;
        c->head = p;
        c->head_allocated = allocated;
        return 0;
}

static void tail_put(CaptureBuffer *c, const uint8_t *p, size_t size) {
        size_t end, first;

        if (size > c->tail_max) {
                p += size - c->tail_max;
                size = c->tail_max;
        }
        end = (c->tail_start + c->tail_used) % c->tail_max;
        first = MIN(size, c->tail_max - end);
        memcpy(c->tail + end, p, first);
        memcpy(c->tail, p + first, size - first);
        c->tail_used += size;
        if (c->tail_used > c->tail_max) {
                c->tail_start = (c->tail_start + c->tail_used - c->tail_max) % c->tail_max;
                c->tail_used = c->tail_max;
        }
}

int capture_buffer_add(CaptureBuffer *c, const void *data, size_t size) {
        const uint8_t *p = data;
        size_t n = MIN(size, c->head_max - c->head_size);

        c->total += size;
        if (n > 0) {
                if (grow_head(c, c->head_size + n) < 0)
                        return -ENOMEM;
                memcpy(c->head + c->head_size, p, n);
                c->head_size += n;
        }
        if (size == n || c->tail_max == 0)
                return 0;

        if (!c->tail)
                c->tail = malloc(c->tail_max);
        if (!c->tail)
                return -ENOMEM;
        tail_put(c, p + n, size - n);
        return 0;
}

uint64_t capture_buffer_total(const CaptureBuffer *c) {
        return c->total;
}

int capture_buffer_to_memfd(const CaptureBuffer *c) {
        _cleanup_close_ int fd = -1;
        size_t first = MIN(c->tail_used, c->tail_max - c->tail_start);
        int r;

        fd = memfd_create("output", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return -errno;
        r = write_all(fd, c->head, c->head_size);
        if (r >= 0 && c->tail_used > 0)
                r = write_all(fd, c->tail + c->tail_start, first);
        if (r >= 0 && c->tail_used > first)
                r = write_all(fd, c->tail, c->tail_used - first);
        if (r < 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
                return -errno;
        return TAKE_FD(fd);
}
