/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "control.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

void control_message_done(struct control_message *m) {
        json_decref(m->body);
        m->body = NULL;
        for (size_t i = 0; i < m->n_fds; i++)
                close_fd(m->fds[i]);
        m->n_fds = 0;
}

int control_message_take_fd(struct control_message *m, const char *name) {
        json_t *names = json_object_get(m->body, "fds"), *value;
        size_t i;

        json_array_foreach (names, i, value)
                if (i < m->n_fds && streq(strempty(json_string_value(value)), name))
                        return TAKE_FD(m->fds[i]);
        return -1;
}

static int unix_address(const char *path, struct sockaddr_un *ret) {
        *ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
        if (strlen(path) >= sizeof(ret->sun_path))
                return -ENAMETOOLONG;
        strcpy(ret->sun_path, path);
        return 0;
}

/* A whole message must fit into the socket's buffer. The kernel doubles the value; without CAP_NET_ADMIN the system's
 * limit stays, and long messages are refused with -EMSGSIZE. */
static void enlarge_buffer(int fd) {
        int size = CONTROL_MESSAGE_MAX + 65536;

        if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
                (void) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static int control_socket(void) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0)
                return -errno;
        enlarge_buffer(fd);
        return fd;
}

int control_listen(const char *path) {
        _cleanup_close_ int fd = -1;
        struct sockaddr_un address;
        mode_t mask;
        int r;

        r = unix_address(path, &address);
        if (r < 0)
                return r;
        fd = control_socket();
        if (fd < 0)
                return fd;
        if (unlink(path) < 0 && errno != ENOENT)
                return -errno;
        mask = umask(0177);
        r = bind(fd, (struct sockaddr *) &address, sizeof(address)) < 0 ? -errno : 0;
        umask(mask);
        if (r < 0)
                return r;
        if (listen(fd, 8) < 0)
                return -errno;
        return TAKE_FD(fd);
}

int control_connect(const char *path) {
        _cleanup_close_ int fd = -1;
        struct sockaddr_un address;
        int r;

        r = unix_address(path, &address);
        if (r < 0)
                return r;
        fd = control_socket();
        if (fd < 0)
                return fd;
        if (connect(fd, (struct sockaddr *) &address, sizeof(address)) < 0)
                return -errno;
        return TAKE_FD(fd);
}

static int attach_names(json_t *body, const char *const *names, size_t n_fds) {
        json_t *list;

        if (n_fds == 0)
                return json_object_del(body, "fds"), 0;
        list = json_array();
        for (size_t i = 0; i < n_fds; i++)
                if (json_array_append_new(list, json_string(names[i])) < 0) {
                        json_decref(list);
                        return -ENOMEM;
                }
        return json_object_set_new(body, "fds", list) < 0 ? -ENOMEM : 0;
}

int control_send(int fd, json_t *body, const char *const *names, const int *fds, size_t n_fds) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int) * CONTROL_FDS_MAX)];
        } ancillary = {};
        struct iovec iov;
        struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
        _cleanup_free_ char *text = NULL;
        int r;

        if (n_fds > CONTROL_FDS_MAX)
                return -E2BIG;
        r = attach_names(body, names, n_fds);
        if (r < 0)
                return r;
        text = json_dumps(body, JSON_COMPACT);
        if (!text)
                return -ENOMEM;
        iov = (struct iovec){ text, strlen(text) };
        if (iov.iov_len > CONTROL_MESSAGE_MAX)
                return -EMSGSIZE;
        if (n_fds > 0) {
                message.msg_control = &ancillary;
                message.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
                ancillary.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                                                     .cmsg_type = SCM_RIGHTS,
                                                     .cmsg_len = CMSG_LEN(sizeof(int) * n_fds) };
                memcpy(CMSG_DATA(&ancillary.header), fds, sizeof(int) * n_fds);
        }
        return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

static void take_ancillary(struct msghdr *message, struct control_message *m) {
        for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
                if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                        memcpy(m->fds, CMSG_DATA(c), n * sizeof(int));
                        m->n_fds = n;
                }
}

/* The size of the next message, without taking it. */
static ssize_t peek_size(int fd) {
        ssize_t n;

        do
                n = recv(fd, NULL, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : n;
}

int control_recv(int fd, struct control_message *ret) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int) * CONTROL_FDS_MAX)];
        } ancillary = {};
        struct control_message m = {};
        _cleanup_free_ char *text = NULL;
        struct iovec iov;
        struct msghdr message = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof(ancillary)
        };
        ssize_t n;

        n = peek_size(fd);
        if (n == 0)
                return 0;
        if (n < 0)
                return n == -ECONNRESET ? 0 : (int) n;
        text = malloc(MIN((size_t) n, CONTROL_MESSAGE_MAX));
        if (!text)
                return -ENOMEM;
        iov = (struct iovec){ text, MIN((size_t) n, CONTROL_MESSAGE_MAX) };
        n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n < 0)
                return errno == ECONNRESET ? 0 : -errno;
        take_ancillary(&message, &m);
        if (!(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
                m.body = json_loadb(text, (size_t) n, JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_string(json_object_get(m.body, "type")) ||
            json_array_size(json_object_get(m.body, "fds")) != m.n_fds) {
                control_message_done(&m);
                return -EBADMSG;
        }
        *ret = m;
        return 1;
}

int control_peer_uid(int fd, uid_t *ret) {
        struct ucred credentials;
        socklen_t size = sizeof(credentials);

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
                return -errno;
        *ret = credentials.uid;
        return 0;
}
