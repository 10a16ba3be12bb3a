/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "vmm.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "log.h"
#include "tail.h"

#define CONSOLE_TAIL 16384
#define OUTPUT_TAIL 4096
/* Lines of QEMU's own that are logged; a VMM gone mad must not fill the journal. */
#define OUTPUT_LINES_MAX 100
/* Descriptors in QEMU: it opens a dozen itself. */
#define QEMU_FILES 256

struct Vmm {
        const struct vmm_callbacks *callbacks;
        void *userdata;

        pid_t pid; /* 0 once reaped */
        int status;

        Qmp *qmp;
        int qmp_fd, console_fd, output_fd;
        sd_event_source *qmp_source, *console_source, *output_source;
        struct tail console, output;
        unsigned n_lines;
};

/* The child's ends, in the order in which they are made. */
enum end { END_QMP, END_AGENT, END_CONSOLE, END_OUTPUT, END_NETWORK, _END_MAX };

static void close_ends(int ends[2 * _END_MAX]) {
        for (size_t i = 0; i < 2 * _END_MAX; i++)
                ends[i] = close_fd(ends[i]);
}

/* Ours are at even places, QEMU's at odd ones. */
static int make_ends(int ends[2 * _END_MAX]) {
        for (size_t i = 0; i < _END_MAX; i++) {
                int *pair = ends + 2 * i, r;

                if (i == END_OUTPUT)
                        r = pipe2(pair, O_CLOEXEC);
                else
                        r = socketpair(AF_UNIX, (i == END_NETWORK ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0, pair);
                if (r < 0 || fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0)
                        return -errno;
        }
        /* Nobody is at the other end of the network, as long as there is none. */
        ends[2 * END_NETWORK] = close_fd(ends[2 * END_NETWORK]);
        return 0;
}

static void inherit(int fd) {
        if (fd >= 0)
                (void) fcntl(fd, F_SETFD, 0);
}

__attribute__((noreturn)) static void child(const struct qemu_machine *m, char **args, int output_fd) {
        static char *const environment[] = { (char *) "LANG=C", NULL };
        const struct rlimit files = { QEMU_FILES, QEMU_FILES };
        sigset_t none;

        sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);
        (void) signal(SIGPIPE, SIG_DFL);
        (void) setrlimit(RLIMIT_NOFILE, &files);
        (void) dup2(output_fd, STDOUT_FILENO);
        (void) dup2(output_fd, STDERR_FILENO);

        if (close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
                _exit(127);
        for (const int *fd = (const int[]){ m->memory_fd, m->devices_fd, m->disk_fd, m->kernel_fd, m->initrd_fd,
                                            m->kvm_fd, m->qmp_fd, m->agent_fd, m->console_fd, m->network_fd, -2 };
             *fd != -2; fd++)
                inherit(*fd);
        execve(m->vmm, args, environment);
        dprintf(STDERR_FILENO, "%s: %s\n", m->vmm, strerror(errno));
        _exit(127);
}

static void broken(Vmm *v, bool closed, const char *message) {
        v->qmp_source = sd_event_source_disable_unref(v->qmp_source);
        v->callbacks->broken(closed, message, v->userdata);
}

/* Sends what the socket takes. */
static int qmp_flush(Vmm *v) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } ancillary;
        const char *data;
        size_t size;
        int fd;

        while ((size = qmp_output(v->qmp, &data, &fd)) > 0) {
                struct iovec iov = { (void *) data, size };
                struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
                ssize_t n;

                if (fd >= 0) {
                        message.msg_control = &ancillary;
                        message.msg_controllen = sizeof(ancillary);
                        ancillary.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                                                             .cmsg_type = SCM_RIGHTS,
                                                             .cmsg_len = CMSG_LEN(sizeof(int)) };
                        memcpy(CMSG_DATA(&ancillary.header), &fd, sizeof(int));
                }
                n = sendmsg(v->qmp_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n < 0)
                        return errno == EAGAIN ? sd_event_source_set_io_events(v->qmp_source, EPOLLIN | EPOLLOUT)
                                               : -errno;
                qmp_output_sent(v->qmp, (size_t) n);
        }
        return sd_event_source_set_io_events(v->qmp_source, EPOLLIN);
}

