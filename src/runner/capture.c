/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A capture, step by step; each step is the callback of the one before:
 *   freeze   the agent stops the workload, writes its disks and falls silent, so that its channel is drained
 *   stop     QEMU stops the processors and finishes what the disks have in flight
 *   fd, save QEMU gets a descriptor and writes the state of the devices there
 * RAM isn't written here: a machine that was booted has it in its file. */

#include "runner.h"

#include "log.h"

/* A guest with much dirty data needs its time to write it. */
#define FREEZE_TIMEOUT_USEC (60 * USEC_PER_SEC)

static void finish(Runner *r, int error, const char *message, json_t *extra) {
        struct request request = r->capture.request;

        r->capture.devices_fd = close_fd(r->capture.devices_fd);
        r->capture.request = (struct request){};
        if (error < 0)
                log_warning("The capture failed: %s", message);
        runner_reply(r, &request, error, message, extra);
}

static void execute(Runner *r, const char *command, json_t *arguments, int fd, qmp_reply_t reply) {
        int error = vmm_execute(r->vmm, command, arguments, fd, reply, r);

        if (error < 0)
                finish(r, error, "QEMU takes no commands", NULL);
}

static void on_saved(json_t *result, const char *error, void *userdata) {
        uint64_t now = now_monotonic_nsec();
        Runner *r = userdata;
        struct capture *c = &r->capture;

        /* Nobody waits for this one. */
        (void) vmm_execute(r->vmm, "remove-fd", json_pack("{s:I}", "fdset-id", (json_int_t) c->fdset), -1, NULL, NULL);
        if (error)
                return finish(r, -EIO, error, NULL);
        finish(r, 0, NULL,
               json_pack("{s:{s:I, s:I, s:I}}", "timings_usec", "freeze",
                         (json_int_t) ((c->frozen_nsec - c->began_nsec) / NSEC_PER_USEC), "stop",
                         (json_int_t) ((c->stopped_nsec - c->frozen_nsec) / NSEC_PER_USEC), "devices",
                         (json_int_t) ((now - c->stopped_nsec) / NSEC_PER_USEC)));
}

/* The command's name is historical: it writes the state of the devices, without RAM, of any machine. */
static void on_fd_added(json_t *result, const char *error, void *userdata) {
        json_t *fdset = json_object_get(result, "fdset-id");
        char path[64];
        Runner *r = userdata;

        if (error || !json_is_integer(fdset))
                return finish(r, -EIO, error ? error : "QEMU took no descriptor", NULL);
        r->capture.fdset = json_integer_value(fdset);
        (void) snprintf(path, sizeof(path), "/dev/fdset/%lld", (long long) r->capture.fdset);
        execute(r, "xen-save-devices-state", json_pack("{s:s}", "filename", path), -1, on_saved);
}

static void on_stopped(json_t *result, const char *error, void *userdata) {
        Runner *r = userdata;

        if (error)
                return finish(r, -EIO, error, NULL);
        r->capture.stopped_nsec = now_monotonic_nsec();
        execute(r, "add-fd", NULL, TAKE_FD(r->capture.devices_fd), on_fd_added);
}

void capture_frozen(Runner *r, int error) {
        if (r->capture.request.serial == 0)
                return;
        if (error < 0)
                return finish(r, error, "the agent could not freeze the workload", NULL);
        r->capture.frozen_nsec = now_monotonic_nsec();
        execute(r, "stop", NULL, -1, on_stopped);
}

void capture_begin(Runner *r, struct control_message *m, const struct request *request) {
        _cleanup_close_ int fd = control_message_take_fd(m, "devices");
        int error;

        if (r->state != RUNNER_RUNNING || r->capture.request.serial != 0)
                return runner_reply(r, request, -EBUSY, "the machine doesn't run, or is being captured", NULL);
        if (fd < 0)
                return runner_reply(r, request, -EINVAL, "a capture needs a descriptor for the devices", NULL);
        error = agent_channel_freeze(r->agent, FREEZE_TIMEOUT_USEC);
        if (error < 0)
                return runner_reply(r, request, error, NULL, NULL);
        r->capture = (struct capture){
                .request = *request,
                .devices_fd = TAKE_FD(fd),
                .began_nsec = now_monotonic_nsec(),
        };
}
