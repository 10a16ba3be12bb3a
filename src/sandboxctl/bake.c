/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* bake: starts a job, shows how far it is, and returns with it. */

#include <signal.h>
#include <sys/ioctl.h>

#include "format.h"
#include "values.h"

struct bake {
        struct ctl *ctl;
        sd_event *event;
        const char *template;
        char *job; /* its object */
        bool show; /* the line with the progress */
        double progress;
        char *doing;
        unsigned n_signals;
        int status;
};

/* One line that is written over again and again, so it must not wrap. */
static void show_progress(struct bake *b) {
        _cleanup_free_ char *line = NULL, *safe = NULL;
        struct winsize w;
        size_t columns = 0, i = 0;

        if (!b->show || asprintf(&line, "[%3.0f%%] %s: %s", b->progress * 100, b->template, strempty(b->doing)) < 0)
                return;
        safe = escape_terminal(line, NULL);
        if (!safe)
                return;
        if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col < 20)
                w.ws_col = 80;
        while (safe[i] && columns + 1 < w.ws_col)
                columns += ((unsigned char) safe[++i] & 0xc0) != 0x80;
        fprintf(stderr, "\r\033[K%.*s", (int) i, safe);
}

static void clear_progress(struct bake *b) {
        if (b->show)
                fputs("\r\033[K", stderr);
}

static void take_properties(struct bake *b, const json_t *properties) {
        const json_t *progress = json_object_get(properties, "Progress");
        const char *doing = json_string_value(json_object_get(properties, "Status"));

        if (progress)
                b->progress = json_number_value(progress);
        if (doing) {
                free(b->doing);
                b->doing = strdup(doing);
        }
        show_progress(b);
}

static int on_properties_changed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        struct bake *b = userdata;
        _cleanup_json_ json_t *changed = NULL;

        if (streq_ptr(b->job, sd_bus_message_get_path(m)) && sd_bus_message_skip(m, "s") >= 0 &&
            read_value(m, &changed) >= 0)
                take_properties(b, changed);
        return 0;
}

static int on_job_removed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        struct bake *b = userdata;
        const char *job, *result, *error;
        uint32_t id;

        if (sd_bus_message_read(m, "uoss", &id, &job, &result, &error) < 0 || !streq_ptr(b->job, job))
                return 0;
        clear_progress(b);
        if (streq(result, "done")) {
                if (b->show)
                        fprintf(stderr, "Template %s is ready.\n", b->template);
                b->status = EXIT_SUCCESS;
        } else if (streq(result, "canceled"))
                b->status = complain("Baking %s was canceled", b->template);
        else
                b->status = complain_bus(&SD_BUS_ERROR_MAKE_CONST(BUS_ERROR_START_FAILED, error), 0,
                                         "Failed to bake %s", b->template);
        return sd_event_exit(b->event, 0);
}

static int on_owner_changed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        struct bake *b = userdata;
        const char *name, *before, *after;

        if (sd_bus_message_read(m, "sss", &name, &before, &after) < 0 || !*before)
                return 0;
        clear_progress(b);
        b->status =
                complain("sandboxd went away while it baked %s; see sandboxctl templates and bake again", b->template);
        return sd_event_exit(b->event, 0);
}

static int on_canceled(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        const sd_bus_error *error = sd_bus_message_get_error(reply);

        /* What has ended meanwhile says so itself. */
        if (error && !sd_bus_error_has_names(error, BUS_ERROR_NO_SUCH_JOB, SD_BUS_ERROR_UNKNOWN_OBJECT))
                complain_bus(error, 0, "Failed to cancel");
        return 0;
}

