/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Starting commands: the caller's options become one request to the runner, with the caller's own descriptors beside
 * it. */

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "authorize.h"
#include "link.h"
#include "log.h"
#include "options.h"
#include "process.h"

#define START_TIMEOUT_USEC (60 * USEC_PER_SEC)
#define OUTPUT_DEFAULT (1024U * 1024U)
#define ARGUMENTS_MAX (768U * 1024U)
/* Commands of one sandbox that the guest hasn't started yet, and calls that wait for one of its processes. */
#define STARTING_MAX 64U
#define OUTPUT_MAX (16U * 1024U * 1024U)
/* What is kept of a command line to show it. */
#define LABEL_ARGV_MAX 256U

static const char *const stream_names[] = { "stdin", "stdout", "stderr" };

/* A command on its way: from the call to the runner's reply. */
struct start {
        struct manager *manager;
        char sandbox[ID_SIZE];
        sd_bus_message *call;
        uint32_t id;
        bool run;
        char **argv, **environment, **pipes;
        char *directory, *user;
        uint64_t timeout_usec, output_max;
        struct option_bytes input;
        int fds[3];  /* for the runner */
        int ours[3]; /* other ends, for the caller */
        json_t *label;
};

static void start_free(struct start *t) {
        sd_bus_message_unref(t->call);
        strv_free(t->argv);
        strv_free(t->environment);
        strv_free(t->pipes);
        free(t->directory);
        free(t->user);
        free(t->input.data);
        for (size_t i = 0; i < 3; i++) {
                close_fd(t->fds[i]);
                close_fd(t->ours[i]);
        }
        json_decref(t->label);
        free(t);
}
DEFINE_CLEANUP(struct start *, start_free)

static int read_options(struct start *t, sd_bus_message *m, sd_bus_error *error) {
        const struct option common[] = {
                { "Environment", OPTION_STRV, &t->environment, NULL },
                { "WorkingDirectory", OPTION_PATH, &t->directory, NULL },
                { "User", OPTION_STRING, &t->user, NULL },
                { "TimeoutUSec", OPTION_UINT64, &t->timeout_usec, NULL },
        };
        const struct option exec[] = {
                common[0],
                common[1],
                common[2],
                common[3],
                { "StandardInput", OPTION_FD, &t->fds[0], NULL },
                { "StandardOutput", OPTION_FD, &t->fds[1], NULL },
                { "StandardError", OPTION_FD, &t->fds[2], NULL },
                { "Pipes", OPTION_STRV, &t->pipes, NULL },
                {},
        };
        const struct option run[] = {
                common[0],
                common[1],
                common[2],
                common[3],
                { "Input", OPTION_BYTES, &t->input, NULL },
                { "OutputMax", OPTION_UINT64, &t->output_max, NULL },
                {},
        };
        int r;

        r = sd_bus_message_read_strv(m, &t->argv);
        if (r >= 0)
                r = options_read(m, t->run ? run : exec, error);
        if (r >= 0)
                r = options_read_flags(m, error);
        return r;
}

static int check(struct start *t, sd_bus_error *error) {
        if (!t->argv || isempty(t->argv[0]))
                return sd_bus_error_set(error, BUS_ERROR_INVALID_ARGUMENT, "No command is given");
        if (t->output_max > OUTPUT_MAX)
                return sd_bus_error_setf(error, BUS_ERROR_INVALID_ARGUMENT, "OutputMax is over %u", OUTPUT_MAX);
        if (t->timeout_usec > INT64_MAX)
                return sd_bus_error_set(error, BUS_ERROR_INVALID_ARGUMENT, "TimeoutUSec is too large");
        if (strv_size(t->argv) + strv_size(t->environment) > ARGUMENTS_MAX)
                return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED,
                                         "Arguments and environment are over %u bytes", ARGUMENTS_MAX);
        return options_check_environment(t->environment, error);
}

static int make_pipes(struct start *t, sd_bus_error *error) {
        for (char **name = t->pipes; name && *name; name++) {
                size_t i = 0;
                int pair[2];

                while (i < 3 && !streq(*name, stream_names[i]))
                        i++;
                if (i == 3 || t->fds[i] >= 0)
                        return sd_bus_error_setf(
                                error, BUS_ERROR_INVALID_ARGUMENT,
                                i == 3 ? "Pipes: no stream is called \"%s\""
                                       : "Pipes: \"%s\" is given twice or with a descriptor of its own",
                                *name);
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
                        return -errno;
                /* Each is used in one direction only: the other side learns of the end as with a pipe. */
                (void) shutdown(pair[0], i == 0 ? SHUT_WR : SHUT_RD);
                t->fds[i] = pair[0];
                t->ours[i] = pair[1];
        }
        return 0;
}

