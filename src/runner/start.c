/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The ladder up: jail, vmm, agent. A rung that fails is named in the answer, and the process ends: that undoes them
 * all.
 *
 * The agent is spoken to as late as possible, since the time of day goes along: when QEMU has come up, with the
 * guest's first instruction still some milliseconds away; and in a boot, when the agent has opened its port. */

#include "runner.h"

#include "log.h"
#include "machine.h"

static const struct agent_channel_callbacks agent_callbacks;
static const struct vmm_callbacks vmm_callbacks;

bool start_fail(Runner *r, int error, const char *message) {
        if (r->state != RUNNER_STARTING)
                return false;
        log_warning("Can't start (%s): %s", r->start.rung, message);
        runner_reply(r, &r->start.request, error, message, json_pack("{s:s}", "rung", r->start.rung));
        r->start.request = (struct request){};
        return true;
}

static void fail(Runner *r, int error, const char *what) {
        _cleanup_free_ char *message = NULL;

        if (asprintf(&message, "can't %s: %s", what, strerror(-error)) < 0)
                message = NULL;
        (void) start_fail(r, error, message ? message : what);
        runner_end(r, CONTROL_EXIT_FAILURE, what);
}

static uint64_t usec_between(uint64_t from_nsec, uint64_t to_nsec) {
        return (to_nsec - from_nsec) / NSEC_PER_USEC;
}

static int hex_decode_16(const char *s, uint8_t ret[16]) {
        if (strlen(s) != 32 || strspn(s, "0123456789abcdefABCDEF") != 32)
                return -EINVAL;
        for (size_t i = 0; i < 16; i++) {
                const char digits[] = { s[2 * i], s[2 * i + 1], 0 };

                ret[i] = (uint8_t) strtoul(digits, NULL, 16);
        }
        return 0;
}

/* What "start" says, its descriptors apart. Strings point into the message. */
struct fields {
        const char *id, *mode, *accelerator, *vmm, *command_line, *hostname, *machine_id, *boot_token;
        json_int_t uid, memory, cpus, volumes, deadline_usec, agent_timeout_usec, generation, memory_max, disk_size;
};

static int parse(json_t *body, struct fields *f) {
        if (json_unpack(body, "{s:s, s:I, s:s, s:s, s:s, s:I, s:I, s?I, s?s, s?I, s?I, s:s, s:s, s:s, s:I, s?I, s?I}",
                        "id", &f->id, "uid", &f->uid, "mode", &f->mode, "accelerator", &f->accelerator, "vmm", &f->vmm,
                        "memory", &f->memory, "cpus", &f->cpus, "volumes", &f->volumes, "command_line",
                        &f->command_line, "deadline_usec", &f->deadline_usec, "agent_timeout_usec",
                        &f->agent_timeout_usec, "hostname", &f->hostname, "machine_id", &f->machine_id, "boot_token",
                        &f->boot_token, "generation", &f->generation, "memory_max", &f->memory_max, "disk_size",
                        &f->disk_size) < 0)
                return -EINVAL;
        /* Never root, and no id that is more than one of the kernel's. */
        if (f->uid < 1 || f->uid >= (json_int_t) UINT32_MAX)
                return -EINVAL;
        if (f->memory < 0 || f->cpus < 1 || f->cpus > (json_int_t) MACHINE_CPUS_MAX || f->volumes < 0 ||
            f->volumes > (json_int_t) MACHINE_VOLUMES_MAX || f->deadline_usec < 0 || f->agent_timeout_usec < 0 ||
            f->generation < 0 || f->memory_max < 0 || f->disk_size < 0)
                return -EINVAL;
        if (!streq(f->mode, "restore") && !streq(f->mode, "boot"))
                return -EINVAL;
        if (!streq(f->accelerator, "kvm") && !streq(f->accelerator, "tcg"))
                return -EINVAL;
        if (isempty(f->hostname) || strlen(f->hostname) > 64 || f->vmm[0] != '/')
                return -EINVAL;
        return 0;
}

static int fill_setup(struct start *s, const struct fields *f) {
        int r;

        (void) strcpy(s->hostname, f->hostname);
        s->setup = (struct agent_setup){
                .generation = (uint64_t) f->generation,
                .disk_size = (uint64_t) f->disk_size,
                .memory_max = (uint64_t) f->memory_max,
                .hostname = { s->hostname, (uint32_t) strlen(s->hostname) },
        };
        s->boot = streq(f->mode, "boot");
        s->agent_timeout_usec = (uint64_t) f->agent_timeout_usec;
        r = hex_decode_16(f->machine_id, s->setup.machine_id);
        return r < 0 ? r : hex_decode_16(f->boot_token, s->setup.boot_token);
}

