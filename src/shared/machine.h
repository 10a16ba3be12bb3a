/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The virtual machine that every sandbox is, as far as others than the runner must know it. */

/* Grows whenever a device, its place or a machine option changes. A snapshot holds the state of these very devices, so
 * it is restored only by the version that made it: keep it in the manifest and compare. */
#define MACHINE_VERSION 1

#define MACHINE_CPUS_MAX 64U
#define MACHINE_MEMORY_MIN (64ULL * 1024 * 1024)
#define MACHINE_MEMORY_MAX (1ULL << 40)

/* The virtio-mmio slots. microvm can't plug anything in later, so each slot exists in every machine, empty if unused;
 * the guest finds the disk as /dev/vda and the volumes as /dev/vdb and on, in this order. */
enum machine_slot {
        MACHINE_SLOT_SERIAL = 0, /* the agent's port and a console */
        MACHINE_SLOT_DISK = 1,
        MACHINE_SLOT_NETWORK = 2,
        MACHINE_SLOT_RNG = 3,
        MACHINE_SLOT_VOLUME = 4, /* the first of them */
        _MACHINE_SLOT_MAX = 24,
};
#define MACHINE_VOLUMES_MAX ((unsigned) _MACHINE_SLOT_MAX - (unsigned) MACHINE_SLOT_VOLUME)

/* One address for all: each machine is alone on its link. */
#define MACHINE_MAC "02:73:62:00:00:02"

/* The serial number of the disk; those of the volumes are "volume0" and on. */
#define MACHINE_DISK_SERIAL "disk"
