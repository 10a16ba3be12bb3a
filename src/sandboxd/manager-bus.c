/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The manager on the bus: create, find, list. */

#include "manager-bus.h"

#include <ctype.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include "authorize.h"
#include "job.h"
#include "options.h"
#include "sandbox.h"
#include "template.h"
#include "usage.h"

/* Below this a guest can't run anything. */
#define MEMORY_MIN (16U * 1024U * 1024U)
#define CPUS_MIN 0.01
/* Both are kept in memory and in the record of each sandbox. */
#define ENVIRONMENT_MAX (128U * 1024U)
#define METADATA_MAX (64U * 1024U)
/* With less free space on the host than this nothing new is begun. */
#define SPACE_MIN (256ULL << 20)
/* The VMM's own threads. */
#define TASKS_MIN 16U
#define TTL_MAX_USEC ((uint64_t) INT64_MAX / 4)

static int invalid(sd_bus_error *error, const char *format, ...) _printf_(2, 3);
static int invalid(sd_bus_error *error, const char *format, ...) {
        char text[256];
        va_list ap;

        va_start(ap, format);
        vsnprintf(text, sizeof(text), format, ap);
        va_end(ap);
        return sd_bus_error_set(error, BUS_ERROR_INVALID_ARGUMENT, text);
}

static int find_template(struct manager *m, const char *name, struct template **ret, sd_bus_error *error) {
        struct template *t = template_by_name(m, name);

        if (!t)
                return sd_bus_error_setf(error, BUS_ERROR_NO_SUCH_TEMPLATE, "No template \"%s\"; bake it first", name);
        if (t->mismatch)
                return sd_bus_error_setf(error, BUS_ERROR_TEMPLATE_MISMATCH, "Template %s must be baked again: its %s",
                                         name, t->mismatch);
        *ret = t;
        return 0;
}

/* Labels of letters, digits and hyphens, with a dot between two. */
static bool hostname_is_valid(const char *s) {
        size_t n = strlen(s);

        for (const char *p = s; *p; p++) {
                bool edge = p == s || !p[1] || p[-1] == '.' || p[1] == '.';

                if (!isascii(*p) || (!isalnum((unsigned char) *p) && (edge || (*p != '-' && *p != '.'))))
                        return false;
        }
        return n >= 1 && n <= 63;
}

static int check_names(struct sandbox_spec *spec, struct manager *m, sd_bus_error *error) {
        struct sandbox *s;

        if (spec->hostname && !hostname_is_valid(spec->hostname))
                return invalid(error, "\"%s\" can't be a hostname", spec->hostname);
        if (!spec->name)
                return 0;
        if (!name_is_valid(spec->name))
                return invalid(error, "\"%s\" can't be a name: 1 to 64 of A-Z a-z 0-9 . _ -, first a letter or digit",
                               spec->name);
        if (strlen(spec->name) >= 4 && strspn(spec->name, "0123456789abcdef") == strlen(spec->name))
                return invalid(error, "\"%s\" can't be a name: it could be taken for an id", spec->name);
        LIST_FOREACH (s, &m->sandboxes, sandboxes)
                if (s->owner == spec->owner && streq(s->name, spec->name))
                        return sd_bus_error_setf(error, BUS_ERROR_NAME_EXISTS, "A sandbox \"%s\" exists already",
                                                 spec->name);
        if (!spec->hostname && hostname_is_valid(spec->name) && !(spec->hostname = strdup(spec->name)))
                return -ENOMEM;
        return 0;
}

static size_t dict_size(json_t *dict) {
        const char *key;
        json_t *value;
        size_t n = 0;

        json_object_foreach (dict, key, value)
                n += strlen(key) + json_string_length(value);
        return n;
}

/* What isn't given comes from the template; more than it has can't be had from a restored machine. */
static int check_sizes(struct sandbox_spec *spec, const struct manifest *f, uint64_t tasks_max, sd_bus_error *error) {
        if (spec->memory_max == 0)
                spec->memory_max = f->memory;
        if (spec->memory_max < MEMORY_MIN || spec->memory_max > f->memory)
                return invalid(error, "MemoryMax must be between %u and the %llu bytes of template %s", MEMORY_MIN,
                               (unsigned long long) f->memory, f->name);
        if (spec->cpus == 0)
                spec->cpus = f->cpus;
        if (!(spec->cpus >= CPUS_MIN && spec->cpus <= f->cpus))
                return invalid(error, "CPUs must be between %g and the %u of template %s", CPUS_MIN, f->cpus, f->name);
        if (spec->disk_size == 0)
                spec->disk_size = f->disk_size;
        spec->disk_size = (spec->disk_size + 4095) & ~UINT64_C(4095);
        if (spec->disk_size < f->disk_size || spec->disk_size > (uint64_t) 1 << 44)
                return invalid(error, "DiskSize must be at least the %llu bytes of template %s and at most 16 TiB",
                               (unsigned long long) f->disk_size, f->name);
        if (spec->ttl_usec > TTL_MAX_USEC)
                return invalid(error, "TTLUSec is too large");
        if (spec->tasks_max < TASKS_MIN || spec->tasks_max > tasks_max)
                return invalid(error, "TasksMax must be between %u and the service's %llu", TASKS_MIN,
                               (unsigned long long) tasks_max);
        if (strv_size(spec->environment) > ENVIRONMENT_MAX || dict_size(spec->metadata) > METADATA_MAX)
                return invalid(error, "Environment may have %u bytes, Metadata %u", ENVIRONMENT_MAX, METADATA_MAX);
        return options_check_environment(spec->environment, error);
}