static int make_input(struct start *t) {
        int r;

        if (t->input.size == 0)
                return 0;
        t->fds[0] = memfd_create("input", MFD_CLOEXEC);
        if (t->fds[0] < 0)
                return -errno;
        r = write_all(t->fds[0], t->input.data, t->input.size);
        if (r >= 0 && lseek(t->fds[0], 0, SEEK_SET) < 0)
                r = -errno;
        return r;
}

static json_t *strings_to_json(char *const *l, size_t max) {
        json_t *array = json_array();
        size_t size = 0;

        for (; array && l && *l; l++) {
                size += strlen(*l) + 1;
                if (size > max)
                        break;
                if (json_array_append_new(array, json_string(*l)) < 0) {
                        json_decref(array);
                        return NULL;
                }
        }
        return array;
}

/* The sandbox's environment, then the command's: the agent lets the last of a name win. */
static json_t *environment_to_json(const struct sandbox *s, char *const *more) {
        json_t *array = strings_to_json(s->environment, SIZE_MAX), *extra = strings_to_json(more, SIZE_MAX);

        if (!array || !extra || json_array_extend(array, extra) < 0) {
                json_decref(array);
                array = NULL;
        }
        json_decref(extra);
        return array;
}

static const char *or_default(const char *given, const char *fallback) {
        return given ? given : strempty(fallback);
}

static json_t *request(const struct sandbox *s, struct start *t) {
        t->label = json_pack("{s:o,s:s,s:I}", "argv", strings_to_json(t->argv, LABEL_ARGV_MAX), "user",
                             or_default(t->user, s->user), "started_usec", (json_int_t) now_realtime_usec());
        return json_pack("{s:s,s:I,s:o,s:o,s:s,s:s,s:I,s:I,s:O}", "type", "exec", "process", (json_int_t) t->id,
                         "argv", strings_to_json(t->argv, SIZE_MAX), "environment",
                         environment_to_json(s, t->environment), "user", or_default(t->user, s->user), "directory",
                         or_default(t->directory, s->directory), "timeout_usec", (json_int_t) t->timeout_usec,
                         "capture", (json_int_t) (t->run ? t->output_max : 0), "label", t->label);
}

static int reply_exec(struct start *t, struct process *p) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        char path[96];
        int r;

        process_path(p, path);
        r = sd_bus_message_new_method_return(t->call, &reply);
        if (r >= 0)
                r = sd_bus_message_append(reply, "ou", path, p->id);
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'a', "h");
        for (char **name = t->pipes; r >= 0 && name && *name; name++)
                for (size_t i = 0; i < 3 && r >= 0; i++)
                        if (streq(*name, stream_names[i]))
                                r = sd_bus_message_append(reply, "h", t->ours[i]);
        if (r >= 0)
                r = sd_bus_message_close_container(reply);
        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

static void reply_failure(struct start *t, int error, const char *message) {
        const char *name = BUS_ERROR_UNAVAILABLE;

        switch (-error) {
        case ENOENT:
        case EACCES:
        case ENOTDIR:
        case ENOEXEC:
        case EISDIR:
        case ELOOP:
        case EPERM:
                name = BUS_ERROR_NOT_EXECUTABLE;
                break;
        case EINVAL:
                name = BUS_ERROR_INVALID_ARGUMENT;
                break;
        case E2BIG:
        case EMSGSIZE:
        case EAGAIN:
        case ENOSPC:
        case EMFILE:
                name = BUS_ERROR_LIMIT_EXCEEDED;
                break;
        case ETIMEDOUT:
                name = BUS_ERROR_TIMEOUT;
                break;
        default:
                break;
        }
        sd_bus_reply_method_errorf(t->call, name, "%s%s", error == -ENOENT ? "not found: " : "", message);
}

static void on_started(int error, const char *message, struct control_message *reply, void *userdata) {
        _cleanup_(start_freep) struct start *t = userdata;
        struct sandbox *s = sandbox_by_id(t->manager, t->sandbox);
        struct process *p;
        int r;

        if (s)
                s->n_starting--;
        if (error >= 0 && !s) {
                error = -ESRCH;
                message = "The sandbox is gone";
        }
        if (error < 0) {
                reply_failure(t, error, message);
                return;
        }
        r = process_new(s, t->id, &p);
        if (r < 0) {
                reply_failure(t, r, "Out of memory");
                return;
        }
        p->pid = (uint32_t) json_integer_value(json_object_get(reply->body, "pid"));
        /* As a later start of this program will know it. */
        p->started_usec = (uint64_t) json_integer_value(json_object_get(t->label, "started_usec"));
        p->argv = TAKE_PTR(t->argv);
        p->user = strdup(or_default(t->user, s->user));
        process_announce(p);
        if (t->run)
                p->run_call = sd_bus_message_ref(t->call);
        else if (reply_exec(t, p) < 0)
                reply_failure(t, -EIO, "The reply can't be sent");
}