static void close_machine_fds(struct qemu_machine *m) {
        m->memory_fd = close_fd(m->memory_fd);
        m->devices_fd = close_fd(m->devices_fd);
        m->disk_fd = close_fd(m->disk_fd);
        m->kernel_fd = close_fd(m->kernel_fd);
        m->initrd_fd = close_fd(m->initrd_fd);
        m->kvm_fd = close_fd(m->kvm_fd);
}

static int take_machine(struct control_message *message, const struct fields *f, struct qemu_machine *ret) {
        bool restore = streq(f->mode, "restore");

        *ret = (struct qemu_machine){
                .vmm = f->vmm,
                .name = f->id,
                .kvm = streq(f->accelerator, "kvm"),
                .restore = restore,
                .memory = (uint64_t) f->memory,
                .cpus = (unsigned) f->cpus,
                .volumes = (unsigned) f->volumes,
                .command_line = restore ? NULL : f->command_line,
                .memory_fd = control_message_take_fd(message, "memory"),
                .devices_fd = control_message_take_fd(message, "devices"),
                .disk_fd = control_message_take_fd(message, "disk"),
                .kernel_fd = control_message_take_fd(message, "kernel"),
                .initrd_fd = control_message_take_fd(message, "initrd"),
                .kvm_fd = -1,
                .qmp_fd = -1,
                .agent_fd = -1,
                .console_fd = -1,
                .network_fd = -1,
        };
        return ret->memory_fd < 0 || ret->disk_fd < 0 || (restore ? ret->devices_fd : ret->kernel_fd) < 0 ? -EINVAL
                                                                                                          : 0;
}

static int start_vmm(Runner *r, struct qemu_machine *m) {
        int fd, error;

        error = vmm_start(r->event, m, &vmm_callbacks, r, &r->vmm, &fd);
        if (error < 0)
                return error;
        error = agent_channel_new(r->event, fd, &agent_callbacks, r, &r->agent);
        if (error >= 0)
                error = agent_channel_set_timeout(r->agent, r->start.agent_timeout_usec);
        if (error >= 0)
                error = commands_new(r->event, r->agent, &commands_callbacks, r, &r->commands);
        return error;
}

static void climb(Runner *r, const struct fields *f, struct qemu_machine *m) {
        const struct jail_spec jail = { .vmm = f->vmm, .hostname = f->id, .uid = (uid_t) f->uid, .kvm = m->kvm };
        const char *what = r->jail_what;
        int error = r->jail_error;

        r->state = RUNNER_STARTING;
        r->start.rung = "jail";
        r->start.began_nsec = now_monotonic_nsec();
        if (error >= 0)
                error = jail_enter(r->jail, &jail, &m->kvm_fd, &what);
        if (error < 0)
                return fail(r, error, what);
        jail_free(TAKE_PTR(r->jail));

        r->start.rung = "vmm";
        r->start.jailed_nsec = now_monotonic_nsec();
        error = start_vmm(r, m);
        if (error < 0)
                return fail(r, error, "start QEMU");
}

void start_begin(Runner *r, struct control_message *message, const struct request *request) {
        struct qemu_machine m;
        struct fields f = {};
        int error;

        if (r->state != RUNNER_WAITING)
                return runner_reply(r, request, -EALREADY, "the sandbox has been started", NULL);
        error = parse(message->body, &f);
        if (error >= 0)
                error = fill_setup(&r->start, &f);
        if (error < 0)
                return runner_reply(r, request, error, "a field of \"start\" is missing or out of range", NULL);
        error = take_machine(message, &f, &m);
        r->start.request = *request;
        if (error < 0)
                runner_reply(r, request, error, "a descriptor of \"start\" is missing", NULL);
        else if (runner_set_deadline(r, (uint64_t) f.deadline_usec) < 0)
                runner_reply(r, request, -ENOMEM, "can't set the deadline", NULL);
        else
                climb(r, &f, &m);
        close_machine_fds(&m);
}

static void greet_agent(Runner *r) {
        int error = agent_channel_open(r->agent, &r->start.setup);

        if (error < 0)
                fail(r, error, "speak to the agent");
}

