/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "sandbox.h"

#include <search.h>
#include <stdio.h>

#include "bus-util.h"
#include "link.h"
#include "log.h"
#include "process.h"
#include "template.h"

static const char *const state_names[] = {
        [SANDBOX_CREATING] = "creating",
        [SANDBOX_RUNNING] = "running",
        [SANDBOX_REMOVING] = "removing",
};

const char *sandbox_state_to_string(enum sandbox_state state) {
        return state_names[state];
}

void sandbox_spec_done(struct sandbox_spec *spec) {
        free(spec->name);
        free(spec->hostname);
        strv_free(spec->environment);
        json_decref(spec->metadata);
        *spec = (struct sandbox_spec){};
}

static int compare_ids(const void *a, const void *b) {
        return strcmp(((const struct sandbox *) a)->id, ((const struct sandbox *) b)->id);
}

struct sandbox *sandbox_by_id(struct manager *m, const char *id) {
        struct sandbox key = {};
        struct sandbox **found;

        if (!id_is_valid(id))
                return NULL;
        memcpy(key.id, id, ID_SIZE);
        found = tfind(&key, &m->sandboxes_by_id, compare_ids);
        return found ? *found : NULL;
}

/* Goes round, so that a slot's leftovers in the kernel have time to go before it is used again. */
static int find_slot(struct manager *m) {
        for (unsigned i = 0; i < SLOTS_MAX - 1; i++) {
                unsigned slot = (m->next_slot + i) % (SLOTS_MAX - 1);

                if (!m->slots[slot]) {
                        m->next_slot = slot + 1;
                        return (int) slot;
                }
        }
        return -EAGAIN;
}

int sandbox_new(struct manager *m, const char *id, int slot, struct sandbox **ret) {
        struct sandbox *s;

        if (slot < 0)
                slot = find_slot(m);
        if (slot < 0)
                return slot;
        if (slot >= (int) SLOTS_MAX || m->slots[slot])
                return -EEXIST;
        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        s->manager = m;
        memcpy(s->id, id, ID_SIZE);
        s->slot = (unsigned) slot;
        s->pidfd = s->disk_fd = s->memory_fd = s->devices_fd = -1;
        s->usage = (struct unit_usage){ .cpu_nsec = UINT64_MAX, .memory_peak = UINT64_MAX };
        LIST_INIT(&s->processes);
        if (asprintf(&s->unit, "sandbox-%s.scope", id) < 0 || !tsearch(s, &m->sandboxes_by_id, compare_ids)) {
                free(s->unit);
                free(s);
                return -ENOMEM;
        }
        m->slots[slot] = s;
        LIST_INSERT_HEAD(&m->sandboxes, s, sandboxes);
        m->n_sandboxes++;
        *ret = s;
        return 0;
}

static void sandbox_close(struct sandbox *s) {
        s->exit_source = sd_event_source_disable_unref(s->exit_source);
        s->reconnect = sd_event_source_disable_unref(s->reconnect);
        s->retry = sd_event_source_disable_unref(s->retry);
        s->link = link_free(s->link);
        s->pidfd = close_fd(s->pidfd);
        s->disk_fd = close_fd(s->disk_fd);
        s->memory_fd = close_fd(s->memory_fd);
        s->devices_fd = close_fd(s->devices_fd);
}

struct sandbox *sandbox_free(struct sandbox *s) {
        if (!s)
                return NULL;
        while (LIST_FIRST(&s->processes))
                process_free(LIST_FIRST(&s->processes));
        sandbox_close(s);
        tdelete(s, &s->manager->sandboxes_by_id, compare_ids);
        LIST_REMOVE(s, sandboxes);
        s->manager->slots[s->slot] = NULL;
        s->manager->n_sandboxes--;
        sd_bus_message_unref(s->create_call);
        for (size_t i = 0; i < s->n_remove_calls; i++)
                sd_bus_message_unref(s->remove_calls[i]);
        free(s->remove_calls);
        json_decref(s->metadata);
        json_decref(s->receipt);
        json_decref(s->runner_timings);
        strv_free(s->environment);
        free(s->name);
        free(s->hostname);
        free(s->template_name);
        free(s->template_version);
        free(s->snapshot);
        free(s->user);
        free(s->directory);
        free(s->unit);
        free(s->slice);
        free(s->cgroup);
        free(s->failure);
        free(s);
        return NULL;
}

