/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* sandboxctl: what people say to sandboxd. The table of verbs, and nothing else; each verb's file says the rest. */

#include <fcntl.h>

#include "ctl.h"

static const struct verb verbs[] = {
        /* the first is taken where none is given */
        { "list", 0, 0, GROUP_LIST | GROUP_FILTER, false, "", "List sandboxes", verb_list },
        { "run", 2, -1, GROUP_CREATE | GROUP_ENV | GROUP_COMMAND, true, "TEMPLATE [--] COMMAND...",
          "Run a command in a sandbox of its own, which goes with it", verb_run },
        { "create", 1, 1, GROUP_CREATE | GROUP_ENV, false, "TEMPLATE", "Create a sandbox and print its id",
          verb_create },
        { "exec", 2, -1, GROUP_ENV | GROUP_COMMAND, true, "SANDBOX [--] COMMAND...", "Run a command in a sandbox",
          verb_exec },
        { "status", 1, -1, 0, false, "SANDBOX...", "Show a sandbox on a page", verb_status },
        { "show", 0, -1, GROUP_SHOW, false, "[SANDBOX...]", "Show properties of sandboxes, or of the service",
          verb_show },
        { "ps", 1, 1, 0, false, "SANDBOX", "List the commands of a sandbox", verb_ps },
        { "ttl", 2, 2, 0, false, "SANDBOX TIME", "Let a sandbox end this long from now", verb_ttl },
        { "kill", 1, 1, GROUP_KILL, false, "SANDBOX", "Send a signal to commands of a sandbox", verb_kill },
        { "rm", 0, -1, GROUP_REMOVE | GROUP_FORCE, false, "SANDBOX... | --all", "Remove sandboxes", verb_remove },
        { "templates", 0, 0, 0, false, "", "List templates", verb_templates },
        { "bake", 1, 1, GROUP_FORCE, false, "TEMPLATE", "Build a template and wait for it", verb_bake },
        { "jobs", 0, 0, 0, false, "", "List what is being built", verb_jobs },
        { "usage", 0, 1, GROUP_USAGE, false, "[SANDBOX]", "Show what sandboxes have used", verb_usage },
        { "monitor", 0, 0, 0, false, "", "Show what happens, until ^C", verb_monitor },
        {},
};

static int help(const struct verb *verb) {
        if (verb) {
                printf("sandboxctl [OPTION...] %s [OPTION...] %s\n\n%s.\n", verb->name, verb->synopsis, verb->help);
                if (verb->groups) {
                        puts("\nOptions:");
                        options_help(stdout, verb->groups);
                }
        } else {
                puts("sandboxctl [OPTION...] VERB [OPTION...] [ARGUMENT...]\n\n"
                     "Create sandboxes, run commands in them, look after them.\n\nVerbs:");
                for (verb = verbs; verb->name; verb++) {
                        char left[64];

                        snprintf(left, sizeof(left), "%s %s", verb->name, verb->synopsis);
                        printf("  %-30s %s\n", left, verb->help);
                }
        }
        puts("\nOptions of every verb:");
        options_help(stdout, GROUP_ANY);
        if (!verb || !verb->name)
                puts("\nsandboxctl VERB --help shows the options of a verb; sandboxctl(1) explains them.");
        return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* With a hole in 0…2 some later descriptor would become a standard one, and its data go where they don't belong. */
static void fill_standard_fds(void) {
        int fd;

        do
                fd = open("/dev/null", O_RDWR);
        while (fd >= 0 && fd <= STDERR_FILENO);
        close_fd(fd);
}

/* Where a command's status passes through, what isn't one must be told from it. */
static int failure_of(const struct verb *verb) {
        return verb && verb->command ? EXIT_OURS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
        struct options options;
        struct ctl ctl = { .options = &options };
        int r, status;

        fill_standard_fds();
        r = options_parse(argc, argv, verbs, &options);
        if (r == -ENOMEM)
                complain_oom();
        if (r < 0)
                status = failure_of(options.verb);
        else if (options.help)
                status = help(options.verb);
        else if (options.version)
                status = puts("sandboxctl " PROJECT_VERSION) >= 0 && fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
        else if (ctl_connect(&ctl) < 0)
                status = failure_of(options.verb);
        else
                status = options.verb->run(&ctl, options.arguments);
        ctl_done(&ctl);
        options_done(&options);
        return status;
}
