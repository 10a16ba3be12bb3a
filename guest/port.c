/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The virtio-serial port: frames in, frames out, never blocking.
 *
 * Watched edge-triggered: while the host's side is closed the port reports EPOLLHUP without end, but its wait queue is
 * woken when the host opens it, which is all that we want to hear of.
 *
 * Out go two queues. NOW holds answers and credits, IN_ORDER holds output and what must come after it. They change
 * over between frames only. While sealed (from FROZEN on) what is queued later stays. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

#include "agent.h"

#define PORT_WAIT_USEC (10 * USEC_PER_SEC)
#define WRITE_MAX (32U * 1024U)      /* the kernel takes no more at once */
#define CONGESTED (256U * 1024U)     /* with more queued than this, pipes aren't read */
#define ANSWERS_MAX (1024U * 1024U)  /* with more answers queued than this, the host isn't read */
#define READS_AT_ONCE 8              /* then other work has its turn */
#define LOST_AFTER_USEC USEC_PER_SEC /* closed for so long, a port has lost its connection */
#define UNSEALED SIZE_MAX

struct queue {
        struct agent_buffer buffer;
        size_t sent;  /* bytes at its start that have left */
        size_t limit; /* bytes of it that may leave */
};

static struct queue queues[] = {
        [NOW] = { .limit = UNSEALED },
        [IN_ORDER] = { .limit = UNSEALED },
};
static struct queue *begun; /* of which a part of a frame has left */
static size_t begun_left;
static struct agent_reader reader;
static bool readable;
static bool deaf; /* what comes is ignored, until a connection begins */

/* The driver's word for "the host's side is closed", which isn't to be taken at once: its messages of closed and
 * opened come by another queue than the data and are handled later. In a machine that was just restored HELLO can be
 * here first, before the closing of the captured machine's connection. So data waits while the driver calls the port
 * closed, and only a port that stays so has lost its connection. */
static bool away;
static uint64_t away_since;
static bool begun_is_cut; /* the rest of what has begun to leave belongs to a connection that is gone */

static void port_ready(struct source *s, uint32_t events);
static struct source port = { .fd = -1, .loop = -1, .ready = port_ready };

struct agent_buffer *port_queue(enum priority p) {
        return &queues[p].buffer;
}

static size_t queue_pending(const struct queue *q) {
        size_t end = MIN(q->buffer.size, q->limit);
        return end > q->sent ? end - q->sent : 0;
}

static size_t queue_stored(const struct queue *q) {
        return q->buffer.size - q->sent;
}

bool port_is_congested(void) {
        return queue_stored(&queues[IN_ORDER]) >= CONGESTED || queue_stored(&queues[NOW]) >= ANSWERS_MAX;
}

bool port_is_waiting(void) {
        return queue_pending(&queues[NOW]) > 0 || queue_pending(&queues[IN_ORDER]) > 0;
}

void port_seal(bool seal) {
        for (size_t i = 0; i < ELEMENTSOF(queues); i++)
                queues[i].limit = seal ? queues[i].buffer.size : UNSEALED;
}

/* Forgets what was queued, but for the rest of a frame that has begun to leave. */
void port_clear(bool connection_lost) {
        for (size_t i = 0; i < ELEMENTSOF(queues); i++) {
                struct queue *q = &queues[i];

                q->limit = UNSEALED;
                if (q == begun && !connection_lost && !begun_is_cut)
                        q->buffer.size = q->sent + begun_left;
                else
                        q->buffer.size = q->sent = 0;
                q->buffer.error = 0;
        }
        if (connection_lost || begun_is_cut)
                begun = NULL;
        begun_is_cut = false;
}

static void queue_advance(struct queue *q, size_t n) {
        q->sent += n;
        if (q->sent == q->buffer.size) {
                if (q->buffer.allocated > 2 * CONGESTED)
                        agent_buffer_done(&q->buffer);
                if (q->limit != UNSEALED)
                        q->limit -= MIN(q->limit, q->sent);
                q->buffer.size = q->sent = 0;
        } else if (q->sent >= CONGESTED / 2) {
                memmove(q->buffer.data, q->buffer.data + q->sent, q->buffer.size - q->sent);
                if (q->limit != UNSEALED)
                        q->limit -= q->sent;
                q->buffer.size -= q->sent;
                q->sent = 0;
        }
}

/* Chooses what leaves next and sets how much of it is one piece. */
static struct queue *queue_next(void) {
        struct queue *q = &queues[IN_ORDER];

        if (queue_pending(&queues[NOW]) > 0) {
                begun_left = queue_pending(&queues[NOW]);
                return &queues[NOW];
        }
        if (queue_pending(q) == 0)
                return NULL;

        const uint8_t *p = q->buffer.data + q->sent;
        begun_left =
                AGENT_HEADER_SIZE + ((size_t) p[0] | (size_t) p[1] << 8 | (size_t) p[2] << 16 | (size_t) p[3] << 24);
        return q;
}

void port_flush(void) {
        for (size_t i = 0; i < ELEMENTSOF(queues); i++)
                if (queues[i].buffer.error) {
                        int r = queues[i].buffer.error;
                        port_clear(false);
                        port_fail(0, r, "the agent couldn't queue a frame");
                }

        while (!begun_is_cut) {
                struct queue *q = begun ? begun : queue_next();
                if (!q)
                        return;

                ssize_t n = write(port.fd, q->buffer.data + q->sent, MIN(begun_left, WRITE_MAX));
                if (n <= 0)
                        return; /* full, or nobody there: the port wakes us */

                begun_left -= (size_t) n;
                begun = begun_left > 0 ? q : NULL;
                queue_advance(q, (size_t) n);
        }
}

