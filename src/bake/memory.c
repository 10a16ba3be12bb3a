/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* While a template boots, its RAM is an anonymous file: the same file on the disk would be written back again and
 * again as the guest dirties it, in the order of its page faults. */

#include "memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096U
#define CHUNK (1U << 20)

int memory_new(const char *name, uint64_t size, uid_t uid) {
        _cleanup_close_ int fd = memfd_create(name, MFD_CLOEXEC);

        if (fd < 0 || ftruncate(fd, (off_t) size) < 0 || fchmod(fd, 0600) < 0 || fchown(fd, uid, (gid_t) uid) < 0)
                return -errno;
        return TAKE_FD(fd);
}

static bool is_zero(const uint8_t *page) {
        return page[0] == 0 && memcmp(page, page + 1, PAGE - 1) == 0;
}

static int write_at(int fd, const uint8_t *data, size_t size, uint64_t offset) {
        while (size > 0) {
                ssize_t n = pwrite(fd, data, size, (off_t) offset);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                data += n;
                size -= (size_t) n;
                offset += (uint64_t) n;
        }
        return 0;
}

/* One piece of data between holes. */
static int store_range(const uint8_t *data, int to_fd, uint64_t start, uint64_t end, uint64_t *written) {
        while (start < end) {
                uint64_t stop = start;
                int r;

                if (is_zero(data + start)) {
                        start += PAGE;
                        continue;
                }
                while (stop < end && stop - start < CHUNK && !is_zero(data + stop))
                        stop += PAGE;
                r = write_at(to_fd, data + start, stop - start, start);
                if (r < 0)
                        return r;
                *written += stop - start;
                start = stop;
        }
        return 0;
}

int memory_store(int from_fd, int to_fd, uint64_t size, uint64_t *ret_written) {
        uint8_t *data;
        off_t end = 0;
        int r = 0;

        *ret_written = 0;
        if (ftruncate(to_fd, (off_t) size) < 0)
                return -errno;
        data = mmap(NULL, size, PROT_READ, MAP_SHARED, from_fd, 0);
        if (data == MAP_FAILED)
                return -errno;
        /* Never-touched pages are holes, and must not be made by looking at them. */
        while (r >= 0 && (uint64_t) end < size) {
                off_t start = lseek(from_fd, end, SEEK_DATA);

                if (start < 0) {
                        r = errno == ENXIO ? 0 : -errno;
                        break;
                }
                end = lseek(from_fd, start, SEEK_HOLE);
                r = end < 0 ? -errno
                            : store_range(data, to_fd, (uint64_t) start, MIN((uint64_t) end, size), ret_written);
        }
        (void) munmap(data, size);
        return r;
}
