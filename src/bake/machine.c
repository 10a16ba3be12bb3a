/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The cold boot: the same runner, jail and devices as every sandbox has, so that what is captured fits them. */

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <x86intrin.h>

#include "bake.h"
#include "guest.h"
#include "kernel.h"
#include "log.h"
#include "machine.h"
#include "memory.h"

#define GUEST_HZ 250U /* of Debian's kernels, and most others' */
#define CAPTURE_TIMEOUT_USEC (120 * USEC_PER_SEC)
#define OUTPUT_IN_ERROR 1200U

/* What the time stamp counter counts in a millisecond. Under TCG the guest sees the host's, and its clock is as exact
 * as this: half a second makes it a few parts in a million. */
static uint64_t measure_tsc_khz(void) {
        struct timespec pause = { .tv_nsec = 500 * 1000 * 1000 };
        uint64_t start = now_monotonic_nsec(), ticks = __rdtsc();

        nanosleep(&pause, NULL);
        ticks = __rdtsc() - ticks;
        return ticks * 1000000U / (now_monotonic_nsec() - start);
}

/* The serial port speaks until the virtio console has its driver; both reach the runner. The agent is the initrd's
 * /init and mounts the root itself. Names of network cards don't depend on where they sit. */
static int command_line(const struct bake *b, char **ret) {
        static const char common[] =
                "earlyprintk=ttyS0,115200 console=hvc0 loglevel=4 panic=-1 reboot=t net.ifnames=0 "
                "8250.nr_uarts=0 random.trust_cpu=on";
        uint64_t khz;

        if (b->host->kvm)
                return asprintf(ret, "%s", common) < 0 ? -ENOMEM : 0;
        /* Emulated timers are too coarse to calibrate the counter against, or to judge it later: the kernel would fall
         * back to ticks of 4 ms. Speculation is the host's affair. */
        khz = measure_tsc_khz();
        return asprintf(ret, "%s tsc=reliable tsc_early_khz=%" PRIu64 " lpj=%" PRIu64 " mitigations=off", common, khz,
                        khz * 1000 / GUEST_HZ) < 0
                       ? -ENOMEM
                       : 0;
}

static int make_initrd(struct bake *b) {
        _cleanup_free_ char *program = NULL, *agent = NULL, *output = NULL, *tail = NULL;
        int r;

        if (asprintf(&program, "%s/mkinitrd", b->libexec) < 0 ||
            asprintf(&agent, "%s/sandbox-agent", b->libexec) < 0 || asprintf(&output, "%s/initrd", b->work) < 0)
                return bake_fail(b, -ENOMEM, "Can't make the initrd");

        char *argv[] = { program,    (char *) "--agent",
                         agent,      (char *) "--kernel-release",
                         b->release, (char *) "--modules",
                         b->modules, (char *) "-o",
                         output,     NULL };

        r = process_run(b->interrupt_fd, argv, 600 * USEC_PER_SEC, &tail);
        if (r == -EPROTO)
                return bake_fail(b, -r, "Making the initrd failed: %s", text_tail(tail, OUTPUT_IN_ERROR));
        return r == -ECANCELED || r >= 0 ? r : bake_fail(b, r, "Can't make the initrd");
}

/* A copy that the machine's uid may read, whatever the original allows. */
static int copy_for_machine(struct bake *b, const char *path, const char *name) {
        _cleanup_close_ int from = -1, to = -1;
        struct stat st;
        off_t offset = 0;

        from = open(path, O_RDONLY | O_CLOEXEC);
        if (from < 0 || fstat(from, &st) < 0)
                return -errno;
        to = memory_new(name, (uint64_t) st.st_size, bake_uid(b));
        if (to < 0)
                return to;
        while (offset < st.st_size)
                if (sendfile(to, from, &offset, (size_t) (st.st_size - offset)) <= 0)
                        return errno > 0 ? -errno : -EIO;
        return TAKE_FD(to);
}

static int open_kernel(struct bake *b) {
        _cleanup_free_ char *unpacked = NULL;
        int r;

        r = kernel_unpack(b->interrupt_fd, b->kernel, b->work);
        if (r == -ECANCELED)
                return r;
        if (r < 0)
                return bake_fail(b, r, "Can't unpack %s", b->kernel);
        if (r > 0 && asprintf(&unpacked, "%s/vmlinux", b->work) < 0)
                return bake_fail(b, -ENOMEM, "Can't unpack %s", b->kernel);
        r = copy_for_machine(b, unpacked ?: b->kernel, "kernel");
        return r < 0 ? bake_fail(b, r, "Can't read %s", unpacked ?: b->kernel) : r;
}

static void add_hex(json_t *body, const char *key) {
        uint8_t bytes[16];
        char text[33];

        if (random_bytes(bytes, sizeof(bytes)) >= 0) {
                hex_encode(bytes, sizeof(bytes), text);
                (void) json_object_set_new(body, key, json_string(text));
        }
}

