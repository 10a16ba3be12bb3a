/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A sandbox's scope, runner and machine: what of it are processes. The runner is the first process of its pid
 * namespace, so that killing it kills all; its pidfd is how the end is noticed, whoever brought it about. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cgroup.h"
#include "link.h"
#include "log.h"
#include "process.h"
#include "runner-spawn.h"
#include "sandbox.h"
#include "usage.h"

#define RUNNER_PROGRAM LIBEXECDIR "/sandbox-runner"
/* What a runner may take beside the agent's time: the jail and the VMM's start. */
#define START_SLACK_USEC (15 * USEC_PER_SEC)
#define RECONNECT_USEC (100 * USEC_PER_MSEC)
#define RECONNECTS_MAX 50U

static void on_event(const char *type, struct control_message *m, void *userdata);
static void on_broken(void *userdata);

static const struct link_handlers link_handlers = { .event = on_event, .broken = on_broken };

static void runtime_directory(const struct sandbox *s, char ret[64]) {
        snprintf(ret, 64, RUNTIME_PATH "/%s", s->id);
}

static void control_path(const struct sandbox *s, char ret[80]) {
        snprintf(ret, 80, RUNTIME_PATH "/%s/control", s->id);
}

int process_start_time(pid_t pid, uint64_t *ret) {
        _cleanup_free_ char *text = NULL;
        unsigned long long start;
        char path[64], *p;
        int r;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int) pid);
        r = read_file_at(AT_FDCWD, path, 4096, &text, NULL);
        if (r < 0)
                return r;
        /* The second field is the name, which may hold anything but ends with the last parenthesis; the start is the
         * 22nd. */
        p = strrchr(text, ')');
        if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                         &start) != 1)
                return -ENODATA;
        *ret = start;
        return 0;
}

/* Why the runner says that it went; NULL: it was killed. */
static const char *exit_result(const siginfo_t *info) {
        if (info->si_code != CLD_EXITED)
                return NULL;
        switch ((enum control_exit) info->si_status) {
        case CONTROL_EXIT_DEADLINE:
                return "deadline";
        case CONTROL_EXIT_VMM:
                return "vmm";
        case CONTROL_EXIT_AGENT:
                return "agent";
        case CONTROL_EXIT_TERMINATED:
                return "stopped";
        case CONTROL_EXIT_OK:
        case CONTROL_EXIT_FAILURE:
                break;
        }
        return "lost";
}

static int on_exit_runner(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        struct sandbox *s = userdata;
        siginfo_t info = {};
        const char *result = NULL;

        /* Not our child if it was started before this process: then its end is all that is known here. */
        if (waitid(P_PIDFD, (id_t) s->pidfd, &info, WEXITED) >= 0)
                result = exit_result(&info);
        s->exit_source = sd_event_source_disable_unref(s->exit_source);
        /* Last words first, among them the output of commands. They can't end the sandbox here: that is done below. */
        s->exited = true;
        if (s->link)
                link_drain(s->link);
        s->pidfd = close_fd(s->pidfd);
        processes_lost(s);
        if (s->ending && !s->climbing && s->rung > 0)
                sandbox_rung_undone(s);
        else if (!s->ending && s->state == SANDBOX_RUNNING)
                sandbox_end(s, result ? result : s->last_result ? s->last_result : "stopped");
        return 0;
}

static int watch_runner(struct sandbox *s) {
        return sd_event_add_io(s->manager->event, &s->exit_source, s->pidfd, EPOLLIN, on_exit_runner, s);
}

/* Starts the runner, which waits for its first word. */
static int start_runner(struct sandbox *s) {
        char directory[64], path[80];
        _cleanup_close_ int listener = -1;
        int r;

        runtime_directory(s, directory);
        if (mkdir(directory, 0700) < 0 && errno != EEXIST)
                return -errno;
        control_path(s, path);
        listener = control_listen(path);
        if (listener < 0)
                return listener;
        r = runner_spawn(RUNNER_PROGRAM, s->id, listener, &s->leader, &s->pidfd);
        if (r < 0)
                return r;
        r = watch_runner(s);
        return r < 0 ? r : process_start_time(s->leader, &s->leader_start);
}

/* Limits hold only for what is in the scope: look where the runner really is. A scope can be dead with its process
 * alive. */
static void on_scope_started(int error, const char *message, void *userdata) {
        struct sandbox *s = userdata;
        const char *base;

        if (error < 0) {
                sandbox_rung_begun(s, error, message);
                return;
        }
        free(TAKE_PTR(s->cgroup));
        error = cgroup_of_pid(s->leader, &s->cgroup);
        if (error < 0) {
                sandbox_rung_begun(s, error, "the runner ended before its scope was up");
                return;
        }
        base = strrchr(s->cgroup, '/');
        if (!streq(base + 1, s->unit))
                sandbox_rung_begun(s, -EIO, "the runner isn't in its scope");
        else
                sandbox_rung_begun(s, 0, NULL);
}

