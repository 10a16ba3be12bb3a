/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* As much of the kernel's netlink interface as the agent speaks; musl has no headers of Linux. */

#include <stddef.h>
#include <stdint.h>

#define AF_NETLINK_ 16
#define NETLINK_ROUTE_ 0
#define NETLINK_SOCK_DIAG_ 4

struct nl_header {
        uint32_t length;
        uint16_t type, flags;
        uint32_t sequence, port;
};
#define NL_REQUEST 0x1
#define NL_ACK 0x4
#define NL_DUMP 0x300
#define NL_CREATE 0x400
#define NL_REPLACE 0x100
#define NL_ERROR 2
#define NL_DONE 3

struct nl_address {
        uint16_t family, pad;
        uint32_t port, groups;
};

struct nl_attribute {
        uint16_t length, type;
};

#define RTM_NEWLINK_ 16
#define RTM_NEWADDR_ 20
#define RTM_DELADDR_ 21
#define RTM_GETADDR_ 22
#define RTM_NEWROUTE_ 24

struct link_message {
        uint8_t family, pad;
        uint16_t type;
        int32_t index;
        uint32_t flags, change;
};

struct address_message {
        uint8_t family, prefix, flags, scope;
        uint32_t index;
};
#define IFA_ADDRESS_ 1
#define IFA_LOCAL_ 2

struct route_message {
        uint8_t family, destination, source, tos, table, protocol, scope, type;
        uint32_t flags;
};
#define RT_TABLE_MAIN_ 254
#define RTPROT_BOOT_ 3
#define RTN_UNICAST_ 1
#define RTA_OIF_ 4
#define RTA_GATEWAY_ 5

#define SOCK_DIAG_BY_FAMILY_ 20
#define SOCK_DESTROY_ 21

struct diag_id {
        uint16_t source_port, destination_port; /* network byte order */
        uint32_t source[4], destination[4];     /* network byte order */
        uint32_t interface, cookie[2];
};
struct diag_request {
        uint8_t family, protocol, extensions, pad;
        uint32_t states;
        struct diag_id id;
};
struct diag_message {
        uint8_t family, state, timer, retransmits;
        struct diag_id id;
        uint32_t expires, receive_queue, send_queue, uid, inode;
};

/* netlink.c */
struct nl_request {
        struct nl_header header;
        uint8_t body[512];
};
int nl_open(int protocol);
void *nl_begin(struct nl_request *q, uint16_t type, uint16_t flags, size_t size);
void nl_attribute(struct nl_request *q, uint16_t type, const void *data, size_t size);
/* Sends it and waits for the acknowledgement. Negative errno. */
int nl_call(int fd, struct nl_request *q);
/* Sends a dump request and gives each message's body to the callback. */
int nl_dump(int fd, struct nl_request *q, void (*message)(const void *body, size_t size, void *userdata),
            void *userdata);
const void *nl_find(const void *attributes, size_t size, uint16_t type, size_t wanted);