static int check_limits(struct manager *m, uid_t owner, sd_bus_error *error) {
        if (m->n_sandboxes >= m->conf->max_sandboxes)
                return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED,
                                         "The host's limit of %llu sandboxes is reached",
                                         (unsigned long long) m->conf->max_sandboxes);
        if (manager_count_owner(m, owner) >= m->conf->max_per_owner)
                return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED,
                                         "The limit of %llu sandboxes of uid %u is reached",
                                         (unsigned long long) m->conf->max_per_owner, (unsigned) owner);
        return 0;
}

/* Also of the file system that a loop image lies on: it is sparse, and a host that runs full takes all sandboxes down.
 */
static int check_space(sd_bus_error *error) {
        static const char *const paths[] = { STORAGE_PATH, "/var/lib" };
        struct statvfs fs;

        for (size_t i = 0; i < ELEMENTSOF(paths); i++)
                if (statvfs(paths[i], &fs) >= 0 && (uint64_t) fs.f_bavail * fs.f_frsize < SPACE_MIN)
                        return sd_bus_error_setf(error, BUS_ERROR_LIMIT_EXCEEDED,
                                                 "Less than %llu MiB are free below %s: no sandbox is created",
                                                 SPACE_MIN >> 20, paths[i]);
        return 0;
}

static int read_spec(struct manager *m, sd_bus_message *message, struct sandbox_spec *spec, sd_bus_error *error) {
        const struct option options[] = {
                { "Name", OPTION_STRING, &spec->name, NULL },
                { "TTLUSec", OPTION_UINT64, &spec->ttl_usec, NULL },
                { "RuntimeMaxUSec", OPTION_UINT64, &spec->runtime_max_usec, NULL },
                { "MemoryMax", OPTION_UINT64, &spec->memory_max, NULL },
                { "CPUs", OPTION_DOUBLE, &spec->cpus, NULL },
                { "TasksMax", OPTION_UINT64, &spec->tasks_max, NULL },
                { "DiskSize", OPTION_UINT64, &spec->disk_size, NULL },
                { "Hostname", OPTION_STRING, &spec->hostname, NULL },
                { "Environment", OPTION_STRV, &spec->environment, NULL },
                { "Metadata", OPTION_DICT, &spec->metadata, NULL },
                {},
        };
        int r;

        spec->ttl_usec = m->conf->default_ttl_usec == USEC_INFINITY ? 0 : m->conf->default_ttl_usec;
        spec->runtime_max_usec = m->conf->runtime_max_usec;
        spec->tasks_max = m->conf->tasks_max;
        r = options_read(message, options, error);
        if (r >= 0)
                r = options_read_flags(message, error);
        if (r < 0)
                return r;
        /* Whoever asks for more than the administrator's cap gets the cap. */
        if (spec->runtime_max_usec == 0 || spec->runtime_max_usec > m->conf->runtime_max_usec)
                spec->runtime_max_usec = m->conf->runtime_max_usec;
        return 0;
}

static int create_allowed(struct call *c, sd_bus_error *error) {
        _cleanup_(sandbox_spec_done) struct sandbox_spec spec = { .owner = c->uid };
        struct template *t = NULL;
        const char *name;
        int r;

        r = sd_bus_message_read(c->message, "s", &name);
        if (r >= 0)
                r = read_spec(c->manager, c->message, &spec, error);
        if (r >= 0)
                r = find_template(c->manager, name, &t, error);
        if (r >= 0)
                r = check_names(&spec, c->manager, error);
        if (r >= 0)
                r = check_sizes(&spec, t->manifest, c->manager->conf->tasks_max, error);
        if (r >= 0)
                r = check_limits(c->manager, c->uid, error);
        if (r >= 0)
                r = check_space(error);
        return r < 0 ? r : sandbox_create(c->manager, t, &spec, c->message, error);
}