/* The host broke the rules. Says so, and takes nothing more from this connection. */
void port_fail(uint32_t stream, int error, const char *format, ...) {
        char message[300];
        va_list ap;

        va_start(ap, format);
        vsnprintf(message, sizeof(message), format, ap);
        va_end(ap);

        warn("connection given up: %s", message);
        session_lost();
        port_clear(false);
        (void) agent_put_status(port_queue(NOW), AGENT_ERROR, stream, (uint32_t) (error < 0 ? -error : error),
                                message);
        deaf = true;
}

/* After a fault, or a loss, the bytes that still come are meaningless, up to what a connection begins with: a HELLO,
 * or the THAW that follows a capture. It comes at the start of a read, for it is in a buffer of its own. */
static void take_frames(void) {
        struct agent_header h;
        const uint8_t *payload;
        int r;

        while ((r = agent_reader_next(&reader, &h, &payload)) > 0) {
                if (deaf && h.type != AGENT_HELLO && h.type != AGENT_THAW)
                        break;
                deaf = false;
                session_frame(&h, payload);
                if (deaf)
                        break;
        }
        if (r < 0 && !deaf)
                port_fail(0, r, "a frame breaks the rules");
        if (deaf)
                agent_reader_reset(&reader);
}

static void connection_lost(void) {
        session_lost();
        port_clear(true);
        agent_reader_reset(&reader);
        deaf = true;
}

/* Returns when to be called again, USEC_INFINITY: not before something happens. */
uint64_t port_tick(void) {
        if (!away || away_since == USEC_INFINITY)
                return USEC_INFINITY;
        if (now_usec() < away_since + LOST_AFTER_USEC)
                return away_since + LOST_AFTER_USEC;
        away_since = USEC_INFINITY; /* said once */
        connection_lost();
        return USEC_INFINITY;
}

static bool is_away(void) {
        struct pollfd p = { .fd = port.fd, .events = POLLIN | POLLOUT };
        bool closed = poll(&p, 1, 0) > 0 && (p.revents & POLLHUP);

        if (closed && !away) {
                away_since = now_usec();
                begun_is_cut = begun != NULL;
        }
        away = closed;
        return closed;
}

/* In a busy machine the host may be gone and back before we look, and only the frame that never got its end tells.
 * (Somebody who has a command's input could forge this, and would take the machine from himself.) */
static bool is_new_connection(const uint8_t *chunk, size_t size) {
        static const uint8_t hello[AGENT_HEADER_SIZE] = { 8 + AGENT_NONCE_SIZE, [4] = AGENT_HELLO };

        return reader.start != reader.end && size >= sizeof(hello) && memcmp(chunk, hello, sizeof(hello)) == 0;
}

bool port_read(void) {
        static uint8_t chunk[WRITE_MAX];

        for (int i = 0; readable && i < READS_AT_ONCE; i++) {
                if (is_away())
                        return false;

                ssize_t n = read(port.fd, chunk, sizeof(chunk));
                if (n <= 0) {
                        readable = false;
                        break;
                }
                if (is_new_connection(chunk, (size_t) n))
                        connection_lost();

                void *room = agent_reader_room(&reader, (size_t) n);
                if (!room) {
                        port_fail(0, ENOMEM, "no memory for a frame");
                        break;
                }
                memcpy(room, chunk, (size_t) n);
                agent_reader_added(&reader, (size_t) n);
                take_frames();
                if (queue_stored(&queues[NOW]) >= ANSWERS_MAX)
                        return false;
        }
        return readable;
}

/* Whatever it is, reading finds out: data, or that the host came or went. */
static void port_ready(struct source *s _unused_, uint32_t events _unused_) {
        readable = true;
}

static int find_port(char *ret_path, size_t size) {
        _cleanup_close_ int fd = openat(sys_fd, "class/virtio-ports", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        struct dirent *entry;
        int r = -ENODEV;

        if (!d)
                return -ENODEV;
        TAKE_FD(fd);
        while (r < 0 && (entry = readdir(d))) {
                char path[300], name[64];

                snprintf(path, sizeof(path), "%s/name", entry->d_name);
                if (entry->d_name[0] == '.' || read_small(dirfd(d), path, name, sizeof(name)) < 0)
                        continue;
                name[strcspn(name, "\n")] = 0;
                if (streq(name, AGENT_PORT_NAME)) {
                        snprintf(ret_path, size, "/dev/%s", entry->d_name);
                        r = 0;
                }
        }
        closedir(d);
        return r;
}

void port_setup(int outer_loop) {
        uint64_t deadline = now_usec() + PORT_WAIT_USEC;
        char path[300];

        while (find_port(path, sizeof(path)) < 0 ||
               (port.fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)) < 0) {
                if (now_usec() > deadline)
                        die("no virtio-serial port named " AGENT_PORT_NAME " appeared within 10 s");
                nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
        }
        say("listening on %s", path);
        readable = true;
        source_watch(&port, outer_loop, EPOLLIN | EPOLLOUT | EPOLLET);
}
