/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A command's pipes, and the credits that tie them to the host's.
 *
 * Outputs are read only as far as the host has given credit. When nobody listens any more (the host is gone, or the
 * command has exited and left processes behind) they are read all the same and dropped, so that no process blocks on a
 * full pipe or dies of SIGPIPE for our sake. */

#include <errno.h>
#include <sys/ioctl.h>

#include "command.h"

/* With its header a frame fits one write to the port. */
#define READ_MAX (AGENT_DATA_MAX - AGENT_HEADER_SIZE)
#define CREDIT_MIN (AGENT_WINDOW / 4)

/* ---- towards the command ---- */

void input_close(struct input *in) {
        source_drop(&in->source);
        in->source.fd = close_fd(in->source.fd);
        free(in->data);
        in->data = NULL;
        in->size = in->sent = in->allocated = 0;
}

/* The command has closed its end: the host need send no more. */
static void input_refused(struct input *in) {
        struct command *c = in->command;

        input_close(in);
        if (!COMMAND_IS_DETACHED(c) && !c->over)
                (void) agent_put_frame(port_queue(NOW), AGENT_CLOSE, AGENT_STDIN, c->stream, NULL, 0);
}

static void input_passed_on(struct input *in, size_t n) {
        struct command *c = in->command;

        in->owed += (uint32_t) n;
        if (in->owed < CREDIT_MIN || COMMAND_IS_DETACHED(c) || c->over)
                return;
        (void) agent_put_credit(port_queue(NOW), c->stream, AGENT_STDIN, in->owed);
        in->window += in->owed;
        in->owed = 0;
}

/* Writes what the pipe takes. Returns how much, or a negative errno; -EAGAIN is 0. */
static ssize_t input_write(struct input *in, const uint8_t *data, size_t size) {
        size_t done = 0;

        while (done < size) {
                ssize_t n = write(in->source.fd, data + done, size - done);
                if (n < 0)
                        return errno == EAGAIN ? (ssize_t) done : -errno;
                done += (size_t) n;
        }
        return (ssize_t) done;
}

/* Writes what waits, then waits for room, or closes after the last byte. */
static void input_flush(struct input *in) {
        if (in->sent < in->size) {
                ssize_t n = input_write(in, in->data + in->sent, in->size - in->sent);
                if (n < 0)
                        return input_refused(in);
                in->sent += (size_t) n;
                input_passed_on(in, (size_t) n);
        }
        if (in->sent == in->size) {
                free(in->data);
                in->data = NULL;
                in->size = in->sent = in->allocated = 0;
                if (in->eof)
                        return input_close(in);
        }
        /* EPOLLERR comes unasked, when the last reader closes its end. */
        source_watch(&in->source, work_loop, in->sent < in->size ? EPOLLOUT : 0);
}

static void input_ready(struct source *s, uint32_t events) {
        struct input *in = (struct input *) s; /* the first member */

        if (events & EPOLLERR)
                return input_refused(in);
        input_flush(in);
}

void input_init(struct input *in, struct command *c, int fd) {
        *in = (struct input){
                .source = { .fd = fd, .loop = -1, .ready = input_ready },
                .command = c,
                .window = fd >= 0 ? AGENT_WINDOW : 0,
        };
        if (fd >= 0)
                source_watch(&in->source, work_loop, 0);
}

static int input_store(struct input *in, const uint8_t *data, size_t size) {
        if (in->sent > 0) {
                memmove(in->data, in->data + in->sent, in->size - in->sent);
                in->size -= in->sent;
                in->sent = 0;
        }
        if (in->allocated - in->size < size) {
                size_t allocated = MAX(in->allocated, 16384U);
                while (allocated - in->size < size)
                        allocated *= 2;

                uint8_t *p = realloc(in->data, allocated);
                if (!p)
                        return -ENOMEM;
                in->data = p;
                in->allocated = allocated;
        }
        memcpy(in->data + in->size, data, size);
        in->size += size;
        return 0;
}