static void on_resized(json_t *result, const char *error, void *userdata) {
        Runner *r = userdata;

        if (r->state != RUNNER_STARTING)
                return;
        if (error) {
                log_warning("QEMU can't show the guest a disk of %llu bytes: %s",
                            (unsigned long long) r->start.setup.disk_size, error);
                return fail(r, -EIO, "enlarge the disk");
        }
        greet_agent(r);
}

/* The guest knows the disk by the size that it was captured with; only this makes it look again. */
static void resize_disk(Runner *r) {
        r->start.resize = false;
        if (vmm_execute(r->vmm, "block_resize",
                        json_pack("{s:s, s:I}", "node-name", QEMU_DISK_NODE, "size",
                                  (json_int_t) r->start.setup.disk_size),
                        -1, on_resized, r) < 0)
                fail(r, -EIO, "enlarge the disk");
}

static void on_status(json_t *result, const char *error, void *userdata) {
        Runner *r = userdata;

        if (r->state == RUNNER_STARTING && r->start.resize && json_is_true(json_object_get(result, "running")))
                resize_disk(r);
}

/* Disks can't be changed before the state is loaded and the machine runs; it may already, or say so with RESUME. */
static void begin_resize(Runner *r) {
        r->start.resize = true;
        if (vmm_execute(r->vmm, "query-status", NULL, -1, on_status, r) < 0)
                fail(r, -EIO, "enlarge the disk");
}

static bool is_agent_port(json_t *data) {
        return json_is_true(json_object_get(data, "open")) &&
               streq_ptr(json_string_value(json_object_get(data, "id")), QEMU_AGENT_ID);
}

static void on_vmm_event(const char *name, json_t *data, void *userdata) {
        Runner *r = userdata;

        if (r->state != RUNNER_STARTING)
                return;
        if (isempty(name)) {
                r->start.rung = "agent";
                r->start.up_nsec = now_monotonic_nsec();
                if (!r->start.boot && r->start.setup.disk_size > 0)
                        begin_resize(r);
                else if (!r->start.boot)
                        greet_agent(r);
        } else if (r->start.resize && streq(name, "RESUME"))
                resize_disk(r);
        else if (r->start.boot && streq(name, "VSERPORT_CHANGE") && is_agent_port(data)) {
                r->start.boot = false; /* once */
                greet_agent(r);
        }
}

static void on_vmm_broken(bool closed, const char *message, void *userdata) {
        runner_vmm_broken(userdata, closed, message);
}

static const struct vmm_callbacks vmm_callbacks = { .event = on_vmm_event, .broken = on_vmm_broken };

static void on_open(const struct agent_receipt *receipt, void *userdata) {
        uint64_t now = now_monotonic_nsec();
        Runner *r = userdata;
        struct start *s = &r->start;

        r->state = RUNNER_RUNNING;
        r->receipt = json_pack("{s:I, s:I, s:I, s:I}", "generation", (json_int_t) receipt->generation, "steps",
                               (json_int_t) receipt->steps, "clock_step_nsec", (json_int_t) receipt->clock_step_nsec,
                               "entropy_bytes", (json_int_t) receipt->entropy_bytes);
        runner_reply(r, &s->request, 0, NULL,
                     json_pack("{s:O?, s:I, s:{s:I, s:I, s:I}}", "receipt", r->receipt, "pid",
                               (json_int_t) vmm_pid(r->vmm), "timings_usec", "jail",
                               (json_int_t) usec_between(s->began_nsec, s->jailed_nsec), "vmm",
                               (json_int_t) usec_between(s->jailed_nsec, s->up_nsec), "agent",
                               (json_int_t) usec_between(s->up_nsec, now)));
}

static int on_frame(const struct agent_header *header, const uint8_t *payload, void *userdata) {
        Runner *r = userdata;

        return commands_frame(r->commands, header, payload);
}

static void on_drained(void *userdata) {
        Runner *r = userdata;

        commands_drained(r->commands);
}

static void on_frozen(int error, void *userdata) {
        capture_frozen(userdata, error);
}

static void on_broken(bool closed, const char *message, void *userdata) {
        runner_agent_broken(userdata, closed, message);
}

static const struct agent_channel_callbacks agent_callbacks = {
        .open = on_open,
        .frame = on_frame,
        .drained = on_drained,
        .frozen = on_frozen,
        .broken = on_broken,
};
