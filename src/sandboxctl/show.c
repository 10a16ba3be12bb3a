/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* show: properties as they are, for programs. */

#include "table.h"
#include "values.h"

/* Only those that were asked for, in the order of asking. */
static int select_properties(const struct options *o, json_t **properties) {
        _cleanup_json_ json_t *selected = NULL;

        if (!o->properties)
                return 0;
        selected = json_object();
        if (!selected)
                return -ENOMEM;
        for (char **p = o->properties; *p; p++) {
                json_t *v = json_object_get(*properties, *p);

                if (!v) {
                        complain("There is no property %s", *p);
                        return -ENOENT;
                }
                if (json_object_set(selected, *p, v) < 0)
                        return -ENOMEM;
        }
        json_decref(*properties);
        *properties = TAKE_PTR(selected);
        return 0;
}

static int print_properties(FILE *f, const struct options *o, json_t *properties) {
        const char *name;
        json_t *v;

        json_object_foreach (properties, name, v) {
                _cleanup_free_ char *text = value_to_text(v);

                if (!text)
                        return -ENOMEM;
                if (o->value)
                        fprintf(f, "%s\n", text);
                else
                        fprintf(f, "%s=%s\n", name, text);
        }
        return 0;
}

/* All objects, as one JSON array or as blocks with an empty line between. */
static int print_all(FILE *f, const struct options *o, json_t *all) {
        json_t *properties;
        size_t i;
        int r = 0;

        if (o->json != JSON_OFF) {
                json_print(f, all, o->json);
                return 0;
        }
        json_array_foreach (all, i, properties) {
                if (i > 0)
                        fputc('\n', f);
                r = r < 0 ? r : print_properties(f, o, properties);
        }
        return r;
}

static int add_object(struct ctl *c, json_t *all, const char *path, const char *interface, const char *name) {
        _cleanup_error_ sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_json_ json_t *properties = NULL;
        int r;

        r = get_properties(c, path, interface, &error, &properties);
        if (r < 0) {
                complain_bus(&error, r, "Failed to get properties of %s", name);
                return r;
        }
        r = select_properties(c->options, &properties);
        if (r >= 0 && json_array_append(all, properties) < 0)
                r = -ENOMEM;
        return r;
}

static int add_sandbox(struct ctl *c, json_t *all, const char *name) {
        _cleanup_free_ char *path = NULL;
        int r = find_sandbox(c, name, &path);

        return r < 0 ? r : add_object(c, all, path, BUS_INTERFACE_SANDBOX, name);
}

int verb_show(struct ctl *c, char **arguments) {
        _cleanup_json_ json_t *all = json_array();
        struct output out;
        int r = 0, failed = 0;

        if (!all)
                return complain_oom();
        if (!arguments[0] && add_object(c, all, BUS_PATH, BUS_INTERFACE_MANAGER, "sandboxd") < 0)
                return EXIT_FAILURE;
        for (; *arguments; arguments++)
                if (add_sandbox(c, all, *arguments) < 0)
                        failed = 1;
        r = output_begin(&out);
        if (r >= 0)
                r = print_all(out.f, c->options, all);
        return output_end(&out, c->options, r) || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