static int on_signal(sd_event_source *source, const struct signalfd_siginfo *si, void *userdata) {
        struct bake *b = userdata;
        _cleanup_message_ sd_bus_message *m = NULL;
        int r;

        if (b->n_signals++ > 0) {
                clear_progress(b);
                b->status = complain("Not waiting for the end of the canceled job");
                return sd_event_exit(b->event, 0);
        }
        r = ctl_method(b->ctl, b->job, BUS_INTERFACE_JOB, "Cancel", &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        return r < 0 ? r : sd_bus_call_async(b->ctl->bus, NULL, m, on_canceled, b, CALL_TIMEOUT_USEC);
}

/* Before the job is there, so that not even one that ends at once is missed. */
static int watch_jobs(struct bake *b) {
        sd_bus *bus = b->ctl->bus;
        int r;

        r = sd_bus_match_signal(bus, NULL, BUS_NAME, BUS_PATH, BUS_INTERFACE_MANAGER, "JobRemoved", on_job_removed, b);
        if (r >= 0)
                r = sd_bus_add_match(bus, NULL,
                                     "type='signal',sender='" BUS_NAME "',path_namespace='" BUS_PATH_JOB "',"
                                     "interface='org.freedesktop.DBus.Properties',member='PropertiesChanged'",
                                     on_properties_changed, b);
        if (r >= 0)
                r = sd_bus_add_match(bus, NULL,
                                     "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',"
                                     "interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='" BUS_NAME "'",
                                     on_owner_changed, b);
        return r;
}

static int start_job(struct bake *b) {
        _cleanup_message_ sd_bus_message *m = NULL, *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *job;
        int r;

        r = ctl_method(b->ctl, BUS_PATH, BUS_INTERFACE_MANAGER, "BakeTemplate", &m);
        if (r >= 0)
                r = sd_bus_message_append(m, "s", b->template);
        if (r >= 0)
                r = b->ctl->options->force ? sd_bus_message_append(m, "a{sv}", 1, "Force", "b", true)
                                           : sd_bus_message_append(m, "a{sv}", 0);
        if (r >= 0)
                r = sd_bus_message_append(m, "t", UINT64_C(0));
        if (r >= 0)
                r = sd_bus_call(b->ctl->bus, m, CALL_TIMEOUT_USEC, &error, &reply);
        if (r >= 0)
                r = sd_bus_message_read(reply, "o", &job);
        if (r < 0) {
                complain_bus(&error, r, "Failed to bake %s", b->template);
                return r;
        }
        b->job = strdup(job);
        return b->job ? 0 : -ENOMEM;
}

static int follow_job(struct bake *b) {
        static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
        _cleanup_json_ json_t *properties = NULL;
        sigset_t set;
        int r = 0;

        sigemptyset(&set);
        for (size_t i = 0; i < ELEMENTSOF(signals); i++)
                sigaddset(&set, signals[i]);
        sigprocmask(SIG_BLOCK, &set, NULL);
        for (size_t i = 0; i < ELEMENTSOF(signals) && r >= 0; i++)
                r = sd_event_add_signal(b->event, NULL, signals[i], on_signal, b);
        /* Where it is now; that it may be over already is the business of JobRemoved. */
        if (r >= 0 && b->show && get_properties(b->ctl, b->job, BUS_INTERFACE_JOB, NULL, &properties) >= 0)
                take_properties(b, properties);
        return r < 0 ? r : sd_event_loop(b->event);
}

int verb_bake(struct ctl *c, char **arguments) {
        struct bake b = { .ctl = c,
                          .template = arguments[0],
                          .status = EXIT_FAILURE,
                          .show = isatty(STDERR_FILENO) && !c->options->quiet };
        int r;

        r = sd_event_new(&b.event);
        if (r >= 0)
                r = sd_bus_attach_event(c->bus, b.event, SD_EVENT_PRIORITY_NORMAL);
        if (r >= 0)
                r = watch_jobs(&b);
        if (r < 0)
                complain("Failed to prepare for a job: %s", strerror(-r));
        else if (start_job(&b) >= 0) {
                r = follow_job(&b);
                if (r < 0)
                        complain("Failed to follow the job: %s", strerror(-r));
        }
        sd_bus_detach_event(c->bus);
        sd_event_unref(b.event);
        free(b.job);
        free(b.doing);
        return b.status;
}
