/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The record on disk: what the next start of the daemon must know to take a sandbox over or to end it. */

#include <stdio.h>

#include "cgroup.h"
#include "log.h"
#include "sandbox.h"
#include "worker.h"

#define RECORD_FORMAT 1

static json_t *strv_to_json(char *const *l) {
        json_t *array = json_array();

        for (; array && l && *l; l++)
                if (json_array_append_new(array, json_string(*l)) < 0) {
                        json_decref(array);
                        return NULL;
                }
        return array;
}

int sandbox_record_to_json(const struct sandbox *s, json_t **ret) {
        json_t *record =
                json_pack("{s:i,s:s,s:i,s:I,s:s,s:s,s:s,s:s,s:s}", "format", RECORD_FORMAT, "id", s->id, "slot",
                          (int) s->slot, "owner", (json_int_t) s->owner, "name", s->name, "hostname", s->hostname,
                          "template", s->template_name, "version", s->template_version, "snapshot", s->snapshot);
        json_t *more = json_pack(
                "{s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:o,s:O,s:s*,s:s*}", "created_usec", (json_int_t) s->created_usec,
                "deadline_boot_usec", (json_int_t) s->deadline_boot_usec, "runtime_max_usec",
                (json_int_t) (s->runtime_max_usec == USEC_INFINITY ? 0 : s->runtime_max_usec), "memory_max",
                (json_int_t) s->memory_max, "tasks_max", (json_int_t) s->tasks_max, "disk_size",
                (json_int_t) s->disk_size, "cpus", s->cpus, "environment", strv_to_json(s->environment), "metadata",
                s->metadata, "user", s->user, "directory", s->directory);
        json_t *machine =
                json_pack("{s:I,s:i,s:i,s:I,s:s,s:s,s:i,s:I,s:I,s:b}", "memory", (json_int_t) s->memory,
                          "machine_cpus", (int) s->machine_cpus, "volumes", (int) s->volumes, "generation",
                          (json_int_t) s->generation, "machine_id", s->machine_id, "boot_token", s->boot_token,
                          "leader", (int) s->leader, "leader_start", (json_int_t) s->leader_start, "n_commands",
                          (json_int_t) s->n_commands, "handed_out", (int) s->handed_out);
        uint64_t cpu_nsec = s->cpu_nsec_seen;
        int r = record && more && machine && json_object_update(record, more) >= 0 &&
                                json_object_update(record, machine) >= 0
                        ? 0
                        : -ENOMEM;

        json_decref(more);
        json_decref(machine);
        if (r >= 0 && s->cgroup)
                (void) cgroup_cpu_nsec(s->cgroup, &cpu_nsec);
        if (r >= 0 && json_object_set_new(record, "cpu_nsec", json_integer((json_int_t) cpu_nsec)) < 0)
                r = -ENOMEM;
        if (r < 0) {
                json_decref(record);
                return r;
        }
        *ret = record;
        return 0;
}

static int strv_from_json(json_t *array, char ***ret) {
        json_t *value;
        size_t i;

        json_array_foreach (array, i, value)
                if (!json_is_string(value) || strv_extend(ret, json_string_value(value)) < 0)
                        return -EBADMSG;
        return 0;
}

static int copy_strings(struct sandbox *s, const char *const *from) {
        char **const to[] = { &s->name, &s->hostname, &s->template_name, &s->template_version, &s->snapshot };

        for (size_t i = 0; i < ELEMENTSOF(to); i++) {
                *to[i] = strdup(from[i]);
                if (!*to[i])
                        return -ENOMEM;
        }
        return 0;
}

/* Numbers of the record are unsigned here: a negative one makes it invalid. */
static int take_uint64(json_t *record, const char *key, uint64_t *ret) {
        json_t *v = json_object_get(record, key);

        if (!json_is_integer(v) || json_integer_value(v) < 0)
                return -EBADMSG;
        *ret = (uint64_t) json_integer_value(v);
        return 0;
}