/* If this program is killed and no unit of its own ends the rest, the runner ends itself in time. */
static uint64_t deadline(const struct bake *b) {
        const struct template *t = b->template;

        return now_boottime_usec() + b->conf->boot_timeout_usec + t->ready_timeout_usec +
               t->timeout_usec * strv_length(t->run) + 600 * USEC_PER_SEC;
}

static json_t *start_request(const struct bake *b, const char *cmdline) {
        const struct template *t = b->template;
        json_t *body = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:I, s:i, s:i, s:s, s:I, s:I, s:s, s:i, s:i, s:I}",
                                 "type", "start", "id", b->id, "uid", (json_int_t) bake_uid(b), "mode", "boot",
                                 "accelerator", host_accelerator(b->host), "vmm", b->host->vmm, "memory",
                                 (json_int_t) t->memory, "cpus", (int) t->cpus, "volumes", (int) t->volumes,
                                 "command_line", cmdline, "deadline_usec", (json_int_t) deadline(b),
                                 "agent_timeout_usec", (json_int_t) b->conf->boot_timeout_usec, "hostname",
                                 "localhost", "generation", 0, "memory_max", 0, "disk_size", (json_int_t) t->disk);

        if (body) {
                add_hex(body, "machine_id");
                add_hex(body, "boot_token");
        }
        return body;
}

static int boot(struct bake *b, struct guest *g, int memory_fd) {
        static const char *const names[] = { "disk", "memory", "kernel", "initrd" };
        _cleanup_close_ int disk_fd = -1, kernel_fd = -1, initrd_fd = -1;
        _cleanup_free_ char *cmdline = NULL, *initrd = NULL, *message = NULL;
        int r;

        disk_fd = openat(b->work_fd, SNAPSHOT_DISK, O_RDWR | O_CLOEXEC);
        if (disk_fd < 0 || fchown(disk_fd, bake_uid(b), (gid_t) bake_uid(b)) < 0)
                return bake_fail(b, -errno, "Can't open the disk");
        if (asprintf(&initrd, "%s/initrd", b->work) < 0)
                return bake_fail(b, -ENOMEM, "Can't boot");
        kernel_fd = open_kernel(b);
        if (kernel_fd < 0)
                return kernel_fd;
        initrd_fd = copy_for_machine(b, initrd, "initrd");
        if (initrd_fd < 0)
                return bake_fail(b, initrd_fd, "Can't read %s", initrd);
        r = command_line(b, &cmdline);
        if (r < 0)
                return bake_fail(b, r, "Can't boot");
        r = guest_call(g, start_request(b, cmdline), names, (const int[]){ disk_fd, memory_fd, kernel_fd, initrd_fd },
                       ELEMENTSOF(names), b->conf->boot_timeout_usec + 30 * USEC_PER_SEC, &message);
        if (r == -ECANCELED)
                return r;
        return r < 0 ? bake_fail(b, message ? -r : r, "The guest didn't come up%s%s", message ? ": " : "",
                                 strempty(message))
                     : 0;
}

/* Says how a command failed, when it did. */
static int judge_exit(struct bake *b, const char *what, const struct guest_exit *e) {
        char *output = text_tail(e->output, OUTPUT_IN_ERROR);

        if (streq(e->result, "exited") && e->status == 0)
                return 0;
        if (streq(e->result, "timeout"))
                return bake_fail(b, ETIMEDOUT, "%s took too long%s%s", what, *output ? ": " : "", output);
        if (streq(e->result, "exited") || streq(e->result, "signaled"))
                return bake_fail(b, EPROTO, "%s failed with %s %" PRIu64 "%s%s", what,
                                 streq(e->result, "exited") ? "status" : "signal", e->status, *output ? ": " : "",
                                 output);
        return bake_fail(b, EPROTO, "%s failed: the machine ended", what);
}

static int guest_failed(struct bake *b, int error, const char *what, const char *message) {
        if (error == -ECANCELED)
                return error;
        return bake_fail(b, message ? -error : error, "%s failed%s%s", what, message ? ": " : "", strempty(message));
}

