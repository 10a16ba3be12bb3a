/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What makes a device state fit another process is that both were started with the same devices, in the same order and
 * places, with the same options. So everything here that a guest can see depends on nothing but the size of the
 * machine, and is stated even where it is QEMU's default; boot and restore differ only in where RAM comes from and in
 * what starts the guest. Whoever changes what the guest sees raises MACHINE_VERSION.
 *
 * Nothing is opened by name: disks go by fdset, streams by socketpairs, RAM and kernel by /proc/self/fd. */

#include "qemu-args.h"

#include <inttypes.h>

#include "agent-protocol.h"
#include "machine.h"

/* The cache of translated code. QEMU's own choice under TCG is an eighth of the host's memory and at least
 * 32 MiB; a sandbox's working set is smaller, and it counts against the sandbox's memory. */
#define TCG_CACHE_MIB 64

static int add(char ***l, const char *option, const char *value) {
        int r = strv_extend(l, option);

        return r < 0 || !value ? r : strv_extend(l, value);
}

#define addf(l, option, ...)                                                                                          \
        ({                                                                                                            \
                int _r = strv_extend(l, option);                                                                      \
                _r < 0 ? _r : strv_extendf(l, __VA_ARGS__);                                                           \
        })

/* Linux finds the last transport first. */
#define BUS "virtio-mmio-bus.%u"
static unsigned bus(unsigned slot) {
        return _MACHINE_SLOT_MAX - 1U - slot;
}

/* Machine, CPU and accelerator. */
static int add_machine(const struct qemu_machine *m, char ***l) {
        int r;

        /* With KVM the guest's time comes from kvm-clock and the local APIC. Under TCG a stock kernel needs the PIT
         * to calibrate the APIC's timer with. The real-time clock is nobody's: the agent sets the time. */
        r = addf(l, "-machine",
                 "microvm,acpi=on,ioapic2=on,pit=%s,pic=%s,rtc=off,pcie=off,usb=off,isa-serial=on,"
                 "auto-kernel-cmdline=off,memory-backend=mem,dump-guest-core=off,mem-merge=off,suppress-vmdesc=on",
                 m->kvm ? "off" : "on", m->kvm ? "off" : "on");
        if (r < 0)
                return r;

        if (m->kvm) {
                r = addf(l, "-add-fd", "fd=%d,set=%d", m->kvm_fd, m->kvm_fd);
                if (r < 0)
                        return r;
        }
        if (m->kvm)
                r = addf(l, "-accel", "kvm,device=/dev/fdset/%d", m->kvm_fd);
        else
                r = addf(l, "-accel", "tcg,thread=%s,tb-size=%d", "multi", TCG_CACHE_MIB);
        if (r < 0)
                return r;

        /* IA32_ARCH_CAPABILITIES can't be set under nested KVM of every kind, and QEMU aborts over that. */
        r = add(l, "-cpu", m->kvm ? "max,-arch-capabilities" : "max");
        if (r < 0)
                return r;

        r = addf(l, "-smp", "cpus=%u,sockets=1,cores=%u,threads=1", m->cpus, m->cpus);
        if (r < 0)
                return r;

        return addf(l, "-m", "size=%" PRIu64 "b", m->memory);
}

/* RAM is the file itself while a template boots, so that nothing remains to be written at its capture. A restore maps
 * the file privately: pages are shared through the page cache until they are written to. */
static int add_memory(const struct qemu_machine *m, char ***l) {
        return addf(l, "-object", "memory-backend-file,id=mem,size=%" PRIu64 ",mem-path=/proc/self/fd/%d,%s",
                    m->memory, m->memory_fd, m->restore ? "share=off,readonly=on,rom=off" : "share=on");
}

/* The socketpairs are QEMU's only connections; the other ends are the runner's. */
static int add_channels(const struct qemu_machine *m, char ***l) {
        int r;

        r = addf(l, "-chardev", "socket,id=qmp,fd=%d", m->qmp_fd);
        if (r >= 0)
                r = add(l, "-mon", "chardev=qmp,mode=control");
        /* One stream takes what the kernel says before it has drivers, and the virtio console after. */
        if (r >= 0)
                r = addf(l, "-chardev", "socket,id=console,mux=on,fd=%d", m->console_fd);
        if (r >= 0)
                r = add(l, "-serial", "chardev:console");
        if (r >= 0)
                r = addf(l, "-chardev", "socket,id=agent,fd=%d", m->agent_fd);
        if (r >= 0)
                r = addf(l, "-device", "virtio-serial-device,id=serial,max_ports=2,bus=" BUS,
                         bus(MACHINE_SLOT_SERIAL));
        if (r >= 0)
                r = add(l, "-device", "virtconsole,bus=serial.0,nr=0,chardev=console");
        if (r >= 0)
                r = add(l, "-device",
                        "virtserialport,bus=serial.0,nr=1,id=" QEMU_AGENT_ID ",chardev=agent,name=" AGENT_PORT_NAME);
        return r;
}

/* Errors are the guest's to see: to stop the machine on a full host file system would look like a hang. What the guest
 * discards or zeroes becomes a hole in the file. */
#define BLOCK_DEVICE                                                                                                  \
        "num-queues=1,queue-size=256,logical_block_size=512,physical_block_size=4096,werror=report,rerror=report"

static int add_disk(const struct qemu_machine *m, char ***l) {
        int r;

        r = addf(l, "-add-fd", "fd=%d,set=%d", m->disk_fd, m->disk_fd);
        if (r >= 0)
                r = addf(l, "-blockdev",
                         "driver=file,node-name=" QEMU_DISK_NODE
                         ",filename=/dev/fdset/%d,auto-read-only=off,locking=off,aio=threads,"
                         "cache.direct=off,cache.no-flush=off,discard=unmap,detect-zeroes=unmap",
                         m->disk_fd);
        if (r >= 0)
                r = addf(l, "-device",
                         "virtio-blk-device,drive=disk,serial=" MACHINE_DISK_SERIAL ",bus=" BUS "," BLOCK_DEVICE,
                         bus(MACHINE_SLOT_DISK));
        return r;
}