static int on_qmp(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Vmm *v = userdata;
        char buffer[8192];
        ssize_t n;
        int r;

        if (revents & EPOLLOUT && qmp_flush(v) < 0)
                return broken(v, true, "QEMU's monitor takes no commands"), 0;
        n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return 0;
        if (n <= 0)
                return broken(v, true, "QEMU's monitor closed"), 0;
        r = qmp_feed(v->qmp, buffer, (size_t) n);
        if (r < 0)
                broken(v, false, "QEMU's monitor spoke nonsense");
        return 0;
}

static int on_console(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Vmm *v = userdata;
        char buffer[CONSOLE_TAIL];
        ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);

        if (n > 0)
                tail_add(&v->console, buffer, (size_t) n);
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
                v->console_source = sd_event_source_disable_unref(v->console_source);
        return 0;
}

static void log_line(Vmm *v, const char *line, size_t size) {
        _cleanup_free_ char *text = NULL;

        if (size == 0 || v->n_lines > OUTPUT_LINES_MAX)
                return;
        if (v->n_lines++ == OUTPUT_LINES_MAX) {
                log_warning("QEMU says too much: the rest isn't logged.");
                return;
        }
        text = text_sanitise(line, size, 1024);
        if (text)
                log_notice("QEMU: %s", text);
}

/* A line that comes in pieces is logged in pieces. */
static void log_output(Vmm *v, const char *data, size_t size) {
        const char *end = data + size;

        while (data < end) {
                const char *newline = memchr(data, '\n', (size_t) (end - data));
                const char *line_end = newline ? newline : end;

                log_line(v, data, (size_t) (line_end - data));
                data = newline ? newline + 1 : end;
        }
}

static int on_output(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Vmm *v = userdata;
        char buffer[OUTPUT_TAIL];
        ssize_t n = read(fd, buffer, sizeof(buffer));

        if (n > 0) {
                tail_add(&v->output, buffer, (size_t) n);
                log_output(v, buffer, (size_t) n);
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR))
                v->output_source = sd_event_source_disable_unref(v->output_source);
        return 0;
}

static int watch(Vmm *v, sd_event *event) {
        int r;

        r = sd_event_add_io(event, &v->qmp_source, v->qmp_fd, EPOLLIN, on_qmp, v);
        if (r >= 0)
                r = sd_event_add_io(event, &v->console_source, v->console_fd, EPOLLIN, on_console, v);
        if (r >= 0)
                r = sd_event_add_io(event, &v->output_source, v->output_fd, EPOLLIN, on_output, v);
        /* What is only kept for error messages waits for what matters. */
        if (r >= 0)
                r = sd_event_source_set_priority(v->console_source, SD_EVENT_PRIORITY_IDLE);
        if (r >= 0)
                r = sd_event_source_set_priority(v->output_source, SD_EVENT_PRIORITY_IDLE);
        return r;
}

static int vmm_new(const struct vmm_callbacks *callbacks, void *userdata, Vmm **ret) {
        _cleanup_(vmm_freep) Vmm *v = calloc(1, sizeof(*v));
        int r;

        if (!v)
                return -ENOMEM;
        v->callbacks = callbacks;
        v->userdata = userdata;
        v->qmp_fd = v->console_fd = v->output_fd = -1;
        v->console.max = CONSOLE_TAIL;
        v->output.max = OUTPUT_TAIL;
        r = qmp_new(callbacks->event, userdata, &v->qmp);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(v);
        return 0;
}

