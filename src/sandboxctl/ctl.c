/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "ctl.h"

#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#include "format.h"
#include "polkit-agent.h"

int ctl_connect(struct ctl *c) {
        int r;

        r = sd_bus_open_system(&c->bus);
        if (r < 0) {
                complain("Failed to connect to the system bus: %s", strerror(-r));
                return r;
        }
        if (c->options->no_ask_password)
                return 0;
        r = sd_bus_set_allow_interactive_authorization(c->bus, true);
        if (r >= 0)
                /* Root isn't asked, and without a terminal nobody can be: no agent then. A desktop's own may still be.
                 */
                (void) polkit_agent_start(&c->agent);
        return r;
}

void ctl_done(struct ctl *c) {
        c->agent = polkit_agent_stop(c->agent);
        c->bus = sd_bus_flush_close_unref(c->bus);
}

static void say(const char *format, va_list ap, const char *more) {
        _cleanup_free_ char *text = NULL, *safe = NULL;

        if (vasprintf(&text, format, ap) < 0) {
                text = NULL;
                return;
        }
        /* Lines stay lines: the end of a bake's console is part of its error. */
        safe = escape_terminal(text, "\n\t");
        fprintf(stderr, "sandboxctl: %s%s%s\n", strempty(safe), more ? ": " : "", strempty(more));
}

int complain(const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        say(format, ap, NULL);
        va_end(ap);
        return EXIT_FAILURE;
}

int complain_oom(void) {
        return complain("Out of memory");
}

bool service_is_gone(const sd_bus_error *error) {
        return sd_bus_error_has_names(error, SD_BUS_ERROR_NO_REPLY, SD_BUS_ERROR_DISCONNECTED,
                                      SD_BUS_ERROR_NAME_HAS_NO_OWNER, SD_BUS_ERROR_SERVICE_UNKNOWN) > 0;
}

int complain_bus(const sd_bus_error *error, int r, const char *format, ...) {
        _cleanup_free_ char *safe = NULL;
        const char *message = error && error->message ? error->message : strerror(abs(r));
        va_list ap;

        if (sd_bus_error_has_names(error, SD_BUS_ERROR_NAME_HAS_NO_OWNER, SD_BUS_ERROR_SERVICE_UNKNOWN) > 0)
                message = "sandboxd isn't running and can't be started; see systemctl status sandboxd.service";
        else if (sd_bus_error_has_names(error, SD_BUS_ERROR_NO_REPLY, SD_BUS_ERROR_DISCONNECTED) > 0)
                message = "sandboxd went away before it answered; see systemctl status sandboxd.service";
        else if (sd_bus_error_has_name(error, SD_BUS_ERROR_INTERACTIVE_AUTHORIZATION_REQUIRED))
                message = "This needs an authorization, and nobody can be asked for it";
        safe = escape_terminal(message, "\n\t");
        if (safe && strncmp(safe, "Failed to ", 10) == 0)
                return complain("%s", message);
        va_start(ap, format);
        say(format, ap, strempty(safe));
        va_end(ap);
        return EXIT_FAILURE;
}

int ctl_method(struct ctl *c, const char *path, const char *interface, const char *member, sd_bus_message **ret) {
        return sd_bus_message_new_method_call(c->bus, ret, BUS_NAME, path, interface, member);
}

int ctl_call(struct ctl *c, const char *path, const char *interface, const char *member, sd_bus_error *error,
             sd_bus_message **ret_reply, const char *types, ...) {
        _cleanup_message_ sd_bus_message *m = NULL;
        va_list ap;
        int r;

        r = ctl_method(c, path, interface, member, &m);
        if (r < 0)
                return r;
        va_start(ap, types);
        r = sd_bus_message_appendv(m, types, ap);
        va_end(ap);
        if (r < 0)
                return r;
        return sd_bus_call(c->bus, m, CALL_TIMEOUT_USEC, error, ret_reply);
}

int find_sandbox(struct ctl *c, const char *id_or_name, char **ret_path) {
        _cleanup_message_ sd_bus_message *reply = NULL;
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *path;
        int r;

        r = ctl_call(c, BUS_PATH, BUS_INTERFACE_MANAGER, "GetSandbox", &error, &reply, "st", id_or_name, UINT64_C(0));
        if (r >= 0)
                r = sd_bus_message_read(reply, "o", &path);
        if (r < 0) {
                complain_bus(&error, r, "Failed to find sandbox %s", id_or_name);
                return r;
        }
        *ret_path = strdup(path);
        if (!*ret_path) {
                complain_oom();
                return -ENOMEM;
        }
        return 0;
}

const char *user_name(uint64_t uid, char buffer[64]) {
        const struct passwd *p = uid <= UINT32_MAX ? getpwuid((uid_t) uid) : NULL;

        if (p)
                snprintf(buffer, 64, "%s", p->pw_name);
        else
                snprintf(buffer, 64, "%llu", (unsigned long long) uid);
        return buffer;
}

int output_begin(struct output *out) {
        *out = (struct output){};
        out->f = open_memstream(&out->data, &out->size);
        return out->f ? 0 : -errno;
}

static size_t count_lines(const struct output *out) {
        size_t n = 0;

        for (size_t i = 0; i < out->size; i++)
                n += out->data[i] == '\n';
        return n;
}

/* NULL: print it yourself. */
static FILE *pager_open(const struct output *out, const struct options *o) {
        const char *pager = getenv("PAGER");
        struct winsize w;

        if (o->no_pager || !isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_row == 0 ||
            count_lines(out) < w.ws_row)
                return NULL;
        if (!pager)
                pager = "less";
        if (isempty(pager) || streq(pager, "cat"))
                return NULL;
        /* For less: chop long lines, as rows stay readable then, and leave the text on the screen. */
        setenv("LESS", "FRSXMK", false);
        return popen(pager, "w");
}

int output_end(struct output *out, const struct options *o, int r) {
        FILE *pager;

        if (out->f && fclose(out->f) != 0 && r >= 0)
                r = -ENOMEM;
        if (r < 0) {
                free(out->data);
                return complain("Failed to print: %s", strerror(-r));
        }
        pager = pager_open(out, o);
        if (pager) {
                /* ^C is for the pager, which may also be left before it has read everything. */
                signal(SIGINT, SIG_IGN);
                signal(SIGPIPE, SIG_IGN);
        }
        fwrite(out->data, 1, out->size, pager ?: stdout);
        if (pager)
                pclose(pager);
        else if (fflush(stdout) != 0)
                r = complain("Failed to write to standard output: %s", strerror(errno));
        free(out->data);
        return r;
}