int sandbox_lookup(struct manager *m, uid_t caller, const char *id_or_name, struct sandbox **ret,
                   sd_bus_error *error) {
        struct sandbox *s = sandbox_by_id(m, id_or_name), *named = NULL, *prefixed = NULL;
        unsigned n_named = 0, n_prefixed = 0;
        size_t n = strlen(id_or_name);
        struct sandbox *i;

        if (s) {
                *ret = s;
                return 0;
        }
        LIST_FOREACH (i, &m->sandboxes, sandboxes) {
                if (streq(i->name, id_or_name)) {
                        if (i->owner == caller) {
                                *ret = i;
                                return 0;
                        }
                        named = i;
                        n_named++;
                }
                if (n >= 4 && strncmp(i->id, id_or_name, n) == 0) {
                        prefixed = i;
                        n_prefixed++;
                }
        }
        *ret = n_named == 1 ? named : n_named == 0 && n_prefixed == 1 ? prefixed : NULL;
        if (*ret)
                return 0;
        return sd_bus_error_setf(error, BUS_ERROR_NO_SUCH_SANDBOX,
                                 n_named + n_prefixed > 1 ? "\"%s\" names several sandboxes" : "No sandbox \"%s\"",
                                 id_or_name);
}

void sandbox_set_state(struct sandbox *s, enum sandbox_state state) {
        if (s->state == state)
                return;
        s->state = state;
        sandbox_changed(s, "State");
}

static int adopt_identity(struct sandbox *s) {
        uint8_t bytes[32];
        int r;

        r = random_bytes(bytes, sizeof(bytes));
        if (r < 0)
                return r;
        hex_encode(bytes, 16, s->machine_id);
        hex_encode(bytes + 16, 16, s->boot_token);
        return 0;
}

static int copy_template(struct sandbox *s, const struct manifest *f, char *const *environment) {
        s->template_name = strdup(f->name);
        s->template_version = strdup(f->version);
        s->snapshot = strdup(f->id);
        s->environment = strv_copy(f->environment);
        s->memory = f->memory;
        s->disk = f->disk_size;
        s->machine_cpus = f->cpus;
        s->volumes = f->volumes;
        s->generation = f->generation + 1;
        if (!s->template_name || !s->template_version || !s->snapshot || !s->environment)
                return -ENOMEM;
        if ((f->user && !(s->user = strdup(f->user))) || (f->directory && !(s->directory = strdup(f->directory))))
                return -ENOMEM;
        for (char *const *e = environment; e && *e; e++)
                if (strv_extend(&s->environment, *e) < 0)
                        return -ENOMEM;
        return 0;
}

static int copy_spec(struct sandbox *s, struct sandbox_spec *spec) {
        s->owner = spec->owner;
        s->name = spec->name ? TAKE_PTR(spec->name) : strdup(s->id);
        s->hostname = TAKE_PTR(spec->hostname);
        if (!s->hostname && asprintf(&s->hostname, "sandbox-%s", s->id) < 0)
                return -ENOMEM;
        s->metadata = spec->metadata ? TAKE_PTR(spec->metadata) : json_object();
        s->created_usec = now_realtime_usec();
        s->deadline_boot_usec = spec->ttl_usec > 0 ? now_boottime_usec() + spec->ttl_usec : 0;
        s->runtime_max_usec = spec->runtime_max_usec;
        s->memory_max = spec->memory_max;
        s->cpus = spec->cpus;
        s->tasks_max = spec->tasks_max;
        s->disk_size = spec->disk_size;
        if (asprintf(&s->slice, "sandbox-u%u.slice", (unsigned) s->owner) < 0)
                return -ENOMEM;
        return s->name && s->metadata ? 0 : -ENOMEM;
}

int sandbox_create(struct manager *m, struct template *t, struct sandbox_spec *spec, sd_bus_message *call,
                   sd_bus_error *error) {
        char id[ID_SIZE], path[64];
        struct sandbox *s;
        int r;

        do
                r = id_make(id);
        while (r >= 0 && sandbox_by_id(m, id));
        if (r >= 0)
                r = sandbox_new(m, id, -1, &s);
        if (r == -EAGAIN)
                return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED, "All %u slots of this host are in use",
                                         SLOTS_MAX);
        if (r < 0)
                return r;
        s->climb_started = now_monotonic_nsec();
        r = copy_template(s, t->manifest, spec->environment);
        if (r >= 0)
                r = copy_spec(s, spec);
        if (r >= 0)
                r = adopt_identity(s);
        if (r < 0) {
                sandbox_free(s);
                return r;
        }
        s->create_call = sd_bus_message_ref(call);
        sandbox_path(s, path);
        bus_emit_added(m->bus, path, BUS_INTERFACE_SANDBOX);
        sandbox_climb(s);
        return 0;
}
