/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reading and writing descriptors that others use too, without ever waiting and without touching their flags:
 * O_NONBLOCK belongs to the open file, which the client shares with its shell. */

#include <sys/types.h>

#include "util.h"

enum stream_kind {
        STREAM_SOCKET,
        STREAM_PIPE,
        STREAM_DEVICE, /* a character device */
        STREAM_FILE,   /* always ready, as far as anybody can tell: epoll refuses it */
};

/* -EINVAL for what no command may have: terminals, folders, disks, or what isn't open for this direction. */
int stream_io_kind(int fd, bool for_writing, enum stream_kind *ret);

/* Return the number of bytes (reading: 0 at the end) or a negative errno; -EAGAIN: watch it. A write may be short. */
ssize_t stream_io_read(int fd, enum stream_kind kind, void *buffer, size_t size);
ssize_t stream_io_write(int fd, enum stream_kind kind, const void *data, size_t size);

/* For tests: as on kernels whose pipes don't know RWF_NOWAIT. */
extern bool stream_io_old_pipes;