/* An empty slot is a disk without sectors: the guest sees a drive of size 0. It is writable, since a read-only one
 * would stay read-only after a restore, whatever backs it then. */
static int add_volumes(const struct qemu_machine *m, char ***l) {
        for (unsigned i = 0; i < m->volumes; i++) {
                int r;

                r = addf(l, "-blockdev", "driver=null-co,node-name=volume%u,size=0,read-zeroes=on", i);
                if (r >= 0)
                        r = addf(l, "-device",
                                 "virtio-blk-device,drive=volume%u,serial=volume%u,bus=" BUS "," BLOCK_DEVICE, i, i,
                                 bus(MACHINE_SLOT_VOLUME + i));
                if (r < 0)
                        return r;
        }
        return 0;
}

/* A network card whose cable ends in a datagram socket without a peer: what the guest sends is refused. */
static int add_network(const struct qemu_machine *m, char ***l) {
        int r;

        r = addf(l, "-netdev", "dgram,id=net,local.type=fd,local.str=%d", m->network_fd);
        if (r >= 0)
                r = addf(l, "-device", "virtio-net-device,netdev=net,mac=" MACHINE_MAC ",mq=off,bus=" BUS,
                         bus(MACHINE_SLOT_NETWORK));
        return r;
}

static int add_rng(char ***l) {
        int r;

        r = add(l, "-object", "rng-builtin,id=rng");
        if (r >= 0)
                r = addf(l, "-device", "virtio-rng-device,rng=rng,bus=" BUS, bus(MACHINE_SLOT_RNG));
        return r;
}

static int add_incoming(int fd, char ***l) {
        int r;

        r = addf(l, "-add-fd", "fd=%d,set=%d", fd, fd);
        return r < 0 ? r : addf(l, "-incoming", "file:/dev/fdset/%d", fd);
}

/* ROMs aren't loaded into an incoming machine, and a running Linux has no use for them, nor for its kernel image. */
static int add_start(const struct qemu_machine *m, char ***l) {
        int r = 0;

        if (m->firmware)
                r = add(l, "-bios", m->firmware);
        if (r < 0)
                return r;

        if (m->restore)
                return add_incoming(m->devices_fd, l);

        if (m->kernel_fd >= 0)
                r = addf(l, "-kernel", "/proc/self/fd/%d", m->kernel_fd);
        if (r >= 0 && m->initrd_fd >= 0)
                r = addf(l, "-initrd", "/proc/self/fd/%d", m->initrd_fd);
        if (r >= 0 && m->command_line)
                r = add(l, "-append", m->command_line);
        return r;
}

static int add_all(const struct qemu_machine *m, char ***l) {
        int r;

        r = strv_extend(l, m->vmm);
        if (r >= 0)
                r = addf(l, "-name", "guest=%s", m->name);
        if (r >= 0)
                r = add(l, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        if (r >= 0)
                r = add(l, "-nodefaults", NULL);
        if (r >= 0)
                r = add(l, "-no-user-config", NULL);
        if (r >= 0)
                r = add(l, "-nographic", NULL);
        if (r >= 0)
                r = add(l, "-monitor", "none");
        /* A restored machine has no firmware to reset into, so a guest that reboots ends. */
        if (r >= 0)
                r = add(l, "-no-reboot", NULL);
        if (r >= 0)
                r = add(l, "-global", "migration.send-configuration=off");
        /* The state of a modern transport is 44 KiB for each device, nearly all of it zero: 8 ms more in every capture
         * and 5 in every restore. The legacy one takes a few hundred bytes, and Linux drives both alike. */
        if (r >= 0)
                r = add(l, "-global", "virtio-mmio.force-legacy=on");
        if (r >= 0)
                r = add_memory(m, l);
        if (r >= 0)
                r = add_machine(m, l);
        if (r >= 0)
                r = add_channels(m, l);
        if (r >= 0 && m->disk_fd >= 0)
                r = add_disk(m, l);
        if (r >= 0)
                r = add_network(m, l);
        if (r >= 0)
                r = add_rng(l);
        if (r >= 0)
                r = add_volumes(m, l);
        if (r >= 0)
                r = add_start(m, l);
        return r;
}

/* QEMU splits its options at commas: a value of ours must not bring one. */
static bool value_is_plain(const char *s) {
        return !isempty(s) && !strpbrk(s, ",=\n");
}

int qemu_args(const struct qemu_machine *m, char ***ret) {
        _cleanup_strv_free_ char **l = NULL;
        int r;

        if (isempty(m->vmm) || m->vmm[0] != '/' || !value_is_plain(m->name))
                return -EINVAL;
        if (m->cpus < 1 || m->cpus > MACHINE_CPUS_MAX || m->volumes > MACHINE_VOLUMES_MAX)
                return -EINVAL;
        if (m->memory < MACHINE_MEMORY_MIN || m->memory > MACHINE_MEMORY_MAX || m->memory % (1024 * 1024) != 0)
                return -EINVAL;
        if (m->memory_fd < 0 || m->qmp_fd < 0 || m->agent_fd < 0 || m->console_fd < 0 || m->network_fd < 0)
                return -EINVAL;
        if ((m->restore && m->devices_fd < 0) || (m->kvm && m->kvm_fd < 0))
                return -EINVAL;

        r = add_all(m, &l);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(l);
        return 0;
}