static int method_create(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        const char *template;
        int r;

        r = sd_bus_message_read(message, "s", &template);
        if (r < 0)
                return r;
        r = sd_bus_message_rewind(message, true);
        return r < 0 ? r : call_authorize(userdata, message, VERB_CREATE, NULL, template, create_allowed);
}

static int get_sandbox_identified(struct call *c, sd_bus_error *error) {
        struct sandbox *s;
        const char *name;
        char path[64];
        int r;

        r = sd_bus_message_read(c->message, "s", &name);
        if (r >= 0)
                r = options_read_flags(c->message, error);
        if (r >= 0)
                r = sandbox_lookup(c->manager, c->uid, name, &s, error);
        if (r < 0)
                return r;
        /* The path is no secret; what is behind it asks for itself. */
        sandbox_path(s, path);
        return sd_bus_reply_method_return(c->message, "o", path);
}

static int method_get_sandbox(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        return call_identify(userdata, message, NULL, get_sandbox_identified);
}

struct list_filter {
        char *name, *template, *state;
        uint32_t owner;
        bool has_owner;
        json_t *metadata;
};

static void list_filter_done(struct list_filter *f) {
        free(f->name);
        free(f->template);
        free(f->state);
        json_decref(f->metadata);
}

static bool passes(const struct list_filter *f, const struct sandbox *s) {
        const char *key;
        json_t *value;

        if ((f->name && !streq(f->name, s->name)) || (f->template && !streq(f->template, s->template_name)) ||
            (f->state && !streq(f->state, sandbox_state_to_string(s->state))) ||
            (f->has_owner && f->owner != s->owner))
                return false;
        json_object_foreach (f->metadata, key, value)
                if (!json_equal(json_object_get(s->metadata, key), value))
                        return false;
        return true;
}

static int append_sandbox(sd_bus_message *reply, const struct sandbox *s) {
        uint64_t deadline =
                s->deadline_boot_usec == 0 ? 0 : now_realtime_usec() + s->deadline_boot_usec - now_boottime_usec();
        char path[64];

        sandbox_path(s, path);
        return sd_bus_message_append(reply, "(ssusstto)", s->id, s->name, (uint32_t) s->owner, s->template_name,
                                     sandbox_state_to_string(s->state), s->created_usec, deadline, path);
}

static int list_reply(struct manager *m, sd_bus_message *message, uid_t uid, bool all, sd_bus_error *error) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(list_filter_done) struct list_filter f = {};
        const struct option options[] = {
                { "Name", OPTION_STRING, &f.name, NULL },       { "Template", OPTION_STRING, &f.template, NULL },
                { "State", OPTION_STRING, &f.state, NULL },     { "Owner", OPTION_UINT32, &f.owner, &f.has_owner },
                { "Metadata", OPTION_DICT, &f.metadata, NULL }, {},
        };
        struct sandbox *s;
        int r;

        r = options_read(message, options, error);
        if (r >= 0)
                r = options_read_flags(message, error);
        if (r >= 0)
                r = sd_bus_message_new_method_return(message, &reply);
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'a', "(ssusstto)");
        if (r < 0)
                return r;
        LIST_FOREACH (s, &m->sandboxes, sandboxes) {
                if ((!all && s->owner != uid) || !passes(&f, s))
                        continue;
                r = append_sandbox(reply, s);
                if (r < 0)
                        return r;
        }
        r = sd_bus_message_close_container(reply);
        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

static void reply_or_fail(sd_bus_message *message, int r, sd_bus_error *error) {
        if (r < 0)
                sd_bus_reply_method_errno(message, r, error);
        sd_bus_error_free(error);
}

static void list_asked(bool all, uid_t uid, sd_bus_message *message, void *userdata) {
        sd_bus_error error = SD_BUS_ERROR_NULL;

        reply_or_fail(message, list_reply(userdata, message, uid, all, &error), &error);
}

static int method_list(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        return call_ask(userdata, message, VERB_INSPECT, NULL, list_asked, userdata);
}

static void usage_asked(bool all, uid_t uid, sd_bus_message *message, void *userdata) {
        sd_bus_error error = SD_BUS_ERROR_NULL;

        reply_or_fail(message, usage_reply(userdata, message, uid, all, &error), &error);
}

static int method_get_usage(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        return call_ask(userdata, message, VERB_INSPECT, NULL, usage_asked, userdata);
}

