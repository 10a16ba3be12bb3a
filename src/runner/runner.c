/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The machine's life doesn't depend on anybody outside: controllers come and go, the deadline is kept here, and
 * whatever ends, ends everything, since this is the first process of its pid namespace. */

#include "runner.h"

#include <signal.h>
#include <sys/wait.h>

#include "log.h"

/* How long after its sockets closed QEMU may take to be reaped, before they are thought to have closed for a reason of
 * their own. */
#define HANGUP_USEC (USEC_PER_SEC)
/* How long to wait for "start". Who made us and was killed before it could say so has forgotten us. */
#define WAITING_USEC (120 * USEC_PER_SEC)

void runner_reply(Runner *r, const struct request *request, int error, const char *message, json_t *extra) {
        json_t *body;

        if (request->connection == 0 || request->connection != server_connection(r->server)) {
                json_decref(extra);
                return;
        }
        body = json_pack("{s:s, s:I, s:i, s:s}", "type", "reply", "serial", (json_int_t) request->serial, "error",
                         abs(error), "message",
                         message     ? message
                         : error < 0 ? strerror(-error)
                                     : "");
        if (body && extra)
                (void) json_object_update(body, extra);
        json_decref(extra);
        server_send(r->server, body, NULL, NULL, 0);
}

static const char *end_reason(enum control_exit status) {
        switch (status) {
        case CONTROL_EXIT_DEADLINE:
                return "deadline";
        case CONTROL_EXIT_VMM:
                return "vmm";
        case CONTROL_EXIT_AGENT:
                return "agent";
        default:
                return "terminated";
        }
}

void runner_end(Runner *r, enum control_exit status, const char *message) {
        if (r->state == RUNNER_ENDING)
                return;
        if (start_fail(r, -ECANCELED, message) && status != CONTROL_EXIT_OK && status != CONTROL_EXIT_TERMINATED &&
            status != CONTROL_EXIT_DEADLINE)
                status = CONTROL_EXIT_FAILURE;
        r->state = RUNNER_ENDING;
        r->exit_status = status;
        /* At once, before anything else is written about it. */
        if (r->vmm && vmm_is_running(r->vmm))
                (void) kill(vmm_pid(r->vmm), SIGKILL);

        if (r->commands)
                commands_lost(r->commands);
        if (status != CONTROL_EXIT_OK && status != CONTROL_EXIT_FAILURE) {
                log_notice("The sandbox ends (%s): %s", end_reason(status), message);
                server_send(r->server,
                            json_pack("{s:s, s:s, s:s}", "type", "ended", "reason", end_reason(status), "message",
                                      message),
                            NULL, NULL, 0);
        }
        server_flush(r->server);
        (void) sd_event_exit(r->event, (int) status);
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *userdata) {
        runner_end(userdata, CONTROL_EXIT_DEADLINE, "its time is over");
        return 0;
}

int runner_set_deadline(Runner *r, uint64_t usec) {
        int error;

        r->deadline_usec = usec;
        r->deadline = sd_event_source_disable_unref(r->deadline);
        if (usec == 0)
                return 0;
        error = sd_event_add_time(r->event, &r->deadline, CLOCK_BOOTTIME, usec, 10 * USEC_PER_MSEC, on_deadline, r);
        if (error >= 0)
                error = sd_event_source_set_priority(r->deadline, SD_EVENT_PRIORITY_IMPORTANT);
        return error;
}

static int on_terminate(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata) {
        runner_end(userdata, CONTROL_EXIT_TERMINATED, "the runner was told to terminate");
        return 0;
}

static void vmm_gone(Runner *r, int status) {
        _cleanup_free_ char *message = NULL;

        vmm_exited(r->vmm, status);
        message = vmm_explain(r->vmm, r->state == RUNNER_STARTING);
        runner_end(r, CONTROL_EXIT_VMM, message ? message : "QEMU exited");
}

/* As the first process we are also the heir of whatever QEMU might leave. */
static int on_child(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata) {
        Runner *r = userdata;
        pid_t pid;
        int status;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
                if (r->vmm && pid == vmm_pid(r->vmm))
                        vmm_gone(r, status);
        return 0;
}

static void add_description(Command *c, void *userdata) {
        json_t *o = command_describe(c);

        if (o && c->label)
                (void) json_object_set(o, "label", c->label);
        if (o)
                (void) json_array_append_new(userdata, o);
}

static json_t *describe_all(Runner *r) {
        json_t *list = json_array();

        if (list && r->commands)
                commands_foreach(r->commands, add_description, list);
        return list;
}

static void send_exit(Command *c, void *userdata) {
        static const char *const names[_OUTPUTS] = { "stdout", "stderr" };
        const char *sent_names[_OUTPUTS];
        int fds[_OUTPUTS];
        Runner *r = userdata;
        json_t *body;
        size_t n = 0;

        body = command_describe(c);
        if (!body)
                return;
        (void) json_object_set_new(body, "type", json_string("process-exited"));
        for (size_t i = 0; i < _OUTPUTS; i++) {
                if (!c->capture[i])
                        continue;
                fds[n] = capture_buffer_to_memfd(c->capture[i]);
                if (fds[n] < 0) {
                        log_warning_errno(fds[n], "Can't hand over what process %llu wrote",
                                          (unsigned long long) c->process);
                        continue;
                }
                sent_names[n++] = names[i];
        }
        server_send(r->server, body, sent_names, fds, n);
        while (n > 0)
                close_fd(fds[--n]);
}

