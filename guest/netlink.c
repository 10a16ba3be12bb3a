/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "agent.h"
#include "netlink.h"

#define ALIGN4(n) (((n) + 3U) & ~(size_t) 3)

int nl_open(int protocol) {
        int fd = socket(AF_NETLINK_, SOCK_RAW | SOCK_CLOEXEC, protocol);

        if (fd < 0)
                return -errno;
        /* The kernel answers at once; a limit all the same, for PID 1 must not hang. */
        (void) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ .tv_sec = 2 }, sizeof(struct timeval));
        return fd;
}

void *nl_begin(struct nl_request *q, uint16_t type, uint16_t flags, size_t size) {
        memset(q, 0, sizeof(*q));
        q->header = (struct nl_header){
                .length = (uint32_t) (sizeof(q->header) + ALIGN4(size)),
                .type = type,
                .flags = NL_REQUEST | flags,
        };
        return q->body;
}

/* Requests here are small and of fixed content: they fit. */
void nl_attribute(struct nl_request *q, uint16_t type, const void *data, size_t size) {
        uint8_t *p = (uint8_t *) q + q->header.length;
        struct nl_attribute a = { .length = (uint16_t) (sizeof(a) + size), .type = type };

        memcpy(p, &a, sizeof(a));
        memcpy(p + sizeof(a), data, size);
        q->header.length += (uint32_t) ALIGN4(sizeof(a) + size);
}

static int nl_send(int fd, struct nl_request *q) {
        static uint32_t sequence;
        struct nl_address kernel = { .family = AF_NETLINK_ };

        q->header.sequence = ++sequence;
        return sendto(fd, q, q->header.length, 0, (struct sockaddr *) &kernel, sizeof(kernel)) < 0 ? -errno : 0;
}

/* Reads answers to q until the one that ends them. */
static int nl_receive(int fd, const struct nl_request *q, void (*message)(const void *, size_t, void *),
                      void *userdata) {
        uint8_t buffer[16384] __attribute__((aligned(8)));

        for (;;) {
                ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
                if (n < 0)
                        return errno == EAGAIN ? -ETIMEDOUT : -errno;

                size_t left = (size_t) n, length;
                for (uint8_t *p = buffer; left >= sizeof(struct nl_header); p += length, left -= length) {
                        const struct nl_header *h = (const struct nl_header *) p;
                        size_t size;

                        if (h->length < sizeof(*h) || h->length > left)
                                return -EBADMSG;
                        length = MIN(ALIGN4(h->length), left);
                        size = h->length - sizeof(*h);
                        if (h->sequence != q->header.sequence)
                                continue;
                        if (h->type == NL_DONE)
                                return 0;
                        if (h->type == NL_ERROR) {
                                int32_t error = -EBADMSG;
                                if (size >= sizeof(error))
                                        memcpy(&error, h + 1, sizeof(error));
                                return error;
                        }
                        if (message)
                                message(h + 1, size, userdata);
                }
        }
}

int nl_call(int fd, struct nl_request *q) {
        int r;

        q->header.flags |= NL_ACK;
        r = nl_send(fd, q);
        return r < 0 ? r : nl_receive(fd, q, NULL, NULL);
}

int nl_dump(int fd, struct nl_request *q, void (*message)(const void *body, size_t size, void *userdata),
            void *userdata) {
        int r;

        q->header.flags |= NL_DUMP;
        r = nl_send(fd, q);
        return r < 0 ? r : nl_receive(fd, q, message, userdata);
}

const void *nl_find(const void *attributes, size_t size, uint16_t type, size_t wanted) {
        const uint8_t *p = attributes;

        while (size >= sizeof(struct nl_attribute)) {
                struct nl_attribute a;

                memcpy(&a, p, sizeof(a));
                if (a.length < sizeof(a) || a.length > size)
                        return NULL;
                if (a.type == type)
                        return a.length - sizeof(a) >= wanted ? p + sizeof(a) : NULL;
                p += MIN(ALIGN4(a.length), size);
                size -= MIN(ALIGN4(a.length), size);
        }
        return NULL;
}
