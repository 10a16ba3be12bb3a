/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A template on the bus. */

#include "authorize.h"
#include "options.h"
#include "template.h"

static struct template *template_by_path(struct manager *m, const char *path) {
        _cleanup_free_ char *name = NULL;

        return sd_bus_path_decode(path, BUS_PATH_TEMPLATE, &name) > 0 ? template_by_name(m, name) : NULL;
}

int template_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **ret,
                  sd_bus_error *error) {
        *ret = template_by_path(userdata, path);
        return *ret ? 1 : 0;
}

int template_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***ret, sd_bus_error *error) {
        struct manager *m = userdata;
        _cleanup_strv_free_ char **paths = NULL;
        struct template *t;

        LIST_FOREACH (t, &m->templates, templates)
                if (strv_consume(&paths, template_path(t)) < 0)
                        return -ENOMEM;
        *ret = TAKE_PTR(paths);
        return 0;
}

static int remove_allowed(struct call *c, sd_bus_error *error) {
        struct template *t = template_by_path(c->manager, sd_bus_message_get_path(c->message));
        int r;

        if (!t)
                return sd_bus_error_set(error, BUS_ERROR_NO_SUCH_TEMPLATE, "The template is gone");
        r = options_read_flags(c->message, error);
        if (r >= 0)
                r = template_remove(t);
        return r < 0 ? r : sd_bus_reply_method_return(c->message, NULL);
}

static int method_remove(sd_bus_message *message, void *userdata, sd_bus_error *error) {
        struct template *t = userdata;

        return call_authorize(t->manager, message, VERB_MANAGE_TEMPLATES, NULL, t->manifest->name, remove_allowed);
}

static int get_string(sd_bus *bus, const char *path, const char *interface, const char *property,
                      sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        const struct template *t = userdata;
        const struct manifest *f = t->manifest;
        const struct {
                const char *property, *value;
        } values[] = {
                { "Name", f->name },         { "Description", f->description }, { "Version", f->version },
                { "Kernel", f->kernel },     { "Accelerator", f->accelerator }, { "VMMVersion", f->vmm_version },
                { "Mismatch", t->mismatch },
        };

        for (size_t i = 0; i < ELEMENTSOF(values); i++)
                if (streq(property, values[i].property))
                        return sd_bus_message_append(reply, "s", strempty(values[i].value));
        return -ENOENT;
}

static int get_number(sd_bus *bus, const char *path, const char *interface, const char *property,
                      sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        const struct manifest *f = ((struct template *) userdata)->manifest;

        if (streq(property, "CreatedUSec"))
                return sd_bus_message_append(reply, "t", f->created_usec);
        if (streq(property, "Memory"))
                return sd_bus_message_append(reply, "t", f->memory);
        return sd_bus_message_append(reply, "t", f->disk_size);
}

static int get_cpus(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                    void *userdata, sd_bus_error *error) {
        return sd_bus_message_append(reply, "u", ((struct template *) userdata)->manifest->cpus);
}

#define CHANGES SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE

const sd_bus_vtable template_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("Remove", SD_BUS_ARGS("t", flags), SD_BUS_NO_RESULT, method_remove,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_PROPERTY("Name", "s", get_string, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Description", "s", get_string, 0, CHANGES),
        SD_BUS_PROPERTY("Version", "s", get_string, 0, CHANGES),
        SD_BUS_PROPERTY("CreatedUSec", "t", get_number, 0, CHANGES),
        SD_BUS_PROPERTY("Memory", "t", get_number, 0, CHANGES),
        SD_BUS_PROPERTY("CPUs", "u", get_cpus, 0, CHANGES),
        SD_BUS_PROPERTY("DiskSize", "t", get_number, 0, CHANGES),
        SD_BUS_PROPERTY("Kernel", "s", get_string, 0, CHANGES),
        SD_BUS_PROPERTY("Accelerator", "s", get_string, 0, CHANGES),
        SD_BUS_PROPERTY("VMMVersion", "s", get_string, 0, CHANGES),
        SD_BUS_PROPERTY("Mismatch", "s", get_string, 0, CHANGES),
        SD_BUS_VTABLE_END,
};
