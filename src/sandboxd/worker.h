/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Work on the storage that can block (btrfs ioctls, fsync), done by a process of its own, one request after the other.
 *
 * Requests (objects with "op"); each answers { "type": "reply", "error": errno or 0, "message" }:
 *   clone    "id", "snapshot", "disk_size" (0: as it is), "record": makes the sandbox's subvolume with the snapshot's
 *            disk reflinked in, and its record. reply fds: disk (rw), memory, devices (ro)
 *   record   "id", "record": replaces the record. One that is gone stays gone, which is no error
 *   end      "id", "usage": appends the usage (null: none) to the ledger, once, and makes that last, then removes the
 *            sandbox's subvolume and record. What is missing is no error.
 *   remove   "kind": "snapshots" | "work" | "sandboxes", "name": removes a subvolume. Missing is no error.
 *   usage    "uid", "all", "since", "limit" (0: all), "sandbox" (optional): reads the ledger. reply fd: records, a
 *            memfd */

#include <systemd/sd-event.h>

#include "control.h"

struct worker;

int worker_new(sd_event *event, struct worker **ret);
struct worker *worker_free(struct worker *w);

/* reply: NULL unless error is 0; its fds may be taken. message: a sentence when error isn't 0. */
typedef void (*worker_handler_t)(int error, const char *message, struct control_message *reply, void *userdata);

/* body is consumed. handler is called exactly once, later; NULL: failures are logged. */
int worker_call(struct worker *w, json_t *body, worker_handler_t handler, void *userdata);

/* What the worker's process runs. */
int worker_main(int fd);