static int load_numbers(struct sandbox *s, json_t *record) {
        uint64_t owner, machine_cpus, volumes, leader, n_commands;
        const struct {
                const char *key;
                uint64_t *value;
        } numbers[] = {
                { "owner", &owner },
                { "created_usec", &s->created_usec },
                { "deadline_boot_usec", &s->deadline_boot_usec },
                { "runtime_max_usec", &s->runtime_max_usec },
                { "memory_max", &s->memory_max },
                { "tasks_max", &s->tasks_max },
                { "disk_size", &s->disk_size },
                { "memory", &s->memory },
                { "machine_cpus", &machine_cpus },
                { "volumes", &volumes },
                { "generation", &s->generation },
                { "leader", &leader },
                { "leader_start", &s->leader_start },
                { "n_commands", &n_commands },
                { "cpu_nsec", &s->cpu_nsec_seen },
        };
        for (size_t i = 0; i < ELEMENTSOF(numbers); i++)
                if (take_uint64(record, numbers[i].key, numbers[i].value) < 0)
                        return -EBADMSG;
        s->owner = (uid_t) owner;
        s->machine_cpus = (unsigned) machine_cpus;
        s->volumes = (unsigned) volumes;
        s->leader = (pid_t) leader;
        s->n_commands = (uint32_t) n_commands;
        if (s->runtime_max_usec == 0)
                s->runtime_max_usec = USEC_INFINITY;
        return 0;
}

static int load_fields(struct sandbox *s, json_t *record) {
        const char *strings[5], *machine_id, *boot_token, *user = NULL, *directory = NULL;
        json_t *environment, *metadata;
        int handed_out, r;

        r = json_unpack(record, "{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:f,s:o,s:o,s:b,s?:s,s?:s}", "name", &strings[0],
                        "hostname", &strings[1], "template", &strings[2], "version", &strings[3], "snapshot",
                        &strings[4], "machine_id", &machine_id, "boot_token", &boot_token, "cpus", &s->cpus,
                        "environment", &environment, "metadata", &metadata, "handed_out", &handed_out, "user", &user,
                        "directory", &directory);
        if (r < 0 || !json_is_object(metadata) || !json_is_array(environment))
                return -EBADMSG;
        r = copy_strings(s, strings);
        if (r >= 0)
                r = strv_from_json(environment, &s->environment);
        if (r >= 0)
                r = load_numbers(s, record);
        if (r < 0)
                return r;
        snprintf(s->machine_id, sizeof(s->machine_id), "%s", machine_id);
        snprintf(s->boot_token, sizeof(s->boot_token), "%s", boot_token);
        s->metadata = json_incref(metadata);
        s->handed_out = handed_out;
        if ((user && !(s->user = strdup(user))) || (directory && !(s->directory = strdup(directory))))
                return -ENOMEM;
        return asprintf(&s->slice, "sandbox-u%u.slice", (unsigned) s->owner) < 0 ? -ENOMEM : 0;
}

int sandbox_record_load(struct manager *m, json_t *record, struct sandbox **ret) {
        const char *id = json_string_value(json_object_get(record, "id"));
        struct sandbox *s;
        uint64_t slot;
        int r;

        if (json_integer_value(json_object_get(record, "format")) != RECORD_FORMAT)
                return -EBADMSG;
        if (!id || !id_is_valid(id) || take_uint64(record, "slot", &slot) < 0 || slot >= SLOTS_MAX)
                return -EBADMSG;
        r = sandbox_new(m, id, (int) slot, &s);
        if (r < 0)
                return r;
        r = load_fields(s, record);
        if (r < 0) {
                sandbox_free(s);
                return r;
        }
        *ret = s;
        return 0;
}

int sandbox_record_save(struct sandbox *s, worker_handler_t handler, void *userdata) {
        json_t *record;
        int r;

        r = sandbox_record_to_json(s, &record);
        if (r >= 0)
                r = worker_call(s->manager->maker,
                                json_pack("{s:s,s:s,s:o}", "op", "record", "id", s->id, "record", record), handler,
                                userdata);
        return r < 0 ? log_warning_errno(r, "The record of sandbox %s can't be saved", s->id) : 0;
}
