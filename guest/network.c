/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The network after a restore. The inner address is the same everywhere, so what must go is what remembers the other
 * machine: established flows (ended here, so that their programs learn of it at once, instead of talking into a
 * network that never heard of them) and the neighbour's address. Where the interface still has what the agent set
 * last, no more is done: it keeps what the guest's administrator added, and saves a translating VMM from a lot of cold
 * code. Otherwise addresses, routes and neighbours go, and are set afresh.
 *
 * Ending flows needs the kernel's tcp_diag; without it they end at their next packet, which the new network rejects.
 * Flows inside of the machine stay. */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "agent.h"
#include "netlink.h"

#define TCP_LISTEN_ 10
#define TCP_TIME_WAIT_ 6
#define FLOWS_AT_ONCE 256
#define FLOW_ROUNDS 64

/* The interface that isn't lo with the lowest number; 0: none. */
static unsigned find_interface(char *ret_name, size_t size) {
        int fd = openat(sys_fd, "class/net", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        unsigned best = 0;
        struct dirent *entry;

        if (!d) {
                close_fd(fd);
                return 0;
        }
        while ((entry = readdir(d))) {
                char path[300], text[32];

                /* A link to a device: what programs made up in software (bridges, tunnels) has none. */
                snprintf(path, sizeof(path), "%s/device", entry->d_name);
                if (entry->d_name[0] == '.' || faccessat(dirfd(d), path, F_OK, 0) < 0)
                        continue;
                snprintf(path, sizeof(path), "%s/ifindex", entry->d_name);
                if (read_small(dirfd(d), path, text, sizeof(text)) <= 0)
                        continue;
                unsigned index = (unsigned) strtoul(text, NULL, 10);
                if (index > 0 && (best == 0 || index < best)) {
                        best = index;
                        snprintf(ret_name, size, "%s", entry->d_name);
                }
        }
        closedir(d);
        return best;
}

static int link_set(int fd, unsigned index, bool up) {
        struct nl_request q;
        struct link_message *m = nl_begin(&q, RTM_NEWLINK_, 0, sizeof(*m));

        m->index = (int32_t) index;
        m->flags = up ? IFF_UP : 0;
        m->change = IFF_UP;
        return nl_call(fd, &q);
}

int network_loopback_up(void) {
        _cleanup_close_ int fd = nl_open(NETLINK_ROUTE_);

        return fd < 0 ? fd : link_set(fd, 1, true); /* lo is 1, always */
}

/* ---- addresses ---- */

struct flush {
        unsigned index, n;
        struct nl_request requests[64];
};

static void flush_one(const void *body, size_t size, void *userdata) {
        struct flush *f = userdata;
        struct address_message m;
        const uint8_t *attributes = (const uint8_t *) body + sizeof(m);

        if (size < sizeof(m))
                return;
        memcpy(&m, body, sizeof(m));
        if (m.index != f->index || f->n >= ELEMENTSOF(f->requests))
                return;

        size_t length = m.family == AF_INET ? 4 : 16;
        const void *address =
                nl_find(attributes, size - sizeof(m), m.family == AF_INET ? IFA_LOCAL_ : IFA_ADDRESS_, length);
        if (!address)
                return;

        struct nl_request *q = &f->requests[f->n++];
        memcpy(nl_begin(q, RTM_DELADDR_, 0, sizeof(m)), &m, sizeof(m));
        nl_attribute(q, m.family == AF_INET ? IFA_LOCAL_ : IFA_ADDRESS_, address, length);
}

static int flush_addresses(int fd, unsigned index) {
        static struct flush f;
        struct nl_request q;
        int r;

        f.index = index;
        f.n = 0;
        (void) nl_begin(&q, RTM_GETADDR_, 0, sizeof(struct address_message)); /* of every family */
        r = nl_dump(fd, &q, flush_one, &f);
        for (unsigned i = 0; r >= 0 && i < f.n; i++) {
                r = nl_call(fd, &f.requests[i]);
                if (r == -EADDRNOTAVAIL)
                        r = 0; /* a secondary address, gone with its primary */
        }
        return r;
}

static int add_address(int fd, unsigned index, uint32_t address, uint32_t prefix) {
        uint32_t raw = htonl(address);
        struct nl_request q;
        struct address_message *m = nl_begin(&q, RTM_NEWADDR_, NL_CREATE | NL_REPLACE, sizeof(*m));

        m->family = AF_INET;
        m->prefix = (uint8_t) prefix;
        m->index = index;
        nl_attribute(&q, IFA_LOCAL_, &raw, sizeof(raw));
        nl_attribute(&q, IFA_ADDRESS_, &raw, sizeof(raw));
        return nl_call(fd, &q);
}

static int add_default_route(int fd, unsigned index, uint32_t gateway) {
        uint32_t raw = htonl(gateway), out = index;
        struct nl_request q;
        struct route_message *m = nl_begin(&q, RTM_NEWROUTE_, NL_CREATE | NL_REPLACE, sizeof(*m));

        m->family = AF_INET;
        m->table = RT_TABLE_MAIN_;
        m->protocol = RTPROT_BOOT_;
        m->type = RTN_UNICAST_;
        nl_attribute(&q, RTA_GATEWAY_, &raw, sizeof(raw));
        nl_attribute(&q, RTA_OIF_, &out, sizeof(out));
        return nl_call(fd, &q);
}

/* ---- flows ---- */

struct flows {
        unsigned n;
        struct diag_request requests[FLOWS_AT_ONCE];
};

static bool is_inner(uint8_t family, const uint32_t address[4]) {
        const uint8_t *p = (const uint8_t *) address;
        static const uint8_t loopback6[16] = { [15] = 1 }, mapped[12] = { [10] = 0xff, [11] = 0xff };

        if (family == AF_INET)
                return p[0] == 127 || p[0] == 0;
        if (memcmp(p, mapped, sizeof(mapped)) == 0)
                return p[12] == 127 || p[12] == 0;
        return memcmp(p, loopback6, sizeof(loopback6)) == 0;
}

static void collect_flow(const void *body, size_t size, void *userdata) {
        struct flows *f = userdata;
        struct diag_message m;

        if (size < sizeof(m) || f->n >= FLOWS_AT_ONCE)
                return;
        memcpy(&m, body, sizeof(m));
        if (is_inner(m.family, m.id.destination) || memcmp(m.id.source, m.id.destination, sizeof(m.id.source)) == 0)
                return;
        f->requests[f->n++] =
                (struct diag_request){ .family = m.family, .protocol = IPPROTO_TCP, .states = ~0U, .id = m.id };
}

/* Returns how many were ended, or a negative errno. */
static int end_some_flows(int fd, uint8_t family) {
        static struct flows f;
        struct nl_request q;
        struct diag_request *dump = nl_begin(&q, SOCK_DIAG_BY_FAMILY_, 0, sizeof(*dump));
        int r, n = 0;

        f.n = 0;
        dump->family = family;
        dump->protocol = IPPROTO_TCP;
        dump->states = ~(1U << TCP_LISTEN_ | 1U << TCP_TIME_WAIT_);
        r = nl_dump(fd, &q, collect_flow, &f);
        if (r < 0)
                return r;
        for (unsigned i = 0; i < f.n; i++) {
                memcpy(nl_begin(&q, SOCK_DESTROY_, 0, sizeof(f.requests[i])), &f.requests[i], sizeof(f.requests[i]));
                r = nl_call(fd, &q);
                if (r == -EOPNOTSUPP)
                        return r;
                n += r >= 0;
        }
        return n;
}

/* Are there TCP sockets at all, of either family? Asked on a descriptor that stays open, for the path to it is long.
 */
static bool have_sockets(void) {
        static const char key[] = " alloc ";
        static int fd = -1;
        char text[1024], *p;
        ssize_t n;

        if (fd < 0)
                fd = openat(proc_fd, "net/sockstat", O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
        if (n < 0)
                return true;
        text[n] = 0;
        p = strstr(text, key);
        return !p || strtoul(p + strlen(key), NULL, 10) > 0;
}

static void end_flows(void) {
        static const uint8_t families[] = { AF_INET, AF_INET6 };

        _cleanup_close_ int fd = nl_open(NETLINK_SOCK_DIAG_);
        unsigned ended = 0;
        int r = 0;

        for (size_t i = 0; fd >= 0 && i < ELEMENTSOF(families); i++)
                for (unsigned round = 0; round < FLOW_ROUNDS && (r = end_some_flows(fd, families[i])) > 0; round++)
                        ended += (unsigned) r;
        if (fd < 0 || r < 0)
                say("this kernel can't end TCP flows: %s", strerror(fd < 0 ? -fd : -r));
        else if (ended > 0)
                say("ended %u TCP flows of before", ended);
}

/* ---- the step ---- */

static void disable_ipv6(const char *interface) {
        char path[320];

        snprintf(path, sizeof(path), "sys/net/ipv6/conf/%s/disable_ipv6", interface);
        (void) write_kernel_file(proc_fd, path, "1");
}

/* What the agent set last, in this machine or in the one that it was captured from. */
static struct {
        unsigned index; /* 0: nothing */
        uint32_t address, gateway, prefix;
} applied;

/* The two questions of the short way are asked by ioctl: it takes a tenth of the code that rtnetlink does. */
static int inet_fd(void) {
        static int fd = -1;

        if (fd < 0)
                fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        return fd;
}

static bool is_applied(const struct agent_setup *m, unsigned index) {
        struct ifreq q = { .ifr_ifindex = (int) index };

        if (applied.index != index || applied.address != m->address || applied.gateway != m->gateway ||
            applied.prefix != m->prefix)
                return false;
        /* By number, for the interface may have been renamed. */
        return ioctl(inet_fd(), SIOCGIFNAME, &q) >= 0 && ioctl(inet_fd(), SIOCGIFFLAGS, &q) >= 0 &&
               !!(q.ifr_flags & IFF_UP) == (m->address != 0);
}

/* The gateway of another network has another hardware address. */
static int forget_neighbour(unsigned index, uint32_t gateway) {
        struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(gateway) };
        struct ifreq q = { .ifr_ifindex = (int) index };
        struct arpreq arp = {};

        if (ioctl(inet_fd(), SIOCGIFNAME, &q) < 0)
                return -errno;
        memcpy(&arp.arp_pa, &address, sizeof(address));
        memcpy(arp.arp_dev, q.ifr_name, MIN(sizeof(arp.arp_dev), sizeof(q.ifr_name)));
        return ioctl(inet_fd(), SIOCDARP, &arp) < 0 && errno != ENXIO ? -errno : 0;
}

static int configure(int fd, const struct agent_setup *m, unsigned index, const char *interface,
                     const char **ret_what) {
        int r;

        applied.index = 0;
        *ret_what = "take the link down";
        r = link_set(fd, index, false);
        if (r < 0)
                return r;
        *ret_what = "flush the addresses";
        r = flush_addresses(fd, index);
        if (r < 0)
                return r;
        if (m->address != 0) {
                disable_ipv6(interface);
                *ret_what = "set the address";
                r = add_address(fd, index, m->address, m->prefix);
                if (r < 0)
                        return r;
                *ret_what = "bring the link up";
                r = link_set(fd, index, true);
                if (r < 0)
                        return r;
                *ret_what = "set the default route";
                r = m->gateway != 0 ? add_default_route(fd, index, m->gateway) : 0;
                if (r < 0)
                        return r;
        }
        applied.index = index;
        applied.address = m->address;
        applied.gateway = m->gateway;
        applied.prefix = m->prefix;
        return 0;
}

int network_renew(const struct agent_setup *m, char *message, size_t size) {
        static unsigned index; /* there is no hotplug: what was found once stays */
        static char name[256];
        const char *what = "forget the neighbour";
        int r;

        if (index == 0)
                index = find_interface(name, sizeof(name));
        if (index == 0) {
                if (m->address == 0)
                        return 0;
                snprintf(message, size, "there is no network interface");
                return -ENODEV;
        }

        if (have_sockets())
                end_flows();
        if (is_applied(m, index))
                r = m->gateway != 0 && m->address != 0 ? forget_neighbour(index, m->gateway) : 0;
        else {
                _cleanup_close_ int fd = nl_open(NETLINK_ROUTE_);

                what = "open rtnetlink";
                r = fd < 0 ? fd : configure(fd, m, index, name, &what);
        }
        if (r < 0)
                snprintf(message, size, "cannot %s of %s: %s", what, name, strerror(-r));
        return r;
}