static int send_start(struct sandbox *s, struct start *t, sd_bus_error *error) {
        const char *names[3];
        int fds[3], r;
        size_t n = 0;

        for (size_t i = 0; i < 3; i++)
                if (t->fds[i] >= 0) {
                        names[n] = stream_names[i];
                        fds[n++] = t->fds[i];
                }
        r = link_request(s->link, request(s, t), names, fds, n, START_TIMEOUT_USEC, on_started, t);
        if (r == -EMSGSIZE)
                return sd_bus_error_set(error, BUS_ERROR_LIMIT_EXCEEDED, "Arguments and environment are too large");
        for (size_t i = 0; i < 3; i++)
                t->fds[i] = close_fd(t->fds[i]);
        return r;
}

static int start(struct call *c, bool run, sd_bus_error *error) {
        _cleanup_(start_freep) struct start *t = calloc(1, sizeof(*t));
        struct sandbox *s = c->sandbox;
        int r;

        if (!t)
                return -ENOMEM;
        *t = (struct start){ .manager = c->manager,
                             .call = sd_bus_message_ref(c->message),
                             .run = run,
                             .output_max = OUTPUT_DEFAULT,
                             .fds = { -1, -1, -1 },
                             .ours = { -1, -1, -1 } };
        memcpy(t->sandbox, s->id, ID_SIZE);
        r = read_options(t, c->message, error);
        if (r >= 0)
                r = check(t, error);
        if (r >= 0 && (s->state != SANDBOX_RUNNING || !s->link))
                r = sd_bus_error_setf(error, BUS_ERROR_WRONG_STATE, "Sandbox %s is %s", s->id,
                                      s->state == SANDBOX_RUNNING ? "not reachable"
                                                                  : sandbox_state_to_string(s->state));
        if (r >= 0)
                r = run ? make_input(t) : make_pipes(t, error);
        if (r < 0)
                return r;
        if (s->n_starting >= STARTING_MAX)
                return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED, "%u commands are being started already",
                                         STARTING_MAX);
        t->id = ++s->n_commands;
        r = send_start(s, t, error);
        if (r < 0)
                return r;
        s->n_starting++;
        TAKE_PTR(t);
        return 0;
}

int process_exec(struct call *c, sd_bus_error *error) {
        return start(c, false, error);
}

int process_run(struct call *c, sd_bus_error *error) {
        return start(c, true, error);
}

/* Appends what a memfd holds. The bytes are the guest's: they are passed on, not looked at. */
static int append_output(sd_bus_message *reply, struct control_message *m, const char *name, uint64_t *ret_size) {
        _cleanup_close_ int fd = m ? control_message_take_fd(m, name) : -1;
        struct stat st = {};
        void *space;
        int r;

        /* Only a sealed memfd can be read without ever waiting for somebody, and doesn't change meanwhile. */
        if (fd >= 0 && (fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_WRITE)) != (F_SEAL_SHRINK | F_SEAL_WRITE))
                return -EBADMSG;
        if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_size > OUTPUT_MAX))
                return -EBADMSG;
        r = sd_bus_message_append_array_space(reply, 'y', (size_t) st.st_size, &space);
        if (r < 0)
                return r;
        if (st.st_size > 0 && pread(fd, space, (size_t) st.st_size, 0) != st.st_size)
                return -EBADMSG;
        *ret_size = (uint64_t) st.st_size;
        return 0;
}

static uint64_t truncated(struct control_message *m, const char *key, uint64_t kept) {
        json_int_t total = m ? json_integer_value(json_object_get(m->body, key)) : 0;

        return total > 0 && (uint64_t) total > kept ? (uint64_t) total - kept : 0;
}

void process_run_reply(struct process *p, struct control_message *m) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL, *call = TAKE_PTR(p->run_call);
        const char *result = m ? strempty(json_string_value(json_object_get(m->body, "result"))) : "lost";
        int status = m ? (int) json_integer_value(json_object_get(m->body, "status")) : 9, r;
        uint64_t n_out, n_err;

        r = sd_bus_message_new_method_return(call, &reply);
        if (r >= 0)
                r = sd_bus_message_append(reply, "si", result, status);
        if (r >= 0)
                r = append_output(reply, m, "stdout", &n_out);
        if (r >= 0)
                r = append_output(reply, m, "stderr", &n_err);
        if (r >= 0)
                r = sd_bus_message_append(reply, "tttt", truncated(m, "stdout_size", n_out),
                                          truncated(m, "stderr_size", n_err), p->cpu_usec, p->memory_peak);
        if (r >= 0)
                r = sd_bus_send(NULL, reply, NULL);
        if (r < 0)
                sd_bus_reply_method_errorf(call, BUS_ERROR_UNAVAILABLE, "The output can't be returned: %s",
                                           strerror(-r));
}
