/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "usage.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>

#include "cgroup.h"
#include "log.h"
#include "options.h"
#include "worker.h"

#define LEDGER_PATH STORAGE_PATH "/usage.jsonl"
/* A record is under 1 KiB: this holds the last thousand. */
#define TAIL_SIZE (1024 * 1024)

static json_t *number_or_null(uint64_t v) {
        return v == UINT64_MAX ? json_null() : json_integer((json_int_t) v);
}

int sandbox_usage_to_json(struct sandbox *s, json_t **ret) {
        uint64_t ended = s->ending ? s->ended_usec : 0, now = ended > 0 ? ended : now_realtime_usec();
        uint64_t cpu_nsec = s->usage.cpu_nsec, peak = s->usage.memory_peak;
        const char *source = s->usage_source;

        if (!source) {
                source = "cgroup";
                if (s->cgroup && cgroup_cpu_nsec(s->cgroup, &cpu_nsec) >= 0)
                        (void) cgroup_read_uint64(s->cgroup, "memory.peak", &peak);
                else if (s->ending) {
                        /* What it is known to have used, at least. */
                        source = "record";
                        cpu_nsec = s->cpu_nsec_seen;
                }
        }
        *ret = json_pack("{s:s,s:s,s:I,s:s,s:s,s:I,s:I,s:I,s:o,s:o,s:I,s:s,s:s}", "id", s->id, "name", s->name,
                         "owner", (json_int_t) s->owner, "template", s->template_name, "version", s->template_version,
                         "created_usec", (json_int_t) s->created_usec, "ended_usec", (json_int_t) ended,
                         "lifetime_usec", (json_int_t) (now > s->created_usec ? now - s->created_usec : 0), "cpu_usec",
                         number_or_null(cpu_nsec == UINT64_MAX ? UINT64_MAX : cpu_nsec / NSEC_PER_USEC), "memory_peak",
                         number_or_null(peak), "commands", (json_int_t) s->n_commands, "result",
                         s->ending ? strempty(s->result) : "running", "source", source);
        return *ret ? 0 : -ENOMEM;
}

bool usage_is_recorded(const char *id) {
        _cleanup_free_ char *text = NULL;
        _cleanup_close_ int fd = open(LEDGER_PATH, O_RDONLY | O_CLOEXEC);
        char needle[64], *line, *end;
        struct stat st;
        json_t *record;
        ssize_t n;

        if (fd < 0 || fstat(fd, &st) < 0)
                return false;
        text = malloc(TAIL_SIZE + 1);
        if (!text)
                return false;
        n = pread(fd, text, TAIL_SIZE, MAX(st.st_size - TAIL_SIZE, 0));
        text[MAX(n, 0)] = 0;
        snprintf(needle, sizeof(needle), "{\"id\":\"%s\"", id);
        line = strstr(text, needle);
        end = line ? strchr(line, '\n') : NULL;
        /* One that was torn by a crash of the host is none. */
        record = end ? json_loadb(line, (size_t) (end - line), JSON_REJECT_DUPLICATES, NULL) : NULL;
        json_decref(record);
        return record;
}

static int journal_number(sd_journal *j, const char *field, uint64_t *ret) {
        _cleanup_free_ char *text = NULL;
        const char *data, *value;
        size_t n;
        int r;

        r = sd_journal_get_data(j, field, (const void **) &data, &n);
        if (r < 0)
                return r;
        text = strndup(data, n);
        value = text ? strchr(text, '=') : NULL;
        return value ? parse_uint64(value + 1, ret) : -ENOMEM;
}

/* "unit resources", of systemd's message catalog */
#define RESOURCES_MESSAGE "MESSAGE_ID=ae8f7b866b0347b9af31fe1c80b127c0"

void usage_from_journal(struct sandbox *s) {
        _cleanup_free_ char *unit = NULL;
        sd_journal *j = NULL;
        uint64_t usec;

        if (asprintf(&unit, "UNIT=%s", s->unit) < 0 || sd_journal_open(&j, SD_JOURNAL_LOCAL_ONLY) < 0)
                return;
        if (sd_journal_add_match(j, RESOURCES_MESSAGE, 0) >= 0 && sd_journal_add_match(j, unit, 0) >= 0 &&
            /* systemd's own: anybody can log the rest. */
            sd_journal_add_match(j, "_PID=1", 0) >= 0 && sd_journal_seek_tail(j) >= 0 && sd_journal_previous(j) > 0 &&
            journal_number(j, "CPU_USAGE_NSEC", &s->usage.cpu_nsec) >= 0) {
                s->usage_source = "journal";
                (void) journal_number(j, "MEMORY_PEAK", &s->usage.memory_peak);
                if (sd_journal_get_realtime_usec(j, &usec) >= 0)
                        s->ended_usec = usec;
        }
        sd_journal_close(j);
}

struct filter {
        uid_t uid;
        bool all;
        uint64_t since, limit;
        char *sandbox;
};

static bool passes(const struct filter *f, json_t *record) {
        const char *id = strempty(json_string_value(json_object_get(record, "id")));
        const char *name = strempty(json_string_value(json_object_get(record, "name")));
        json_int_t ended = json_integer_value(json_object_get(record, "ended_usec"));

        if (!f->all && json_integer_value(json_object_get(record, "owner")) != (json_int_t) f->uid)
                return false;
        if (f->sandbox && !streq(f->sandbox, id) && !streq(f->sandbox, name))
                return false;
        return ended == 0 || (uint64_t) ended >= f->since;
}