int input_add(struct input *in, const uint8_t *data, size_t size) {
        if (in->eof || size > in->window)
                return -EPROTO;
        in->window -= (uint32_t) size;
        if (in->source.fd < 0)
                return 0; /* CLOSE is under way to the host */

        if (in->sent == in->size) {
                ssize_t n = input_write(in, data, size);
                if (n < 0) {
                        input_refused(in);
                        return 0;
                }
                input_passed_on(in, (size_t) n);
                data += n;
                size -= (size_t) n;
        }
        if (size == 0)
                return 0;

        int r = input_store(in, data, size);
        if (r >= 0)
                source_watch(&in->source, work_loop, EPOLLOUT);
        return r;
}

void input_finish(struct input *in) {
        in->eof = true;
        if (in->source.fd >= 0)
                input_flush(in);
}

/* ---- from the command ---- */

static uint8_t scratch[READ_MAX];

static bool output_is_dropped(const struct output *o) {
        return o->ended || COMMAND_IS_DETACHED(o->command);
}

void output_close(struct output *o) {
        source_drop(&o->source);
        o->source.fd = close_fd(o->source.fd);
}

/* Queues EOF. The pipe stays open and is emptied for as long as a leftover process may write to it. */
void output_end(struct output *o) {
        struct command *c = o->command;

        if (o->ended)
                return;
        o->ended = true;
        if (!COMMAND_IS_DETACHED(c))
                (void) agent_put_frame(port_queue(IN_ORDER), AGENT_EOF, o->channel, c->stream, NULL, 0);
        if (o->source.fd >= 0)
                source_watch(&o->source, output_loop, EPOLLIN);
        command_output_ended(c);
}

static void output_drop(struct output *o) {
        ssize_t n = read(o->source.fd, scratch, sizeof(scratch));

        if (n == 0 || (n < 0 && errno != EAGAIN)) {
                output_close(o);
                output_end(o);
        }
}

static void output_ready(struct source *s, uint32_t events _unused_) {
        struct output *o = (struct output *) s; /* the first member */
        struct command *c = o->command;
        size_t size = MIN(o->credit, READ_MAX);
        ssize_t n;

        if (output_is_dropped(o))
                return output_drop(o);
        if (port_is_congested())
                return; /* the others of this round have filled the queue */
        if (c->pid == 0)
                size = MIN(size, o->to_drain);
        if (size == 0)
                return source_drop(&o->source); /* output_credit() takes it up again */

        n = read(o->source.fd, scratch, size);
        if (n < 0 && errno == EAGAIN)
                return;
        if (n <= 0) {
                output_close(o);
                return output_end(o);
        }
        (void) agent_put_frame(port_queue(IN_ORDER), AGENT_DATA, o->channel, c->stream, scratch, (size_t) n);
        o->credit -= (uint32_t) n;
        if (c->pid == 0) {
                o->to_drain -= (uint32_t) n;
                if (o->to_drain == 0)
                        output_end(o);
        }
}

void output_init(struct output *o, struct command *c, uint16_t channel, int fd) {
        *o = (struct output){
                .source = { .fd = fd, .loop = -1, .ready = output_ready },
                .command = c,
                .channel = channel,
                .credit = AGENT_WINDOW,
        };
}

void output_start(struct output *o) {
        if (o->source.fd >= 0)
                source_watch(&o->source, output_loop, EPOLLIN);
}

void output_drain(struct output *o) {
        int n = 0;

        if (o->ended)
                return;
        if (o->source.fd >= 0 && ioctl(o->source.fd, FIONREAD, &n) >= 0 && n > 0) {
                o->to_drain = (uint32_t) n;
                if (o->credit > 0)
                        output_start(o);
        } else
                output_end(o);
}

int output_credit(struct output *o, uint32_t bytes) {
        if (bytes > AGENT_WINDOW - o->credit)
                return -EPROTO;
        o->credit += bytes;
        if (o->source.fd >= 0 && o->credit > 0 && o->command->started)
                source_watch(&o->source, output_loop, EPOLLIN);
        return 0;
}
