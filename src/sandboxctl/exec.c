/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A command in a sandbox, from its start to its exit status.
 *
 * The service starts the command with our descriptors (streams.c) and tells us its end as the reply to Wait; it may be
 * restarted meanwhile (lasting.c). What this file adds is the order of things when somebody interrupts: a signal goes
 * to the command, not to us, so that its end is still known and, by run, its sandbox still removed. */

#include <signal.h>

#include "create.h"
#include "lasting.h"
#include "polkit-agent.h"
#include "streams.h"

struct session {
        struct ctl *ctl;
        sd_event *event;
        struct streams streams;
        int signal; /* the last one that we got; 0: none */
        unsigned n_signals;
        char *process; /* object of the command; NULL before it runs */
        bool ended;    /* it does so no longer: status is set */
        int status;
        sd_bus_message *reply; /* of what is awaited */
};

static int on_signal_sent(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        const sd_bus_error *error = sd_bus_message_get_error(reply);

        /* That it has ended already is what was wanted. */
        if (error && !sd_bus_error_has_names(error, BUS_ERROR_NO_SUCH_PROCESS, BUS_ERROR_NO_SUCH_SANDBOX,
                                             SD_BUS_ERROR_UNKNOWN_OBJECT))
                complain_bus(error, 0, "Failed to pass the signal on");
        return 0;
}

/* The first signal as it is. Whoever sends another means it. */
static void pass_signal_on(struct session *s) {
        _cleanup_message_ sd_bus_message *m = NULL;
        int r;

        r = ctl_method(s->ctl, s->process, BUS_INTERFACE_PROCESS, "Signal", &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "it", s->n_signals > 1 ? SIGKILL : s->signal, UINT64_C(0));
        if (r >= 0)
                r = sd_bus_call_async(s->ctl->bus, NULL, m, on_signal_sent, NULL, CALL_TIMEOUT_USEC);
        if (r < 0)
                complain("Failed to pass the signal on: %s", strerror(-r));
}

static int on_signal(sd_event_source *source, const struct signalfd_siginfo *si, void *userdata) {
        struct session *s = userdata;

        s->signal = (int) si->ssi_signo;
        s->n_signals++;
        if (s->process && !s->ended)
                pass_signal_on(s);
        return 0;
}

static int session_open(struct session *s, struct ctl *c) {
        static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
        sigset_t set;
        int r;

        *s = (struct session){ .ctl = c, .status = EXIT_OURS, .streams = { .given = { -1, -1, -1 } } };
        /* A command that closes its input ends our pump, not us. */
        signal(SIGPIPE, SIG_IGN);
        sigemptyset(&set);
        for (size_t i = 0; i < ELEMENTSOF(signals); i++)
                sigaddset(&set, signals[i]);
        if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
                return -errno;
        r = sd_event_new(&s->event);
        if (r >= 0)
                r = sd_bus_attach_event(c->bus, s->event, SD_EVENT_PRIORITY_NORMAL);
        for (size_t i = 0; i < ELEMENTSOF(signals) && r >= 0; i++)
                r = sd_event_add_signal(s->event, NULL, signals[i], on_signal, s);
        return r;
}

static void session_close(struct session *s) {
        streams_done(&s->streams);
        sd_bus_message_unref(s->reply);
        sd_bus_detach_event(s->ctl->bus);
        sd_event_unref(s->event);
        free(s->process);
}

static int on_reply(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        struct session *s = userdata;

        s->reply = sd_bus_message_ref(reply);
        return 0;
}

/* Like sd_bus_call(), but signals are noted meanwhile. With give_up_after of them -EINTR; 0: never. */
static int session_call(struct session *s, sd_bus_message *m, unsigned give_up_after, sd_bus_error *error,
                        sd_bus_message **ret) {
        _cleanup_slot_ sd_bus_slot *slot = NULL;
        int r;

        s->reply = sd_bus_message_unref(s->reply);
        r = sd_bus_call_async(s->ctl->bus, &slot, m, on_reply, s, CALL_TIMEOUT_USEC);
        while (r >= 0 && !s->reply) {
                if (give_up_after > 0 && s->n_signals >= give_up_after)
                        return -EINTR;
                r = sd_event_run(s->event, UINT64_MAX);
        }
        if (r < 0)
                return r;
        if (sd_bus_message_is_method_error(s->reply, NULL)) {
                sd_bus_error_copy(error, sd_bus_message_get_error(s->reply));
                return -sd_bus_error_get_errno(error);
        }
        *ret = TAKE_PTR(s->reply);
        return 0;
}

