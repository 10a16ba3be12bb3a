/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The protocol between sandbox-runner ("host") and sandbox-agent ("guest") over one virtio-serial port.
 *
 * The one hard idea: encode and decode are pure functions over memory, used by both sides, so that all that a hostile
 * peer can say is decided in one file that is fuzzed. Nothing here does I/O or allocates on behalf of a length that
 * the peer claimed before that many bytes have arrived.
 *
 * A frame is a header of 12 bytes, little-endian { u32 length, u16 type, u16 flags, u32 stream }, and `length` bytes
 * of payload. The stream is the command's number, chosen by the host (1…); 0 is the machine itself. Payloads of DATA
 * are raw bytes; every other payload has the fixed layout of the struct below: integers little-endian in the order
 * written, then strings, each as u32 length and bytes followed by a NUL that is not counted. Strings never contain
 * NUL.
 *
 * Flow control: each of a command's three channels starts with AGENT_WINDOW bytes of credit for its sender. A sender
 * never sends DATA beyond its credit; the receiver gives it back with CREDIT as it passes the bytes on. A violation
 * ends the connection. So a slow reader stalls its own channel alone.
 *
 * Order after a restore: host HELLO and SETUP; guest HELLO_REPLY and RECEIPT. The guest thaws its workload only when
 * every step of SETUP succeeded. Before a capture: host FREEZE, guest FROZEN, after which the guest sends nothing and
 * accepts only HELLO (another machine's, or its own once more) or THAW (the same machine goes on). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AGENT_PROTOCOL_VERSION 1U
#define AGENT_PORT_NAME "org.sandboxd1.agent"

#define AGENT_HEADER_SIZE 12U
#define AGENT_DATA_MAX (32U * 1024U)      /* bytes in a DATA frame at most */
#define AGENT_PAYLOAD_MAX (1024U * 1024U) /* bytes in any other frame at most */
#define AGENT_WINDOW (256U * 1024U)       /* initial credit of each channel */
#define AGENT_COMMANDS_MAX 1024U          /* commands at once in one guest */
#define AGENT_STRINGS_MAX 8192U           /* entries of argv or environment at most */
#define AGENT_NONCE_SIZE 16U
#define AGENT_SEED_SIZE 64U

enum agent_type {
        AGENT_HELLO = 1,        /* host: opens the channel; agent_hello */
        AGENT_HELLO_REPLY = 2,  /* guest: agent_hello with the same nonce */
        AGENT_SETUP = 3,        /* host: new identity, clock, entropy; agent_setup */
        AGENT_RECEIPT = 4,      /* guest: what of SETUP was done; agent_receipt */
        AGENT_FREEZE = 5,       /* host: stop the workload; flags AGENT_FREEZE_*; no payload */
        AGENT_FROZEN = 6,       /* guest: agent_status; the last frame before a capture */
        AGENT_THAW = 7,         /* host: the same machine goes on; no payload */
        AGENT_THAWED = 8,       /* guest: agent_status */
        AGENT_EXEC = 9,         /* host, on a fresh stream: agent_exec */
        AGENT_STARTED = 10,     /* guest: agent_started; execve has succeeded */
        AGENT_EXEC_FAILED = 11, /* guest: agent_status; the stream ends */
        AGENT_DATA = 12,        /* both: bytes of the channel in flags */
        AGENT_EOF = 13,         /* sender of a channel: no more bytes; channel in flags */
        AGENT_CLOSE = 14,       /* receiver of a channel: send no more, nobody reads; channel in flags */
        AGENT_CREDIT = 15,      /* receiver of a channel: agent_credit */
        AGENT_SIGNAL = 16,      /* host: agent_signal; stream 0 is every command */
        AGENT_EXITED = 17,      /* guest: agent_exited, after EOF of both outputs; the stream ends */
        AGENT_PING = 18,        /* host: any payload up to 64 bytes */
        AGENT_PONG = 19,        /* guest: the same payload */
        AGENT_ERROR = 20,       /* guest: agent_status; it could not follow, and closes */
        _AGENT_TYPE_MAX,
};

/* flags of DATA, EOF, CLOSE, CREDIT */
enum agent_channel {
        AGENT_STDIN = 0,
        AGENT_STDOUT = 1,
        AGENT_STDERR = 2,
        _AGENT_CHANNEL_MAX,
};

/* flags of FREEZE */
#define AGENT_FREEZE_SYNC 0x1U /* write dirty data to the disks first */

/* flags in agent_exec */
#define AGENT_EXEC_STDIN 0x1U /* stdin is a pipe fed by DATA; else /dev/null */

/* flags in agent_signal */
#define AGENT_SIGNAL_TREE 0x1U /* every process of the command's cgroup, not only the leader */

/* steps of a SETUP, as bits; a receipt is complete with all of AGENT_STEPS_ALL set */
enum agent_step {
        AGENT_STEP_CLOCK = 1 << 0,      /* CLOCK_REALTIME set from the host */
        AGENT_STEP_ENTROPY = 1 << 1,    /* the seed was credited to the kernel's pool */
        AGENT_STEP_RESEED = 1 << 2,     /* the CRNG was reseeded from the pool */
        AGENT_STEP_IDENTITY = 1 << 3,   /* machine-id, hostname, boot token, random-seed file, ssh host keys are new */
        AGENT_STEP_NETWORK = 1 << 4,    /* addresses and routes set afresh, inherited flows ended */
        AGENT_STEP_RESOURCES = 1 << 5,  /* file system grown to the disk, memory limit set */
        AGENT_STEP_GENERATION = 1 << 6, /* /run/sandbox/generation published */
        AGENT_STEP_THAW = 1 << 7,       /* the workload runs */
        AGENT_STEPS_ALL = (1 << 8) - 1,
};

enum agent_exit {
        AGENT_EXIT_CODE = 1,    /* status is the exit code */
        AGENT_EXIT_SIGNAL = 2,  /* status is the signal's number */
        AGENT_EXIT_TIMEOUT = 3, /* the timeout passed and the whole tree was killed; status is SIGKILL */
};

struct agent_header {
        uint32_t length;
        uint16_t type; /* enum agent_type */
        uint16_t flags;
        uint32_t stream;
};

/* A string in a received frame: points into the frame and is followed by a NUL. */
struct agent_string {
        const char *text;
        uint32_t length;
};

struct agent_hello {
        uint32_t version;
        uint32_t features; /* none defined yet; unknown bits are ignored */
        uint8_t nonce[AGENT_NONCE_SIZE];
};

struct agent_setup {
        uint8_t nonce[AGENT_NONCE_SIZE];
        uint64_t generation;    /* grows with every restore of one lineage */
        uint64_t realtime_nsec; /* CLOCK_REALTIME to set */
        uint8_t machine_id[16]; /* /etc/machine-id */
        uint8_t boot_token[16]; /* /run/sandbox/boot-token */
        uint8_t seed[AGENT_SEED_SIZE];
        uint64_t disk_size;  /* bytes that /dev/vda must have and its file system fill; 0: leave */
        uint64_t memory_max; /* bytes for the workload's cgroup; 0: no limit */
        uint32_t address;    /* IPv4, host byte order; 0: no network */
        uint32_t gateway;    /* IPv4, host byte order */
        uint32_t prefix;     /* length in bits */
        struct agent_string hostname;
};

struct agent_receipt {
        uint8_t nonce[AGENT_NONCE_SIZE];
        uint64_t generation;
        uint32_t steps;              /* enum agent_step, those done */
        uint32_t error;              /* errno of the first step that failed, 0: none */
        int64_t clock_step_nsec;     /* how far CLOCK_REALTIME was moved */
        uint32_t entropy_bytes;      /* credited */
        struct agent_string message; /* what failed, for a person; may be empty */
};

struct agent_status {
        uint32_t error; /* errno as of Linux on x86-64, 0: success */
        struct agent_string message;
};

/* argv and environment are kept as consecutive encoded strings; walk them with agent_strings_next(). */
struct agent_strings {
        uint32_t count;
        const uint8_t *data;
        uint32_t size;
};

struct agent_exec {
        uint32_t flags;                /* AGENT_EXEC_* */
        uint64_t timeout_usec;         /* 0: none */
        struct agent_string user;      /* name or decimal uid; empty: root */
        struct agent_string directory; /* empty: the user's home */
        struct agent_strings argv;
        struct agent_strings environment; /* NAME=value, on top of PATH, HOME, USER, LOGNAME, SHELL, LANG */
};

struct agent_started {
        uint32_t pid; /* in the guest */
};

struct agent_credit {
        uint32_t bytes;
};

struct agent_signal {
        uint32_t signal;
        uint32_t flags; /* AGENT_SIGNAL_* */
};

struct agent_exited {
        uint32_t kind; /* enum agent_exit */
        uint32_t status;
        uint64_t cpu_usec;    /* of the command's whole tree */
        uint64_t memory_peak; /* bytes */
        uint32_t leftovers;   /* processes of its tree that still run */
};

/* A growing output buffer; zero-initialise. `error` sticks (-ENOMEM, -EMSGSIZE, -EINVAL) and makes later writes
 * no-ops. */
struct agent_buffer {
        uint8_t *data;
        size_t size, allocated;
        int error;
};
void agent_buffer_done(struct agent_buffer *b);

/* Each appends one whole frame to b. Return 0 or a negative errno (also kept in b->error; b is then as before). */
int agent_put_frame(struct agent_buffer *b, enum agent_type type, uint16_t flags, uint32_t stream, const void *payload,
                    size_t size);
int agent_put_hello(struct agent_buffer *b, enum agent_type type, const struct agent_hello *m);
int agent_put_setup(struct agent_buffer *b, const struct agent_setup *m);
int agent_put_receipt(struct agent_buffer *b, const struct agent_receipt *m);
int agent_put_status(struct agent_buffer *b, enum agent_type type, uint32_t stream, uint32_t error,
                     const char *message);
int agent_put_exec(struct agent_buffer *b, uint32_t stream, uint32_t flags, uint64_t timeout_usec, const char *user,
                   const char *directory, const char *const *argv, const char *const *environment);
int agent_put_started(struct agent_buffer *b, uint32_t stream, uint32_t pid);
int agent_put_credit(struct agent_buffer *b, uint32_t stream, enum agent_channel channel, uint32_t bytes);
int agent_put_signal(struct agent_buffer *b, uint32_t stream, uint32_t signal, uint32_t flags);
int agent_put_exited(struct agent_buffer *b, uint32_t stream, const struct agent_exited *m);

/* Decode a payload. Return 0, or -EBADMSG when the layout doesn't fit exactly. Strings point into the payload. */
int agent_get_hello(const void *payload, size_t size, struct agent_hello *ret);
int agent_get_setup(const void *payload, size_t size, struct agent_setup *ret);
int agent_get_receipt(const void *payload, size_t size, struct agent_receipt *ret);
int agent_get_status(const void *payload, size_t size, struct agent_status *ret);
int agent_get_exec(const void *payload, size_t size, struct agent_exec *ret);
int agent_get_started(const void *payload, size_t size, struct agent_started *ret);
int agent_get_credit(const void *payload, size_t size, struct agent_credit *ret);
int agent_get_signal(const void *payload, size_t size, struct agent_signal *ret);
int agent_get_exited(const void *payload, size_t size, struct agent_exited *ret);

/* Takes the next string off *strings. Returns 1 and the string, or 0 at the end. */
int agent_strings_next(struct agent_strings *strings, struct agent_string *ret);

/* Cuts frames from the byte stream of the peer; zero-initialise. */
struct agent_reader {
        uint8_t *data;
        size_t start, end, allocated;
};
void agent_reader_done(struct agent_reader *r);
/* Room for at least `size` bytes to be read into; NULL without memory. Then agent_reader_added() says how many came.
 */
void *agent_reader_room(struct agent_reader *r, size_t size);
void agent_reader_added(struct agent_reader *r, size_t size);
/* Forgets what has arrived, as at the start of a new connection. */
void agent_reader_reset(struct agent_reader *r);
/* Returns 1 and a whole frame (its payload valid until the next call on r), 0 when more bytes are needed, -EBADMSG on
 * a header that breaks the rules: unknown type, length over the type's cap, an undefined channel. */
int agent_reader_next(struct agent_reader *r, struct agent_header *ret, const uint8_t **ret_payload);