/* hello lists the exits, but has no room for what the commands wrote: those are announced once more. */
static void send_captured(Command *c, void *userdata) {
        if (c->state == COMMAND_EXITED && (c->capture[OUT] || c->capture[ERR]))
                send_exit(c, userdata);
}

static void on_connected(void *userdata) {
        Runner *r = userdata;
        const char *state = r->state == RUNNER_WAITING    ? "waiting"
                            : r->state == RUNNER_STARTING ? "starting"
                                                          : "running";

        server_send(r->server,
                    json_pack("{s:s, s:i, s:s, s:s, s:I, s:O?, s:o}", "type", "hello", "version", CONTROL_VERSION,
                              "id", r->id, "state", state, "deadline_usec", (json_int_t) r->deadline_usec, "receipt",
                              r->receipt, "processes", describe_all(r)),
                    NULL, NULL, 0);
        if (r->commands)
                commands_foreach(r->commands, send_captured, r);
}

static void on_request(struct control_message *m, void *userdata) {
        requests_handle(userdata, m);
}

static const struct server_callbacks server_callbacks = { .connected = on_connected, .request = on_request };

static int on_hangup(sd_event_source *source, uint64_t usec, void *userdata) {
        runner_end(userdata, CONTROL_EXIT_AGENT, "QEMU closed its channels");
        return 0;
}

/* Sockets close when QEMU exits, a moment before it can be reaped, and its exit is the better explanation. */
static bool wait_for_exit(Runner *r) {
        if (r->hangup)
                return true;
        return sd_event_add_time_relative(r->event, &r->hangup, CLOCK_MONOTONIC, HANGUP_USEC, 0, on_hangup, r) >= 0;
}

void runner_agent_broken(Runner *r, bool closed, const char *message) {
        _cleanup_free_ char *why = NULL, *all = NULL;

        if (closed && wait_for_exit(r))
                return;
        /* A boot that doesn't reach its agent has its reason on the console. */
        if (r->state == RUNNER_STARTING) {
                why = vmm_explain(r->vmm, true);
                if (why && asprintf(&all, "%s; %s", message, why) < 0)
                        all = NULL;
        }
        runner_end(r, CONTROL_EXIT_AGENT, all ? all : message);
}

void runner_vmm_broken(Runner *r, bool closed, const char *message) {
        if (closed && wait_for_exit(r))
                return;
        runner_end(r, CONTROL_EXIT_VMM, message);
}

static void on_started(Command *c, int error, const char *message, void *userdata) {
        const struct request request = { c->serial, c->connection };
        Runner *r = userdata;

        runner_reply(r, &request, error, message, error < 0 ? NULL : json_pack("{s:I}", "pid", (json_int_t) c->pid));
}

const struct commands_callbacks commands_callbacks = { .started = on_started, .exited = send_exit };

static int on_forgotten(sd_event_source *source, uint64_t usec, void *userdata) {
        Runner *r = userdata;

        if (r->state == RUNNER_WAITING)
                runner_end(r, CONTROL_EXIT_FAILURE, "nobody said start");
        return 0;
}

static int watch_signals(Runner *r) {
        sigset_t set;
        int error;

        (void) signal(SIGPIPE, SIG_IGN);
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGCHLD);
        if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
                return -errno;
        error = sd_event_add_signal(r->event, NULL, SIGTERM, on_terminate, r);
        if (error >= 0)
                error = sd_event_add_signal(r->event, NULL, SIGINT, on_terminate, r);
        if (error >= 0)
                error = sd_event_add_signal(r->event, NULL, SIGCHLD, on_child, r);
        return error;
}

int runner_new(const char *id, int listen_fd, Runner **ret) {
        _cleanup_(runner_freep) Runner *r = calloc(1, sizeof(*r));
        int error;

        if (!r) {
                close_fd(listen_fd);
                return -ENOMEM;
        }
        r->id = id;
        r->capture.devices_fd = -1;
        error = sd_event_new(&r->event);
        if (error < 0) {
                close_fd(listen_fd);
                return error;
        }
        error = server_new(r->event, listen_fd, &server_callbacks, r, &r->server);
        if (error >= 0)
                error = watch_signals(r);
        if (error >= 0)
                error = sd_event_add_time_relative(r->event, NULL, CLOCK_MONOTONIC, WAITING_USEC, 0, on_forgotten, r);
        if (error < 0)
                return error;

        /* A failure is the answer to "start". */
        r->jail_error = jail_prepare(&r->jail, &r->jail_what);
        *ret = TAKE_PTR(r);
        return 0;
}

void runner_free(Runner *r) {
        if (!r)
                return;
        commands_free(r->commands);
        agent_channel_free(r->agent);
        vmm_free(r->vmm);
        server_free(r->server);
        jail_free(r->jail);
        close_fd(r->capture.devices_fd);
        json_decref(r->receipt);
        sd_event_source_disable_unref(r->deadline);
        sd_event_source_disable_unref(r->hangup);
        sd_event_unref(r->event);
        free(r);
}

int runner_loop(Runner *r) {
        int error = sd_event_loop(r->event);

        return error < 0 ? error : (int) r->exit_status;
}