static int run_commands(struct bake *b, struct guest *g) {
        size_t n = strv_length(b->template->run);

        for (size_t i = 0; i < n; i++) {
                struct guest_command c = { .text = b->template->run[i],
                                           .environment = b->template->environment,
                                           .timeout_usec = b->template->timeout_usec };
                _cleanup_(guest_exit_done) struct guest_exit e = {};
                _cleanup_free_ char *message = NULL;
                char what[64];
                int r;

                snprintf(what, sizeof(what), "Command %zu of run", i + 1);
                bake_status((unsigned) (70 + 15 * i / n), what);
                r = guest_run(g, &c, &e, &message);
                r = r < 0 ? guest_failed(b, r, what, message) : judge_exit(b, what, &e);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* A start command that has ended already has failed, whatever its status: it is to run when the state is captured. */
static int check_started(struct bake *b, struct guest *g, uint64_t process) {
        _cleanup_(guest_exit_done) struct guest_exit e = {};
        int r;

        r = process > 0 ? guest_has_ended(g, process, &e) : 0;
        if (r < 0)
                return guest_failed(b, r, "The start command", g->ended);
        if (r == 0)
                return 0;
        r = judge_exit(b, "The start command", &e);
        return r < 0 ? r
                     : bake_fail(b, EPROTO,
                                 "The start command ended, and it must still run when the state is captured");
}

static int probe(struct bake *b, struct guest *g, uint64_t started) {
        const struct template *t = b->template;
        struct guest_command c = { .text = t->ready,
                                   .environment = t->environment,
                                   .user = t->user,
                                   .directory = t->directory,
                                   .timeout_usec = MAX(t->ready_interval_usec, 10 * USEC_PER_SEC) };
        uint64_t until = now_boottime_usec() + t->ready_timeout_usec;

        for (;;) {
                _cleanup_(guest_exit_done) struct guest_exit e = {};
                _cleanup_free_ char *message = NULL;
                int r;

                r = guest_run(g, &c, &e, &message);
                if (r < 0)
                        return guest_failed(b, r, "The readiness probe", message);
                if (streq(e.result, "exited") && e.status == 0)
                        return 0;
                r = check_started(b, g, started);
                if (r < 0)
                        return r;
                if (now_boottime_usec() + t->ready_interval_usec >= until)
                        return judge_exit(b, "The readiness probe", &e);
                r = interrupt_wait(b->interrupt_fd, -1, now_boottime_usec() + t->ready_interval_usec);
                if (r < 0)
                        return r;
        }
}

static int start_service(struct bake *b, struct guest *g) {
        const struct template *t = b->template;
        struct guest_command c = {
                .text = t->start, .environment = t->environment, .user = t->user, .directory = t->directory
        };
        _cleanup_free_ char *message = NULL;
        uint64_t process = 0;
        int r = 0;

        if (t->start) {
                bake_status(86, "Starting the start command");
                r = guest_start(g, &c, &process, &message);
                if (r < 0)
                        return guest_failed(b, r, "The start command", message);
        }
        if (t->ready) {
                bake_status(88, "Waiting until it is ready");
                r = probe(b, g, process);
        } else if (t->start)
                /* Without a probe at least what fails at once is noticed. */
                r = interrupt_wait(b->interrupt_fd, -1, now_boottime_usec() + USEC_PER_SEC);
        return r < 0 ? r : check_started(b, g, process);
}

static int capture(struct bake *b, struct guest *g, int memory_fd) {
        static const char *const names[] = { "devices" };
        _cleanup_close_ int devices_fd = -1, file_fd = -1;
        _cleanup_free_ char *message = NULL;
        uint64_t written = 0, start;
        int r;

        bake_status(92, "Capturing memory and devices");
        devices_fd = openat(b->work_fd, SNAPSHOT_DEVICES, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        file_fd = openat(b->work_fd, SNAPSHOT_MEMORY, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (devices_fd < 0 || file_fd < 0)
                return bake_fail(b, -errno, "Can't make the snapshot's files");
        if (fchown(devices_fd, bake_uid(b), (gid_t) bake_uid(b)) < 0)
                return bake_fail(b, -errno, "Can't make the snapshot's files");
        r = guest_call(g, json_pack("{s:s}", "type", "capture"), names, &devices_fd, 1, CAPTURE_TIMEOUT_USEC,
                       &message);
        if (r < 0)
                return guest_failed(b, r, "Capturing the state", message);
        start = now_monotonic_nsec();
        r = memory_store(memory_fd, file_fd, b->template->memory, &written);
        if (r < 0)
                return bake_fail(b, r, "Can't write the memory");
        log_info("Wrote %" PRIu64 " of %" PRIu64 " MiB of memory in %" PRIu64 " ms", written >> 20,
                 b->template->memory >> 20, (now_monotonic_nsec() - start) / 1000000U);
        return 0;
}

int machine_bake(struct bake *b) {
        _cleanup_free_ char *program = NULL, *name = NULL;
        _cleanup_(guest_freep) struct guest *g = NULL;
        _cleanup_close_ int memory_fd = -1;
        int r;

        bake_status(60, "Booting");
        r = make_initrd(b);
        if (r < 0)
                return r;
        memory_fd = memory_new("memory", b->template->memory, bake_uid(b));
        if (memory_fd < 0)
                return bake_fail(b, memory_fd, "Can't get memory for the guest");
        if (asprintf(&program, "%s/sandbox-runner", b->libexec) < 0 || asprintf(&name, "bake-%s", b->name) < 0)
                return bake_fail(b, -ENOMEM, "Can't boot");
        r = guest_new(b->interrupt_fd, program, name, b->id, &g);
        if (r < 0)
                return bake_fail(b, r, "Can't start %s", program);
        r = boot(b, g, memory_fd);
        if (r >= 0)
                r = run_commands(b, g);
        if (r >= 0)
                r = start_service(b, g);
        if (r >= 0)
                r = capture(b, g, memory_fd);
        return r;
}
