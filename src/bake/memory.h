/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The guest's RAM from where the VM had it into the snapshot's file. */

#include "util.h"

/* Writes what isn't zero of from_fd, front to back in large pieces, so that the file has few extents and holes
 * elsewhere: a restore maps it, a snapshot reflinks it. *ret_written: bytes. */
int memory_store(int from_fd, int to_fd, uint64_t size, uint64_t *ret_written);

/* An anonymous file of that size, which uid alone may open again by its descriptor. */
int memory_new(const char *name, uint64_t size, uid_t uid);