static int collect(const struct filter *f, json_t *record, json_t *list) {
        if (!record || !passes(f, record)) {
                json_decref(record);
                return 0;
        }
        if (json_array_append_new(list, record) < 0)
                return -ENOMEM;
        if (f->limit > 0 && json_array_size(list) > f->limit)
                return json_array_remove(list, 0) < 0 ? -ENOMEM : 0;
        return 0;
}

static int collect_ledger(const struct filter *f, json_t *list) {
        _cleanup_free_ char *line = NULL;
        size_t allocated = 0;
        FILE *file = fopen(LEDGER_PATH, "re");
        int r = 0;

        if (!file)
                return errno == ENOENT ? 0 : -errno;
        while (r >= 0 && getline(&line, &allocated, file) > 0)
                r = collect(f, json_loads(line, JSON_REJECT_DUPLICATES, NULL), list);
        fclose(file);
        return r;
}

static int write_line(json_t *record, int fd) {
        _cleanup_free_ char *text = json_dumps(record, JSON_COMPACT);
        int r = text ? write_all(fd, text, strlen(text)) : -ENOMEM;

        return r < 0 ? r : write_all(fd, "\n", 1);
}

int usage_collect(json_t *request, int *ret_fd) {
        _cleanup_close_ int fd = -1;
        json_int_t uid, since, limit;
        struct filter f = {};
        json_t *list, *record;
        int all, r;
        size_t i;

        if (json_unpack(request, "{s:I,s:b,s:I,s:I,s?:s}", "uid", &uid, "all", &all, "since", &since, "limit", &limit,
                        "sandbox", &f.sandbox) < 0)
                return -EINVAL;
        f.uid = (uid_t) uid;
        f.all = all;
        f.since = (uint64_t) since;
        f.limit = (uint64_t) limit;
        fd = memfd_create("usage", MFD_CLOEXEC);
        if (fd < 0)
                return -errno;
        list = json_array();
        r = list ? collect_ledger(&f, list) : -ENOMEM;
        json_array_foreach (list, i, record)
                if (r >= 0)
                        r = write_line(record, fd);
        json_decref(list);
        if (r < 0)
                return r;
        *ret_fd = TAKE_FD(fd);
        return 0;
}

/* A call of GetUsage, on its way through the worker that reads the ledger. */
struct reading {
        struct manager *manager;
        sd_bus_message *call;
        json_t *living; /* records of those that pass, as of the call */
};

static json_t *collect_living(struct manager *m, const struct filter *f) {
        json_t *living = json_array(), *record;
        struct sandbox *s;

        LIST_FOREACH (s, &m->sandboxes, sandboxes) {
                if (!s->handed_out || s->ending || sandbox_usage_to_json(s, &record) < 0)
                        continue;
                /* The newest comes first in the registry, and last here. */
                if (!passes(f, record) || (f->limit > 0 && json_array_size(living) >= f->limit))
                        json_decref(record);
                else
                        (void) json_array_insert_new(living, 0, record);
        }
        return living;
}

static void on_read(int error, const char *message, struct control_message *reply, void *userdata) {
        _cleanup_free_ struct reading *t = userdata;
        _cleanup_close_ int fd = reply ? control_message_take_fd(reply, "records") : -1;
        json_t *record;
        size_t i;

        json_array_foreach (t->living, i, record)
                if (fd >= 0 && write_line(record, fd) < 0)
                        error = -EIO;
        if (error < 0 || fd < 0 || lseek(fd, 0, SEEK_SET) < 0)
                sd_bus_reply_method_errorf(t->call, BUS_ERROR_UNAVAILABLE, "The ledger can't be read: %s",
                                           strempty(message));
        else
                sd_bus_reply_method_return(t->call, "h", fd);
        sd_bus_message_unref(t->call);
        json_decref(t->living);
}

static int read_ledger(struct manager *m, sd_bus_message *call, const struct filter *f) {
        struct reading *t = malloc(sizeof(*t));
        uint64_t limit = f->limit;
        json_t *request;
        int r;

        if (!t)
                return -ENOMEM;
        *t = (struct reading){ .manager = m, .call = sd_bus_message_ref(call), .living = collect_living(m, f) };
        if (limit > 0)
                limit -= MIN(limit - 1, json_array_size(t->living));
        request = json_pack("{s:s,s:I,s:b,s:I,s:I,s:s*}", "op", "usage", "uid", (json_int_t) f->uid, "all",
                            (int) f->all, "since", (json_int_t) MIN(f->since, (uint64_t) INT64_MAX), "limit",
                            (json_int_t) MIN(limit, (uint64_t) INT64_MAX), "sandbox", f->sandbox);
        r = worker_call(m->reader, request, on_read, t);
        if (r < 0) {
                sd_bus_message_unref(t->call);
                json_decref(t->living);
                free(t);
        }
        return r;
}

int usage_reply(struct manager *m, sd_bus_message *call, uid_t uid, bool all, sd_bus_error *error) {
        struct filter f = { .uid = uid, .all = all };
        const struct option options[] = {
                { "Since", OPTION_UINT64, &f.since, NULL },
                { "Sandbox", OPTION_STRING, &f.sandbox, NULL },
                { "Limit", OPTION_UINT64, &f.limit, NULL },
                {},
        };
        int r;

        r = options_read(call, options, error);
        if (r >= 0)
                r = options_read_flags(call, error);
        if (r >= 0)
                r = read_ledger(m, call, &f);
        free(f.sandbox);
        return r;
}
