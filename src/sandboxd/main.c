/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* sandboxd: the control plane. Root, with few capabilities; never parses a byte that a guest wrote. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <sys/vfs.h>
#include <linux/magic.h>
#include <systemd/sd-daemon.h>

#include "cgroup.h"
#include "log.h"
#include "manager.h"
#include "manifest.h"
#include "worker.h"

/* Says what is missing and what to do, where an administrator looks: in the journal and in the unit's status. */
static int refuse(const char *what) {
        const char *fields[] = { "MESSAGE_ID=" MESSAGE_REFUSED, NULL };

        (void) log_fields(LOG_ERR, 0, fields, "Can't serve: %s", what);
        (void) sd_notifyf(0, "STATUS=Can't serve: %s", what);
        return -ENOTSUP;
}

static bool strv_contains(char *const *l, const char *s) {
        for (; l && *l; l++)
                if (streq(*l, s))
                        return true;
        return false;
}

static int check_controllers(const struct conf *conf, char ***ret_missing) {
        _cleanup_strv_free_ char **missing = NULL;
        char text[256];
        int r;

        r = cgroup_missing_controllers(&missing);
        if (r < 0)
                return refuse("no cgroup v2 hierarchy at " CGROUP_ROOT
                              "; boot with systemd.unified_cgroup_hierarchy=1");
        for (char **name = missing; name && *name; name++)
                if (!strv_contains(conf->allow_missing_controllers, *name)) {
                        snprintf(
                                text, sizeof(text),
                                "the cgroup controller \"%s\" is missing; enable it in the kernel, or allow that with "
                                "AllowMissingControllers=%s in " CONF_PATH,
                                *name, *name);
                        return refuse(text);
                }
        *ret_missing = TAKE_PTR(missing);
        return 0;
}

static int check_storage(void) {
        struct statfs fs;
        struct stat st;

        if (statfs(STORAGE_PATH, &fs) < 0 || fs.f_type != BTRFS_SUPER_MAGIC)
                return refuse(STORAGE_PATH " isn't on btrfs; see `systemctl status sandboxd-storage.service`");
        if (stat(STORAGE_PATH "/sandboxes", &st) < 0)
                return refuse(STORAGE_PATH " isn't set up; see `systemctl status sandboxd-storage.service`");
        return 0;
}

static int check_kernel(const struct conf *conf) {
        _cleanup_free_ char *path = NULL, *release = NULL, *message = NULL;

        return host_find_kernel(conf, &path, &release, &message) < 0 ? refuse(strempty(message)) : 0;
}

/* Two of them would each sweep away what the other makes. The lock goes with the process. */
static int lock(int *ret) {
        _cleanup_close_ int fd = -1;

        if (mkdir(RUNTIME_PATH, 0700) < 0 && errno != EEXIST)
                return log_error_errno(-errno, "Failed to create " RUNTIME_PATH);
        fd = open(RUNTIME_PATH "/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
                return log_error_errno(-errno, "Failed to open " RUNTIME_PATH "/lock");
        if (flock(fd, LOCK_EX | LOCK_NB) < 0)
                return refuse("another sandboxd is running; see `systemctl status sandboxd.service`");
        *ret = TAKE_FD(fd);
        return 0;
}

static int run(void) {
        _cleanup_(manager_freep) struct manager *m = NULL;
        _cleanup_(conf_freep) struct conf *conf = NULL;
        _cleanup_(host_freep) struct host *host = NULL;
        _cleanup_strv_free_ char **missing = NULL;
        _cleanup_free_ char *message = NULL;
        _cleanup_close_ int lock_fd = -1;
        int r;

        r = conf_load(NULL, &conf);
        if (r < 0)
                return refuse("the configuration has errors");
        r = check_controllers(conf, &missing);
        if (r >= 0)
                r = check_storage();
        if (r >= 0)
                r = check_kernel(conf);
        if (r < 0)
                return r;
        if (host_probe(conf, &host, &message) < 0)
                return refuse(strempty(message));
        r = lock(&lock_fd);
        if (r >= 0)
                r = manager_new(TAKE_PTR(conf), TAKE_PTR(host), &m);
        if (r < 0)
                return r;
        m->missing_controllers = TAKE_PTR(missing);
        r = sd_event_set_signal_exit(m->event, true);
        if (r >= 0)
                r = sd_event_set_watchdog(m->event, true);
        if (r >= 0)
                r = manager_adopt(m);
        if (r >= 0)
                r = manager_serve(m);
        if (r >= 0)
                r = sd_event_loop(m->event);
        (void) sd_notify(0, "STOPPING=1");
        return r;
}

int main(int argc, char *argv[]) {
        int r;

        log_setup("sandboxd");
        umask(0077);
        if (argc == 2 && streq(argv[1], "--worker"))
                return worker_main(STDIN_FILENO) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        if (argc == 2 && streq(argv[1], "--version")) {
                puts("sandboxd " PROJECT_VERSION);
                return EXIT_SUCCESS;
        }
        if (argc > 1) {
                fputs("sandboxd takes no arguments but --version; systemd starts it as sandboxd.service\n", stderr);
                return 2;
        }
        signal(SIGPIPE, SIG_IGN);
        r = run();
        return r == -ENOTSUP ? EX_CONFIG : r != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