static int append_template(sd_bus_message *reply, const struct template *t) {
        const struct manifest *f = t->manifest;
        _cleanup_free_ char *path = template_path(t);

        if (!path)
                return -ENOMEM;
        return sd_bus_message_append(reply, "(ssttutuo)", f->name, f->version, f->created_usec, f->memory,
                                     (uint32_t) f->cpus, f->disk_size, template_users(t), path);
}

static int method_list_templates(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        struct manager *m = userdata;
        struct template *t;
        int r;

        r = options_read_flags(message, error);
        if (r >= 0)
                r = sd_bus_message_new_method_return(message, &reply);
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'a', "(ssttutuo)");
        if (r < 0)
                return r;
        LIST_FOREACH (t, &m->templates, templates) {
                r = append_template(reply, t);
                if (r < 0)
                        return r;
        }
        r = sd_bus_message_close_container(reply);
        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

static int bake_allowed(struct call *c, sd_bus_error *error) {
        const char *name;
        bool force = false;
        const struct option options[] = { { "Force", OPTION_BOOL, &force, NULL }, {} };
        int r;

        r = sd_bus_message_read(c->message, "s", &name);
        if (r >= 0)
                r = options_read(c->message, options, error);
        if (r >= 0)
                r = options_read_flags(c->message, error);
        return r < 0 ? r : job_start_bake(c->manager, name, force, c->uid, c->message, error);
}

static int method_bake(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        const char *name;
        int r;

        r = sd_bus_message_read(message, "s", &name);
        if (r < 0)
                return r;
        r = sd_bus_message_rewind(message, true);
        return r < 0 ? r : call_authorize(userdata, message, VERB_BAKE, NULL, name, bake_allowed);
}

static int method_list_jobs(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        struct manager *m = userdata;
        struct job *j;
        int r;

        r = options_read_flags(message, error);
        if (r >= 0)
                r = sd_bus_message_new_method_return(message, &reply);
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'a', "(usssdso)");
        if (r < 0)
                return r;
        LIST_FOREACH (j, &m->jobs, jobs) {
                char path[64];

                job_path(j, path);
                r = sd_bus_message_append(reply, "(usssdso)", j->id, "bake", j->target,
                                          j->canceling ? "canceling" : "running", j->progress, j->status, path);
                if (r < 0)
                        return r;
        }
        r = sd_bus_message_close_container(reply);
        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

static int get_version(sd_bus *bus, const char *path, const char *interface, const char *property,
                       sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", PROJECT_VERSION);
}

static int get_accelerator(sd_bus *bus, const char *path, const char *interface, const char *property,
                           sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", host_accelerator(((struct manager *) userdata)->host));
}

static int get_vmm_version(sd_bus *bus, const char *path, const char *interface, const char *property,
                           sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "s", ((struct manager *) userdata)->host->vmm_version);
}

static int get_missing(sd_bus *bus, const char *path, const char *interface, const char *property,
                       sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append_strv(reply, ((struct manager *) userdata)->missing_controllers);
}

static int get_n_sandboxes(sd_bus *bus, const char *path, const char *interface, const char *property,
                           sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "u", (uint32_t) ((struct manager *) userdata)->n_sandboxes);
}

const sd_bus_vtable manager_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("CreateSandbox", SD_BUS_ARGS("s", template, "a{sv}", options, "t", flags),
                                SD_BUS_RESULT("s", id, "o", sandbox), method_create, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("GetSandbox", SD_BUS_ARGS("s", id_or_name, "t", flags), SD_BUS_RESULT("o", sandbox),
                                method_get_sandbox, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ListSandboxes", SD_BUS_ARGS("a{sv}", filter, "t", flags),
                                SD_BUS_RESULT("a(ssusstto)", sandboxes), method_list, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ListTemplates", SD_BUS_ARGS("t", flags), SD_BUS_RESULT("a(ssttutuo)", templates),
                                method_list_templates, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("BakeTemplate", SD_BUS_ARGS("s", name, "a{sv}", options, "t", flags),
                                SD_BUS_RESULT("o", job), method_bake, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ListJobs", SD_BUS_ARGS("t", flags), SD_BUS_RESULT("a(usssdso)", jobs),
                                method_list_jobs, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("GetUsage", SD_BUS_ARGS("a{sv}", options, "t", flags), SD_BUS_RESULT("h", records),
                                method_get_usage, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_SIGNAL_WITH_ARGS("JobRemoved", SD_BUS_ARGS("u", id, "o", job, "s", result, "s", error), 0),
        SD_BUS_PROPERTY("Version", "s", get_version, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Accelerator", "s", get_accelerator, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("VMMVersion", "s", get_vmm_version, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("MissingControllers", "as", get_missing, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("NSandboxes", "u", get_n_sandboxes, 0, 0),
        SD_BUS_VTABLE_END,
};