int rung_unit_begin(struct sandbox *s) {
        _cleanup_free_ char *description = NULL;
        int r;

        r = start_runner(s);
        if (r < 0)
                return log_error_errno(r, "Failed to start a runner for sandbox %s", s->id);
        if (asprintf(&description, "Sandbox %s of uid %u from %s", s->name, (unsigned) s->owner, s->template_name) < 0)
                return -ENOMEM;
        return units_start_scope(s->manager->units,
                                 &(struct scope_spec){
                                         .name = s->unit,
                                         .slice = s->slice,
                                         .description = description,
                                         .pidfd = s->pidfd,
                                         .memory_max = s->memory_max + s->manager->conf->memory_overhead,
                                         .tasks_max = s->tasks_max,
                                         .cpu_usec_per_sec = (uint64_t) (s->cpus * (double) USEC_PER_SEC),
                                         .runtime_max_usec = s->runtime_max_usec,
                                         .kvm = s->manager->host->kvm,
                                 },
                                 on_scope_started, s);
}

static void unit_undone(struct sandbox *s) {
        char directory[64], path[80];

        units_release(s->manager->units, s->unit);
        control_path(s, path);
        runtime_directory(s, directory);
        (void) unlink(path);
        (void) rmdir(directory);
        s->stopped = true;
        sandbox_rung_undone(s);
}

/* The unit's result says what the runner couldn't: that it was killed, and why. */
static void on_unit_usage(const struct unit_usage *usage, void *userdata) {
        struct sandbox *s = userdata;

        if (usage->cpu_nsec != UINT64_MAX) {
                s->usage = *usage;
                s->usage_source = "systemd";
        } else if (!s->usage_source)
                usage_from_journal(s);
        if (streq(usage->result, "oom-kill") && !streq(strempty(s->result), "removed"))
                s->result = "oom-kill";
        else if (streq(usage->result, "timeout") && streq(strempty(s->result), "stopped"))
                s->result = "runtime-max";
        unit_undone(s);
}

static void on_unit_stopped(int error, const char *message, void *userdata) {
        struct sandbox *s = userdata;

        if (error < 0)
                log_warning_errno(error, "Failed to stop %s: %s", s->unit, strempty(message));
        if (units_usage(s->manager->units, s->unit, on_unit_usage, s) < 0)
                unit_undone(s);
}

int rung_unit_undo(struct sandbox *s) {
        s->link = link_close(s->link);
        s->reconnect = sd_event_source_disable_unref(s->reconnect);
        if (s->stopped)
                return 1;
        if (s->pidfd >= 0 && !s->exit_source) {
                siginfo_t info;

                /* It couldn't be watched; killed, it ends at once. */
                (void) rung_vmm_undo(s);
                (void) waitid(P_PIDFD, (id_t) s->pidfd, &info, WEXITED);
                s->pidfd = close_fd(s->pidfd);
        }
        if (s->pidfd >= 0) {
                (void) rung_vmm_undo(s);
                /* on_exit_runner() would take this for the end of the rung. */
                s->rung++;
                return 0;
        }
        if (units_stop(s->manager->units, s->unit, on_unit_stopped, s) < 0)
                on_unit_stopped(0, NULL, s);
        return 0;
}