int vmm_start(sd_event *event, struct qemu_machine *m, const struct vmm_callbacks *callbacks, void *userdata,
              Vmm **ret, int *ret_agent_fd) {
        int ends[2 * _END_MAX] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 };
        _cleanup_(vmm_freep) Vmm *v = NULL;
        _cleanup_strv_free_ char **args = NULL;
        int r;

        r = vmm_new(callbacks, userdata, &v);
        if (r >= 0)
                r = make_ends(ends);
        if (r < 0)
                goto finish;
        m->qmp_fd = ends[2 * END_QMP + 1];
        m->agent_fd = ends[2 * END_AGENT + 1];
        m->console_fd = ends[2 * END_CONSOLE + 1];
        m->network_fd = ends[2 * END_NETWORK + 1];
        r = qemu_args(m, &args);
        if (r < 0)
                goto finish;

        v->pid = fork();
        if (v->pid == 0)
                child(m, args, ends[2 * END_OUTPUT + 1]);
        if (v->pid < 0) {
                v->pid = 0;
                r = -errno;
                goto finish;
        }

        v->qmp_fd = TAKE_FD(ends[2 * END_QMP]);
        v->console_fd = TAKE_FD(ends[2 * END_CONSOLE]);
        v->output_fd = TAKE_FD(ends[2 * END_OUTPUT]);
        r = watch(v, event);
        if (r >= 0)
                r = qmp_flush(v);
        if (r < 0)
                goto finish;
        *ret_agent_fd = TAKE_FD(ends[2 * END_AGENT]);
        *ret = TAKE_PTR(v);
finish:
        close_ends(ends);
        return r;
}

void vmm_free(Vmm *v) {
        if (!v)
                return;
        if (v->pid > 0) {
                (void) kill(v->pid, SIGKILL);
                while (waitpid(v->pid, NULL, 0) < 0 && errno == EINTR)
                        ;
        }
        sd_event_source_disable_unref(v->qmp_source);
        sd_event_source_disable_unref(v->console_source);
        sd_event_source_disable_unref(v->output_source);
        close_fd(v->qmp_fd);
        close_fd(v->console_fd);
        close_fd(v->output_fd);
        qmp_free(v->qmp);
        tail_done(&v->console);
        tail_done(&v->output);
        free(v);
}

pid_t vmm_pid(const Vmm *v) {
        return v->pid;
}

int vmm_execute(Vmm *v, const char *command, json_t *arguments, int fd, qmp_reply_t reply, void *userdata) {
        int r;

        if (!v->qmp_source) {
                json_decref(arguments);
                close_fd(fd);
                return -ENOTCONN;
        }
        r = qmp_execute(v->qmp, command, arguments, fd, reply, userdata);
        return r < 0 ? r : qmp_flush(v);
}

void vmm_exited(Vmm *v, int status) {
        v->pid = 0;
        v->status = status;
}

bool vmm_is_running(const Vmm *v) {
        return v->pid > 0;
}

/* Last words may still be in the pipes of a process that is gone. */
static void drain(Vmm *v) {
        for (int i = 0; i < 16 && v->output_source; i++)
                (void) on_output(NULL, v->output_fd, EPOLLIN, v);
        for (int i = 0; i < 16 && v->console_source; i++)
                (void) on_console(NULL, v->console_fd, EPOLLIN, v);
}

char *vmm_explain(Vmm *v, bool console) {
        _cleanup_free_ char *output = NULL, *screen = NULL, *how = NULL;
        char *text;
        int r;

        drain(v);
        output = tail_text(&v->output);
        screen = console ? tail_text(&v->console) : NULL;
        if (v->pid > 0)
                r = asprintf(&how, "QEMU runs");
        else if (WIFSIGNALED(v->status))
                r = asprintf(&how, "QEMU was ended by signal %d", WTERMSIG(v->status));
        else
                r = asprintf(&how, "QEMU exited with status %d", WEXITSTATUS(v->status));
        if (r < 0)
                return NULL;
        r = asprintf(&text, "%s%s%s%s%s", how, output ? "; it said: " : "", strempty(output),
                     screen ? "; the console's last lines:\n" : "", strempty(screen));
        return r < 0 ? NULL : text;
}
