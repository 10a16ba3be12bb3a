/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The kernel proper inside a bzImage. QEMU starts it by its PVH entry, without the unpacking in the guest, which takes
 * 5 of 17 seconds where the processor is emulated. */

#include "util.h"

/* Where the compressed kernel is in a bzImage, and whether it is a zstd stream. Pure. -ENOEXEC: it isn't one. */
struct kernel_payload {
        uint64_t offset, size;
};
int kernel_find_payload(const void *header, size_t size, struct kernel_payload *ret);

/* Does this ELF image (its start, as far as its notes) say where PVH enters it? Pure. */
bool kernel_has_pvh(const void *image, size_t size);

/* Unpacks the image at path into folder/vmlinux. Returns 1; 0 when it can't be started so, or zstd isn't here; or an
 * error. */
int kernel_unpack(int interrupt_fd, const char *path, const char *folder);
