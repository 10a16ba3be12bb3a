/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Linux 6.4 taught pipes RWF_NOWAIT. Before, splice() is the call that takes "don't wait" as an argument: bytes go
 * through a pipe of our own, and what didn't fit is taken back. */

#include "stream-io.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* As much as a pipe holds by default. */
#define OWN_PIPE_SIZE 65536U

bool stream_io_old_pipes = false;

static bool mode_allows(int fd, bool for_writing) {
        int flags = fcntl(fd, F_GETFL);

        if (flags < 0 || flags & O_PATH)
                return false;
        flags &= O_ACCMODE;
        return flags == O_RDWR || flags == (for_writing ? O_WRONLY : O_RDONLY);
}

static bool is_stream_socket(int fd) {
        socklen_t size = sizeof(int);
        int type;

        return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) >= 0 && type == SOCK_STREAM;
}

int stream_io_kind(int fd, bool for_writing, enum stream_kind *ret) {
        struct stat st;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (!mode_allows(fd, for_writing))
                return -EINVAL;

        if (S_ISFIFO(st.st_mode))
                *ret = STREAM_PIPE;
        else if (S_ISSOCK(st.st_mode) && is_stream_socket(fd))
                *ret = STREAM_SOCKET;
        else if (S_ISREG(st.st_mode))
                *ret = STREAM_FILE;
        else if (S_ISCHR(st.st_mode) && !isatty(fd))
                *ret = STREAM_DEVICE;
        else
                return -EINVAL;
        return 0;
}

/* Ours, empty between uses. */
static int own_pipe(int ret[2]) {
        static int fds[2] = { -1, -1 };

        if (fds[0] < 0 && pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
                return -errno;
        ret[0] = fds[0];
        ret[1] = fds[1];
        return 0;
}

static ssize_t read_old_pipe(int fd, void *buffer, size_t size) {
        int own[2] = { -1, -1 }, r;
        ssize_t n;

        r = own_pipe(own);
        if (r < 0)
                return r;
        n = splice(fd, NULL, own[1], NULL, MIN(size, OWN_PIPE_SIZE), SPLICE_F_NONBLOCK);
        if (n <= 0)
                return n < 0 ? -errno : 0;
        n = read(own[0], buffer, (size_t) n);
        return n < 0 ? -errno : n;
}

static ssize_t write_old_pipe(int fd, const void *data, size_t size) {
        char rest[4096];
        ssize_t n, moved;
        int own[2] = { -1, -1 }, r;

        r = own_pipe(own);
        if (r < 0)
                return r;
        n = write(own[1], data, MIN(size, OWN_PIPE_SIZE));
        if (n < 0)
                return -errno;
        moved = splice(own[0], NULL, fd, NULL, (size_t) n, SPLICE_F_NONBLOCK);
        r = moved < 0 ? -errno : 0;
        while (read(own[0], rest, sizeof(rest)) > 0)
                ;
        return r < 0 ? r : moved;
}

/* Drivers that don't know the flag either never wait for long (null, zero, random) or were seen ready just now. */
static ssize_t transfer(int fd, enum stream_kind kind, const struct iovec *iov, bool writing) {
        ssize_t n = -1;

        if (kind != STREAM_FILE && !(kind == STREAM_PIPE && stream_io_old_pipes)) {
                n = writing ? pwritev2(fd, iov, 1, -1, RWF_NOWAIT) : preadv2(fd, iov, 1, -1, RWF_NOWAIT);
                if (n >= 0 || errno != EOPNOTSUPP)
                        return n < 0 ? -errno : n;
        }
        if (kind == STREAM_PIPE)
                return writing ? write_old_pipe(fd, iov->iov_base, iov->iov_len)
                               : read_old_pipe(fd, iov->iov_base, iov->iov_len);
        n = writing ? write(fd, iov->iov_base, iov->iov_len) : read(fd, iov->iov_base, iov->iov_len);
        return n < 0 ? -errno : n;
}

static ssize_t retry(ssize_t n) {
        return n == -EINTR ? -EAGAIN : n;
}

ssize_t stream_io_read(int fd, enum stream_kind kind, void *buffer, size_t size) {
        const struct iovec iov = { buffer, size };
        ssize_t n;

        if (kind != STREAM_SOCKET)
                return retry(transfer(fd, kind, &iov, false));
        n = recv(fd, buffer, size, MSG_DONTWAIT);
        return retry(n < 0 ? -errno : n);
}

ssize_t stream_io_write(int fd, enum stream_kind kind, const void *data, size_t size) {
        const struct iovec iov = { (void *) data, size };
        ssize_t n;

        if (kind != STREAM_SOCKET)
                return retry(transfer(fd, kind, &iov, true));
        n = send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        return retry(n < 0 ? -errno : n);
}
