/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "cgroup.h"

#include <fcntl.h>
#include <stdio.h>

#define FILE_MAX (64U * 1024U)

int cgroup_of_pid(pid_t pid, char **ret) {
        _cleanup_free_ char *text = NULL;
        char path[64], *line, *end;
        int r;

        snprintf(path, sizeof(path), "/proc/%d/cgroup", (int) pid);
        r = read_file_at(AT_FDCWD, path, FILE_MAX, &text, NULL);
        if (r < 0)
                return r;
        line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
        if (!line)
                return -ENODATA;
        line = strchr(line, '/');
        if (!line)
                return -ENODATA;
        end = strchrnul(line, '\n');
        *ret = strndup(line, (size_t) (end - line));
        return *ret ? 0 : -ENOMEM;
}

static int read_group_file(const char *group, const char *file, char **ret) {
        _cleanup_free_ char *path = NULL;

        if (asprintf(&path, CGROUP_ROOT "%s/%s", group, file) < 0)
                return -ENOMEM;
        return read_file_at(AT_FDCWD, path, FILE_MAX, ret, NULL);
}

int cgroup_cpu_nsec(const char *group, uint64_t *ret) {
        _cleanup_free_ char *text = NULL;
        unsigned long long usec;
        const char *line;
        int r;

        r = read_group_file(group, "cpu.stat", &text);
        if (r < 0)
                return r;
        line = strstr(text, "usage_usec ");
        if (!line || sscanf(line, "usage_usec %llu", &usec) != 1)
                return -ENODATA;
        *ret = usec * NSEC_PER_USEC;
        return 0;
}

int cgroup_read_uint64(const char *group, const char *file, uint64_t *ret) {
        _cleanup_free_ char *text = NULL;
        int r;

        r = read_group_file(group, file, &text);
        if (r < 0)
                return r;
        text[strcspn(text, "\n")] = 0;
        return parse_uint64(text, ret);
}

int cgroup_missing_controllers(char ***ret) {
        static const char *const wanted[] = { "cpu", "memory", "pids" };
        _cleanup_free_ char *text = NULL;
        _cleanup_strv_free_ char **missing = NULL;
        bool found[ELEMENTSOF(wanted)] = {};
        char *state = NULL;
        int r;

        r = read_group_file("", "cgroup.controllers", &text);
        if (r < 0)
                return r;
        for (char *w = strtok_r(text, " \n", &state); w; w = strtok_r(NULL, " \n", &state))
                for (size_t i = 0; i < ELEMENTSOF(wanted); i++)
                        found[i] |= streq(w, wanted[i]);
        for (size_t i = 0; i < ELEMENTSOF(wanted); i++)
                if (!found[i] && strv_extend(&missing, wanted[i]) < 0)
                        return -ENOMEM;
        *ret = TAKE_PTR(missing);
        return 0;
}
