/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The two directions between a client's descriptors and a command's channels. Neither holds more than AGENT_WINDOW
 * bytes, and a slow end stalls nothing but its own channel. */

#include <systemd/sd-event.h>

#include "agent-protocol.h"
#include "capture-buffer.h"
#include "util.h"

/* Towards the guest: its stdin. */
typedef struct Source Source;

struct source_callbacks {
        /* Up to AGENT_DATA_MAX bytes; false: no more for now, until source_kick(). */
        bool (*data)(const void *data, size_t size, void *userdata);
        /* May data come now? */
        bool (*ready)(void *userdata);
        /* The end of the stream, or an error. Once; the descriptor is closed. */
        void (*end)(void *userdata);
};

/* Takes over fd. */
int source_new(sd_event *event, int fd, const struct source_callbacks *callbacks, void *userdata, Source **ret);
void source_free(Source *s);
DEFINE_CLEANUP(Source *, source_free)
/* The guest takes that many bytes more. -EBADMSG when that is more than it may ask for. */
int source_add_credit(Source *s, uint32_t bytes);
/* Look again whether bytes may flow. */
void source_kick(Source *s);

/* From the guest: its stdout or stderr. */
typedef struct Sink Sink;

struct sink_callbacks {
        /* That many bytes have been passed on. */
        void (*passed)(uint32_t bytes, void *userdata);
        /* Nobody reads any more: what comes is dropped. Once. */
        void (*closed)(void *userdata);
        /* Everything up to the end was passed on, and the descriptor is closed. Once, never from within sink_…(). */
        void (*done)(void *userdata);
};

/* Takes over fd (or -1: what comes is dropped, or kept in capture, which is the caller's and may be NULL). */
int sink_new(sd_event *event, int fd, CaptureBuffer *capture, const struct sink_callbacks *callbacks, void *userdata,
             Sink **ret);
void sink_free(Sink *s);
DEFINE_CLEANUP(Sink *, sink_free)
/* -EBADMSG beyond the credit or after the end. */
int sink_add(Sink *s, const void *data, size_t size);
/* The guest sends no more. -EBADMSG the second time. */
int sink_end(Sink *s);
bool sink_has_ended(const Sink *s);
bool sink_is_done(const Sink *s);
/* Bytes that wait for the reader. */
size_t sink_waiting(const Sink *s);
/* Counts the bytes that were passed on, to notice a reader that stands still. */
uint64_t sink_progress(const Sink *s);
/* Drops what waits. */
void sink_abandon(Sink *s);
