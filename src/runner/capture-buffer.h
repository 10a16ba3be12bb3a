/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What is kept of an output that nobody reads as it comes: all of it, or the first and the last half of a limit. */

#include "util.h"

/* A client chooses the limit, and the memory is the sandbox's. */
#define CAPTURE_MAX (16ULL * 1024 * 1024)

typedef struct CaptureBuffer CaptureBuffer;

int capture_buffer_new(size_t max, CaptureBuffer **ret);
void capture_buffer_free(CaptureBuffer *c);
DEFINE_CLEANUP(CaptureBuffer *, capture_buffer_free)

/* Returns 0 or -ENOMEM; what came is counted in any case. */
int capture_buffer_add(CaptureBuffer *c, const void *data, size_t size);
/* Bytes that came, kept or not. */
uint64_t capture_buffer_total(const CaptureBuffer *c);
/* A sealed memfd with what was kept, positioned at its start. Returns it or a negative errno. */
int capture_buffer_to_memfd(const CaptureBuffer *c);