static int append_exec_options(struct session *s, sd_bus_message *m) {
        const struct options *o = s->ctl->options;
        int r;

        r = append_strings(m, "Environment", o->environment);
        if (r >= 0 && o->directory)
                r = sd_bus_message_append(m, "{sv}", "WorkingDirectory", "s", o->directory);
        if (r >= 0 && o->user)
                r = sd_bus_message_append(m, "{sv}", "User", "s", o->user);
        if (r >= 0 && o->timeout_usec > 0)
                r = sd_bus_message_append(m, "{sv}", "TimeoutUSec", "t", o->timeout_usec);
        return r < 0 ? r : streams_append(&s->streams, m);
}

static int exec_message(struct session *s, const char *sandbox, char **argv, sd_bus_message **ret) {
        _cleanup_message_ sd_bus_message *m = NULL;
        int r;

        r = ctl_method(s->ctl, sandbox, BUS_INTERFACE_SANDBOX, "Exec", &m);
        if (r >= 0)
                r = sd_bus_message_append_strv(m, argv);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0)
                r = append_exec_options(s, m);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        if (r < 0) {
                complain("Failed to compose the request%s", r == -EINVAL ? ": arguments must be valid UTF-8" : "");
                return r;
        }
        *ret = TAKE_PTR(m);
        return 0;
}

static int status_of_error(const sd_bus_error *error) {
        if (!sd_bus_error_has_name(error, BUS_ERROR_NOT_EXECUTABLE))
                return EXIT_OURS;
        return error->message && strncmp(error->message, "not found: ", 11) == 0 ? EXIT_NOT_FOUND
                                                                                 : EXIT_NOT_EXECUTABLE;
}

static int status_of_result(const char *result, int status) {
        if (streq(result, "exited"))
                return status;
        if (streq(result, "signaled"))
                return EXIT_SIGNALED + status;
        if (streq(result, "timeout"))
                return EXIT_TIMED_OUT;
        if (streq(result, "lost"))
                complain("The sandbox ended before the command did");
        else
                complain("The command ended in a way that isn't known here: %s", result);
        return EXIT_OURS;
}

static void on_ended(sd_bus_message *reply, void *userdata) {
        struct session *s = userdata;
        const char *result;
        int status, r;

        s->ended = true;
        if (!reply)
                complain("The bus went away; whether the command has ended isn't known");
        else if (sd_bus_message_is_method_error(reply, NULL))
                complain_bus(sd_bus_message_get_error(reply), 0, "Failed to wait for the command");
        else if ((r = sd_bus_message_read(reply, "si", &result, &status)) < 0)
                complain_bus(NULL, r, "Failed to read how the command ended");
        else
                s->status = status_of_result(result, status);
        streams_finish(&s->streams);
}

/* Its output is in our pipes when its end is known. A terminal that takes nothing more can be left by a signal. */
static int session_wait(struct session *s) {
        _cleanup_(lasting_freep) struct lasting *wait = NULL;
        unsigned n_signals;
        int r;

        r = lasting_call(s->ctl, s->process, BUS_INTERFACE_PROCESS, "Wait", on_ended, s, &wait);
        while (r >= 0 && !s->ended)
                r = sd_event_run(s->event, UINT64_MAX);
        n_signals = s->n_signals;
        while (r >= 0 && !streams_delivered(&s->streams) && s->n_signals == n_signals)
                r = sd_event_run(s->event, UINT64_MAX);
        if (r < 0)
                complain("Failed to wait for the command: %s", strerror(-r));
        return s->status;
}

