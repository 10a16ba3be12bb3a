/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Bakes one template: root → disk → cold boot → commands → capture → published snapshot. Runs in a unit of its own,
 * whose status text tells how far it is and, at the end, what went wrong. One way up, and one way down for failure and
 * for SIGTERM. */

#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "bake.h"
#include "log.h"
#include "machine.h"

static bool on_terminal;

void bake_status(unsigned percent, const char *what) {
        (void) sd_notifyf(0, "STATUS=%u%% %s", percent, what);
        if (on_terminal)
                fprintf(stderr, "%3u%% %s\n", percent, what);
        else
                log_debug("%u%% %s", percent, what);
}

int bake_fail(struct bake *b, int error, const char *format, ...) {
        _cleanup_free_ char *text = NULL;
        va_list ap;

        if (b->error || error == -ECANCELED)
                return -abs(error);
        va_start(ap, format);
        if (vasprintf(&text, format, ap) < 0)
                text = NULL;
        va_end(ap);
        if (!text || error >= 0)
                b->error = TAKE_PTR(text);
        else if (asprintf(&b->error, "%s: %s", text, strerror(-error)) < 0)
                b->error = NULL;
        return -abs(error);
}

/* Mounts of the programs that install packages end with this process, however they end. */
static int own_mounts(struct bake *b) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
                return bake_fail(b, -errno, "Can't get a mount namespace");
        return 0;
}

static int make_manifest(struct bake *b) {
        const struct template *t = b->template;
        struct manifest m = {
                .id = b->id,
                .name = (char *) b->name,
                .version = b->version,
                .description = t->description,
                .created_usec = now_realtime_usec(),
                .vmm_version = b->host->vmm_version,
                .accelerator = (char *) host_accelerator(b->host),
                .cpu_model = b->host->cpu_model,
                .machine = MACHINE_VERSION,
                .memory = t->memory,
                .cpus = t->cpus,
                .volumes = t->volumes,
                .kernel = b->release,
                .disk_size = t->disk,
                .user = t->user,
                .directory = t->directory,
                .environment = t->environment,
                .egress = t->egress,
        };

        return workspace_publish(b, &m);
}

/* Returns 1 when there is nothing to do. */
static int prepare(struct bake *b) {
        int r;

        bake_status(0, "Reading the description");
        b->interrupt_fd = interrupt_open();
        if (b->interrupt_fd < 0)
                return bake_fail(b, b->interrupt_fd, "Can't listen for signals");
        r = conf_load(NULL, &b->conf);
        if (r < 0)
                return bake_fail(b, EINVAL, "The configuration is wrong; the log says where");
        b->storage_fd = open(STORAGE_PATH, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (b->storage_fd < 0)
                return bake_fail(b, -errno, "Can't open %s (is sandboxd-storage.service running?)", STORAGE_PATH);
        r = bake_inputs(b);
        if (r < 0)
                return r;
        r = bake_is_published(b);
        if (r != 0 && !b->force)
                return r;
        return id_make(b->id);
}

static int bake(struct bake *b) {
        uint64_t start = now_monotonic_nsec();
        int r;

        r = prepare(b);
        if (r != 0)
                return r;
        r = own_mounts(b);
        if (r >= 0)
                r = workspace_make(b);
        if (r >= 0)
                r = root_make(b);
        if (r >= 0)
                r = image_make(b);
        if (r >= 0)
                r = machine_bake(b);
        if (r >= 0)
                r = make_manifest(b);
        if (r < 0)
                return r;
        bake_status(100, "Published");
        log_notice("Baked %s as snapshot %s in %.1f s", b->name, b->id, (double) (now_monotonic_nsec() - start) / 1e9);
        return 0;
}

/* The sentence may end in what a program or the guest printed. A notification is lines of assignments in UTF-8 and at
 * most 4096 bytes, so it gets one clean line. */
static void notify_error(const char *error) {
        char line[2048];
        json_t *string;

        snprintf(line, sizeof(line), "%s", error);
        for (char *p = line; *p; p++)
                if ((unsigned char) *p < 32 || *p == 127)
                        *p = ' ';
        string = json_string(line); /* NULL when it isn't UTF-8 */
        for (char *p = line; *p && !string; p++)
                if (*p & 0x80)
                        *p = '?';
        json_decref(string);
        (void) sd_notifyf(0, "STATUS=error: %s", line);
}

static int finish(struct bake *b, int r) {
        workspace_remove(b);
        /* Whoever stops the unit stops the programs as well, and their failure may be seen first. */
        if (r < 0 && b->interrupt_fd >= 0 && interrupt_wait(b->interrupt_fd, -1, 0) == -ECANCELED) {
                free(b->error);
                b->error = strdup("Canceled");
        }
        if (r < 0) {
                notify_error(b->error ?: strerror(-r));
                log_error("Can't bake %s: %s", b->name, b->error ?: strerror(-r));
        } else if (r > 0) {
                bake_status(100, "Nothing to do");
                log_info("%s was baked from the same inputs already", b->name);
        }
        close_fd(b->interrupt_fd);
        close_fd(b->storage_fd);
        free(b->error);
        free(b->folder);
        free(b->kernel);
        free(b->release);
        free(b->modules);
        template_free(b->template);
        host_free(b->host);
        conf_free(b->conf);
        return r < 0 ? EXIT_FAILURE : r > 0 ? EXIT_UNCHANGED : EXIT_SUCCESS;
}

int main(int argc, char *argv[]) {
        static const struct option options[] = { { "force", no_argument, NULL, 'f' },
                                                 { "definition", required_argument, NULL, 'd' },
                                                 { "libexec", required_argument, NULL, 'l' },
                                                 {} };
        struct bake b = { .libexec = LIBEXECDIR, .interrupt_fd = -1, .storage_fd = -1, .work_fd = -1 };
        int c;

        log_setup("sandboxd-bake");
        umask(0022);
        on_terminal = isatty(STDERR_FILENO);
        while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0)
                switch (c) {
                case 'f':
                        b.force = true;
                        break;
                case 'd':
                        b.definition = optarg;
                        break;
                case 'l':
                        b.libexec = optarg;
                        break;
                default:
                        return 2;
                }
        if (optind != argc - 1 || !name_is_valid(argv[optind])) {
                fprintf(stderr, "usage: sandboxd-bake [--force] [--definition FILE] NAME\n");
                return 2;
        }
        b.name = argv[optind];
        return finish(&b, bake(&b));
}
