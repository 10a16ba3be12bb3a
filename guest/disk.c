/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Grows the root's file system to the disk that the host gave this machine. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>

#include "agent.h"

#define DISK "/dev/vda"
#define DISK_WAIT_USEC (2 * USEC_PER_SEC)

/* From the kernel's interface; musl has no headers of Linux. */
#define BLKGETSIZE64_ _IOR(0x12, 114, uint64_t)
#define EXT4_IOC_RESIZE_FS_ _IOW('f', 16, uint64_t)

#define SUPERBLOCK_OFFSET 1024
#define EXT4_MAGIC 0xef53

static uint32_t le32(const uint8_t *p) {
        return (uint32_t) p[0] | (uint32_t) p[1] << 8 | (uint32_t) p[2] << 16 | (uint32_t) p[3] << 24;
}

/* Block count and size as the mounted file system has them: its superblock is shared with the device's page cache. */
static int read_superblock(int fd, uint64_t *ret_blocks, unsigned *ret_shift) {
        uint8_t sb[1024];

        if (pread(fd, sb, sizeof(sb), SUPERBLOCK_OFFSET) != sizeof(sb))
                return -EIO;
        if ((sb[0x38] | sb[0x39] << 8) != EXT4_MAGIC)
                return -EMEDIUMTYPE;
        *ret_blocks = le32(sb + 0x04);
        if (le32(sb + 0x60) & 0x80) /* 64bit */
                *ret_blocks |= (uint64_t) le32(sb + 0x150) << 32;
        *ret_shift = 10 + le32(sb + 0x18);
        return *ret_shift <= 16 ? 0 : -EMEDIUMTYPE;
}

/* The disk's new size may reach the guest a little after it runs again. */
static int wait_for_size(int fd, uint64_t size) {
        uint64_t deadline = now_usec() + DISK_WAIT_USEC, now_size = 0;

        for (;;) {
                if (ioctl(fd, BLKGETSIZE64_, &now_size) < 0)
                        return -errno;
                if (now_size >= size)
                        return 0;
                if (now_usec() >= deadline)
                        return -ETIMEDOUT;
                nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
        }
}

int disk_grow(uint64_t size, char *message, size_t message_size) {
        _cleanup_close_ int disk = -1, root = -1;
        uint64_t blocks = 0, wanted;
        unsigned shift = 0;
        int r;

        if (size == 0)
                return 0;
        disk = open(DISK, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (disk < 0 || root < 0)
                r = -errno;
        else
                r = wait_for_size(disk, size);
        if (r < 0) {
                snprintf(message, message_size, DISK " doesn't have %llu bytes: %s", (unsigned long long) size,
                         strerror(-r));
                return r;
        }

        r = read_superblock(disk, &blocks, &shift);
        wanted = size >> shift;
        if (r >= 0 && wanted > blocks && ioctl(root, EXT4_IOC_RESIZE_FS_, &wanted) < 0)
                r = -errno;
        if (r < 0)
                snprintf(message, message_size, "cannot grow the root file system: %s", strerror(-r));
        return r;
}