int rung_vmm_undo(struct sandbox *s) {
        if (s->pidfd < 0)
                return 1;
        if (pidfd_send_signal(s->pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
                log_warning_errno(-errno, "Failed to kill the runner of sandbox %s", s->id);
        return 0;
}

static void on_started(int error, const char *message, struct control_message *reply, void *userdata) {
        struct sandbox *s = userdata;

        if (error < 0) {
                const char *part = reply ? json_string_value(json_object_get(reply->body, "rung")) : NULL;
                char text[512];

                /* The runner has rungs of its own: "jail", "vmm", "agent". */
                snprintf(text, sizeof(text), "%s%s%s", strempty(part), part ? ": " : "", message);
                sandbox_rung_begun(s, error, text);
                return;
        }
        s->receipt = json_incref(json_object_get(reply->body, "receipt"));
        s->runner_timings = json_incref(json_object_get(reply->body, "timings_usec"));
        if (!json_is_object(s->receipt)) {
                sandbox_rung_begun(s, -EBADMSG, "the runner sent no receipt");
                return;
        }
        sandbox_rung_begun(s, 0, NULL);
}

static json_t *start_request(struct sandbox *s) {
        const struct host *h = s->manager->host;
        const struct conf *c = s->manager->conf;
        /* Where less is given than the machine has, the rest is the guest kernel's own. */
        uint64_t memory_max = s->memory_max < s->memory ? s->memory_max : 0;
        uint64_t disk_size = s->disk_size > s->disk ? s->disk_size : 0;

        return json_pack("{s:s,s:s,s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s:I,s:I,s:I}", "type", "start",
                         "id", s->id, "uid", (json_int_t) (c->uid_base + s->slot), "mode", "restore", "accelerator",
                         host_accelerator(h), "vmm", h->vmm, "memory", (json_int_t) s->memory, "cpus",
                         (json_int_t) s->machine_cpus, "volumes", (json_int_t) s->volumes, "deadline_usec",
                         (json_int_t) s->deadline_boot_usec, "agent_timeout_usec", (json_int_t) c->agent_timeout_usec,
                         "hostname", s->hostname, "machine_id", s->machine_id, "boot_token", s->boot_token,
                         "generation", (json_int_t) s->generation, "memory_max", (json_int_t) memory_max, "disk_size",
                         (json_int_t) disk_size);
}

static int attach_link(struct sandbox *s) {
        char path[80];

        control_path(s, path);
        return link_new(s->manager->event, path, &link_handlers, s, &s->link);
}

int rung_vmm_begin(struct sandbox *s) {
        static const char *const names[] = { "disk", "memory", "devices" };
        int fds[] = { s->disk_fd, s->memory_fd, s->devices_fd };
        int r;

        r = attach_link(s);
        if (r >= 0)
                r = link_request(s->link, start_request(s), names, fds, ELEMENTSOF(fds),
                                 s->manager->conf->agent_timeout_usec + START_SLACK_USEC, on_started, s);
        s->disk_fd = close_fd(s->disk_fd);
        s->memory_fd = close_fd(s->memory_fd);
        s->devices_fd = close_fd(s->devices_fd);
        return r;
}

static int on_reconnect(sd_event_source *source, uint64_t usec, void *userdata) {
        struct sandbox *s = userdata;

        s->reconnect = sd_event_source_disable_unref(s->reconnect);
        if (s->ending || s->link)
                return 0;
        if (attach_link(s) < 0)
                on_broken(s);
        return 0;
}

/* The runner lives, or its pidfd tells: try again for a while, then it is of no use. */
static void on_broken(void *userdata) {
        struct sandbox *s = userdata;

        if (s->ending || s->climbing)
                return;
        s->link = link_free(s->link);
        if (++s->reconnects > RECONNECTS_MAX ||
            sd_event_add_time_relative(s->manager->event, &s->reconnect, CLOCK_MONOTONIC, RECONNECT_USEC, 0,
                                       on_reconnect, s) < 0) {
                log_error("The runner of sandbox %s can't be reached", s->id);
                sandbox_end(s, "lost");
        }
}

static const char *ended_result(const char *reason) {
        static const char *const known[] = { "deadline", "vmm", "agent" };

        for (size_t i = 0; i < ELEMENTSOF(known); i++)
                if (streq(reason, known[i]))
                        return known[i];
        return "stopped";
}

static void on_hello(struct sandbox *s, struct control_message *m) {
        s->reconnects = 0;
        if (!s->receipt && json_is_object(json_object_get(m->body, "receipt")))
                s->receipt = json_incref(json_object_get(m->body, "receipt"));
        processes_resume(s, json_object_get(m->body, "processes"));
}

static void on_event(const char *type, struct control_message *m, void *userdata) {
        struct sandbox *s = userdata;

        if (streq(type, "hello"))
                on_hello(s, m);
        else if (streq(type, "process-exited"))
                process_exited(s, m);
        else if (streq(type, "ended")) {
                const char *reason = strempty(json_string_value(json_object_get(m->body, "reason")));

                log_info("The machine of sandbox %s ended (%s): %s", s->id, reason,
                         strempty(json_string_value(json_object_get(m->body, "message"))));
                if (s->exited)
                        s->last_result = ended_result(reason);
                else if (s->state == SANDBOX_RUNNING)
                        sandbox_end(s, ended_result(reason));
        } else
                log_warning("The runner of sandbox %s sent an event \"%s\" that isn't known here", s->id, type);
}

int sandbox_attach(struct sandbox *s) {
        uint64_t start;
        int r;

        if (s->leader <= 0)
                return -ESRCH;
        s->pidfd = pidfd_open(s->leader, 0);
        if (s->pidfd < 0)
                return -errno;
        /* The pid could be another's by now. Start times are compared while the pidfd holds the process. */
        r = process_start_time(s->leader, &start);
        if (r >= 0 && start != s->leader_start)
                r = -ESRCH;
        if (r >= 0)
                r = watch_runner(s);
        if (r < 0) {
                s->pidfd = close_fd(s->pidfd);
                return r;
        }
        units_hold(s->manager->units, s->unit);
        free(TAKE_PTR(s->cgroup));
        r = cgroup_of_pid(s->leader, &s->cgroup);
        if (r < 0)
                return r;
        if (!streq(strrchr(s->cgroup, '/') + 1, s->unit))
                return -ESRCH;
        if (attach_link(s) < 0)
                on_broken(s);
        return 0;
}