/* Returns the exit status. */
static int session_exec(struct session *s, const char *sandbox, const char *name, char **argv) {
        _cleanup_message_ sd_bus_message *m = NULL, *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *process;
        int r;

        r = streams_open(&s->streams, s->event, s->ctl->options->interactive);
        if (r < 0) {
                complain("Failed to prepare standard input and output: %s", strerror(-r));
                return EXIT_OURS;
        }
        r = exec_message(s, sandbox, argv, &m);
        if (r < 0)
                return EXIT_OURS;
        r = session_call(s, m, 2, &error, &reply);
        if (r == -EINTR && !sd_bus_error_is_set(&error))
                return EXIT_SIGNALED + s->signal;
        if (r >= 0)
                r = sd_bus_message_read(reply, "o", &process);
        if (r < 0) {
                complain_bus(&error, r, "Failed to run %s in sandbox %s", argv[0], name);
                return status_of_error(&error);
        }
        s->process = strdup(process);
        if (!s->process) {
                complain_oom();
                return EXIT_OURS;
        }
        /* Descriptors of ours live on in these messages, and nothing more is asked: the terminal is the command's. */
        reply = sd_bus_message_unref(reply);
        m = sd_bus_message_unref(m);
        streams_close_given(&s->streams);
        s->ctl->agent = polkit_agent_stop(s->ctl->agent);
        if (s->n_signals > 0)
                pass_signal_on(s);
        return session_wait(s);
}

int verb_exec(struct ctl *c, char **arguments) {
        _cleanup_free_ char *sandbox = NULL;
        struct session s;
        int r;

        r = find_sandbox(c, arguments[0], &sandbox);
        if (r < 0)
                return EXIT_OURS;
        r = session_open(&s, c);
        if (r < 0)
                complain("Failed to set up an event loop: %s", strerror(-r));
        else
                s.status = session_exec(&s, sandbox, arguments[0], arguments + 1);
        r = s.status;
        session_close(&s);
        return r;
}

static void on_removed(sd_bus_message *reply, void *userdata) {
        const sd_bus_error *error = reply ? sd_bus_message_get_error(reply) : NULL;
        bool *removed = userdata;

        *removed = true;
        if (!reply)
                complain("The bus went away; the sandbox ends with its ttl");
        else if (error && !sd_bus_error_has_names(error, BUS_ERROR_NO_SUCH_SANDBOX, SD_BUS_ERROR_UNKNOWN_OBJECT))
                complain_bus(error, 0, "Failed to remove the sandbox; it ends with its ttl");
}

/* Whatever happened before. Who interrupts this as well, twice, needn't wait for it. */
static void session_remove(struct session *s, const char *sandbox) {
        _cleanup_(lasting_freep) struct lasting *remove = NULL;
        unsigned n_signals = s->n_signals;
        bool removed = false;
        int r;

        r = lasting_call(s->ctl, sandbox, BUS_INTERFACE_SANDBOX, "Remove", on_removed, &removed, &remove);
        while (r >= 0 && !removed && s->n_signals < n_signals + 2)
                r = sd_event_run(s->event, UINT64_MAX);
        if (r < 0 || !removed)
                complain("The sandbox may still be there: %s", r < 0 ? strerror(-r) : "interrupted");
}

/* Without an id nothing could be removed: the creation isn't given up, however often somebody interrupts. */
static int session_create(struct session *s, const char *template, char **ret_id, char **ret_path) {
        _cleanup_message_ sd_bus_message *m = NULL, *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *id, *path;
        int r;

        r = create_message(s->ctl, template, false, &m);
        if (r < 0)
                return r;
        r = session_call(s, m, 0, &error, &reply);
        if (r >= 0)
                r = sd_bus_message_read(reply, "so", &id, &path);
        if (r < 0) {
                complain_bus(&error, r, "Failed to create sandbox from %s", template);
                return r;
        }
        *ret_id = strdup(id);
        *ret_path = strdup(path);
        return *ret_id && *ret_path ? 0 : -ENOMEM;
}

int verb_run(struct ctl *c, char **arguments) {
        _cleanup_free_ char *id = NULL, *sandbox = NULL;
        struct session s;
        int r;

        r = session_open(&s, c);
        if (r < 0)
                complain("Failed to set up an event loop: %s", strerror(-r));
        else
                r = session_create(&s, arguments[0], &id, &sandbox);
        if (r >= 0)
                s.status = s.n_signals > 0 ? EXIT_SIGNALED + s.signal : session_exec(&s, sandbox, id, arguments + 1);
        else if (s.n_signals > 0)
                s.status = EXIT_SIGNALED + s.signal;
        if (sandbox)
                session_remove(&s, sandbox);
        r = s.status;
        session_close(&s);
        return r;
}
