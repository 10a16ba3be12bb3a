/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The control channel between sandboxd (or sandboxd-bake), "the controller", and one sandbox-runner.
 *
 * A SOCK_SEQPACKET Unix socket; each message is one JSON object of at most CONTROL_MESSAGE_MAX bytes, with up to
 * CONTROL_FDS_MAX descriptors beside it, whose meaning the array "fds" of names gives in order. The runner listens
 * (the socket is made by the controller at /run/sandboxd/ID/control and inherited as CONTROL_LISTEN_FD) and serves one
 * controller at a time: the newest; a peer whose uid isn't 0 is turned away.
 *
 * Requests, controller → runner. Each has "type" and "serial" (a number); each is answered by
 *   { "type": "reply", "serial": N, "error": errno or 0, "message": text, … }
 *
 *   start     Sent once. Builds the jail, starts the VMM and waits for the agent. Fields:
 *               "id" string; "uid" number: the sandbox's own uid and gid
 *               "mode": "restore" | "boot"
 *               "accelerator": "kvm" | "tcg"; "vmm": absolute path of QEMU
 *               "memory": bytes of guest RAM; "cpus"; "volumes": extra disk slots (empty if unused)
 *               "command_line": kernel command line (boot only)
 *               "deadline_usec": CLOCK_BOOTTIME at which everything ends, 0: none
 *               "agent_timeout_usec": how long the agent may take to answer
 *               "hostname", "machine_id", "boot_token" (32 hex digits each), "generation" number
 *               "memory_max": bytes for the workload in the guest, 0: no limit; "disk_size": bytes that
 *               the guest's disk and its file system shall have, 0: as captured
 *             fds: "disk" (rw), "memory" (restore: ro; boot: rw, of the full size), "devices" (restore: ro),
 *               "kernel", "initrd" (boot: ro)
 *             reply: "receipt" { "generation", "steps", "clock_step_nsec", "entropy_bytes" },
 *               "timings_usec" { "jail", "vmm", "agent" } (restore: how long each rung took), "pid" of the VMM as the
 *               runner sees it. On failure: "rung": "jail" | "vmm" | "agent", and the runner exits.
 *   exec      "process" number, chosen by the controller, never reused; "argv", "environment": arrays of strings;
 *             "user", "directory" strings, "" for the default; "timeout_usec", 0: none;
 *             "capture": bytes of each output to keep, 0: none
 *             "label", optional: any JSON, kept and given back in hello
 *             fds, each optional: "stdin" "stdout" "stderr". Without: /dev/null; output is discarded (or captured).
 *             Accepted: pipes, sockets, regular files, character devices that aren't terminals; else EINVAL.
 *             reply once the command's execve has succeeded: "pid" in the guest; or its errno: ENOENT, EACCES, …
 *   signal    "process" (0: every command), "signal" number, "tree" bool. reply
 *   forget    "process": its exit has been recorded by the controller. reply
 *   ttl       "deadline_usec": moves the deadline, 0: none. reply
 *   capture   Freezes the guest's workload, stops the VM and writes the device state. fds: "devices" (write only).
 *             After a boot the RAM is in the memory file already. reply: "timings_usec" { "freeze", "stop", "devices"
 * } end       Kills the VMM and exits. No reply.
 *
 * Events, runner → controller:
 *   hello           first on every connection: "version": CONTROL_VERSION, "id", "state": "waiting" | "starting" |
 * "running", "deadline_usec", "receipt" as above or null, "processes": [ as in process-exited, with "state": "running"
 * | "exited", "pid" and the "label" ]. Exits are kept until forgotten. process-exited  "process", "result": "exited" |
 * "signaled" | "timeout" | "lost" (the machine ended), "status", "cpu_usec", "memory_peak", "leftovers"; with capture:
 * "stdout_size", "stderr_size" (bytes that the command wrote) and fds "stdout", "stderr": memfds with what was kept:
 * all, or head and tail halves of the capture size ended           "reason": "deadline" | "vmm" (it exited by itself)
 * | "agent" (its channel broke) | "terminated" (SIGTERM), "message". The runner exits next.
 *
 * The runner's exit status, for a controller that wasn't there: enum control_exit. */

#include <jansson.h>

#include "util.h"

#define CONTROL_VERSION 1
#define CONTROL_MESSAGE_MAX (2U * 1024U * 1024U)
#define CONTROL_FDS_MAX 8U
#define CONTROL_LISTEN_FD 3

enum control_exit {
        CONTROL_EXIT_OK = 0,          /* asked to end */
        CONTROL_EXIT_FAILURE = 1,     /* could not start */
        CONTROL_EXIT_DEADLINE = 10,   /* the ttl passed */
        CONTROL_EXIT_VMM = 11,        /* the VMM exited by itself */
        CONTROL_EXIT_AGENT = 12,      /* the agent's channel broke or spoke nonsense */
        CONTROL_EXIT_TERMINATED = 13, /* SIGTERM */
};

struct control_message {
        json_t *body; /* an object with a string "type" */
        int fds[CONTROL_FDS_MAX];
        size_t n_fds;
};
/* Releases what is left in m: take an fd by setting it to -1. */
void control_message_done(struct control_message *m);

/* The descriptor that "fds" calls `name`, taken out of m; -1 when there is none. */
int control_message_take_fd(struct control_message *m, const char *name);

/* Listens at path (an existing socket there is replaced), mode 0600. Returns the fd or a negative errno. */
int control_listen(const char *path);
/* Connects without blocking. Returns the fd or a negative errno (-EAGAIN: its backlog is full). */
int control_connect(const char *path);

/* Sends body with fds whose names are in names (or NULL for none). Never blocks: -EAGAIN when the peer doesn't read;
 * -EMSGSIZE when too long. Consumes neither body nor fds. */
int control_send(int fd, json_t *body, const char *const *names, const int *fds, size_t n_fds);
/* Receives one message. Returns 1, 0 at the end of the connection, or -EAGAIN, -EBADMSG (not an object with a string
 * "type", truncated, descriptors and names that don't match), or another errno. */
int control_recv(int fd, struct control_message *ret);
/* The uid of the process that is connected. */
int control_peer_uid(int fd, uid_t *ret);
