/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "bake.h"
#include "log.h"
#include "sources.h"
#include "tree.h"

/* A mirror may be slow; a bake that gets nowhere must still end. */
#define ROOT_TIMEOUT_USEC (3600 * USEC_PER_SEC)
#define ERROR_TAIL_SIZE 1200U

/* Nobody reads them in a sandbox. Licences stay. */
static const char *const dpkg_options[] = {
        "path-exclude=/usr/share/doc/*",
        "path-include=/usr/share/doc/*/copyright",
        "path-exclude=/usr/share/info/*",
        "path-exclude=/usr/share/locale/*",
        "path-include=/usr/share/locale/locale.alias",
        "path-exclude=/usr/share/man/*",
};

static bool starts_with_any(const char *line, const char *const *prefixes) {
        for (; *prefixes; prefixes++)
                if (strncmp(line, *prefixes, strlen(*prefixes)) == 0)
                        return true;
        return false;
}

/* Of mmdebstrap's talk the lines that name the fault, where there are any: what failed in the programs that it ran,
 * and not that it failed for that. In place. */
static char *error_lines(char *text) {
        static const char *const kept[] = { "E: ", "Err:", "dpkg: error", "error: ", NULL };
        static const char *const noise[] = { "E: setup failed", "E: mmdebstrap failed", "E: run_chroot failed", NULL };
        _cleanup_free_ char *copy = strdup(text);
        char *state = NULL, *end = text;

        for (char *line = copy ? strtok_r(copy, "\n", &state) : NULL; line; line = strtok_r(NULL, "\n", &state))
                if (starts_with_any(line, kept) && !starts_with_any(line, noise))
                        end += sprintf(end, "%s%s", end > text ? "\n" : "", line);
        return text;
}

static int run_failed(struct bake *b, int error, const char *program, const char *package, const char *what,
                      char *tail) {
        if (error == -ECANCELED)
                return error;
        if (error == -ENOENT)
                return bake_fail(b, -error, "%s is missing: install the package %s", program, package);
        if (error == -EPROTO)
                return bake_fail(b, -error, "%s failed, %s said: %s", what, program,
                                 text_tail(error_lines(tail), ERROR_TAIL_SIZE));
        return bake_fail(b, error, "%s failed", what);
}

static int mmdebstrap_arguments(struct bake *b, const char *root, char *const *sources, char ***ret) {
        _cleanup_strv_free_ char **argv = NULL;
        const char *suite = b->template->suite ?: b->conf->suite;
        int r;

        r = strv_extend(&argv, "mmdebstrap");
        if (r >= 0)
                r = strv_extend(&argv, "--mode=root");
        if (r >= 0)
                r = strv_extend(&argv, "--variant=minbase");
        if (r >= 0)
                r = strv_extend(&argv, "--format=directory");
        for (size_t i = 0; i < ELEMENTSOF(dpkg_options) && r >= 0; i++)
                r = strv_extendf(&argv, "--dpkgopt=%s", dpkg_options[i]);
        /* The tree becomes an image that is synced once. */
        if (r >= 0)
                r = strv_extend(&argv, "--dpkgopt=force-unsafe-io");
        for (char **p = b->template->packages; *p && r >= 0; p++)
                r = strv_extendf(&argv, "--include=%s", *p);
        if (r >= 0)
                r = strv_extend(&argv, suite);
        if (r >= 0)
                r = strv_extend(&argv, root);
        for (; *sources && r >= 0; sources++)
                r = strv_extend(&argv, *sources);
        if (r >= 0)
                *ret = TAKE_PTR(argv);
        return r;
}

static int run_mmdebstrap(struct bake *b, const char *root) {
        _cleanup_strv_free_ char **argv = NULL, **sources = NULL;
        _cleanup_free_ char *tail = NULL;
        int r;

        r = sources_load(b->conf, b->template->suite ?: b->conf->suite, &sources);
        if (r == -ENODATA)
                return bake_fail(b, ENODATA,
                                 "This host's apt knows no Debian mirror: name one with Mirror= in " CONF_PATH);
        if (r < 0)
                return bake_fail(b, r, "Can't find out where to take packages from");
        for (char **p = sources; *p; p++)
                log_debug("Packages come from: %s", *p);
        r = mmdebstrap_arguments(b, root, sources, &argv);
        if (r < 0)
                return bake_fail(b, r, "Can't start mmdebstrap");
        r = process_run(b->interrupt_fd, argv, ROOT_TIMEOUT_USEC, &tail);
        return r < 0 ? run_failed(b, r, "mmdebstrap", "mmdebstrap", "Installing the packages", tail) : 0;
}

/* Where a path of the description is, seen from this process. */
static char *source_path(const struct bake *b, const char *path) {
        char *s = NULL;

        if (path[0] == '/')
                return strdup(path);
        return asprintf(&s, "%s/%s", b->folder, path) < 0 ? NULL : s;
}

static int run_tar(struct bake *b, const char *root) {
        _cleanup_free_ char *archive = source_path(b, b->template->rootfs), *tail = NULL;
        char *argv[] = { (char *) "tar",
                         (char *) "--extract",
                         (char *) "--numeric-owner",
                         (char *) "--same-permissions",
                         (char *) "--xattrs",
                         (char *) "--xattrs-include=*",
                         (char *) "--directory",
                         (char *) root,
                         (char *) "--file",
                         archive,
                         NULL };
        int r;

        if (!archive)
                return bake_fail(b, -ENOMEM, "Can't unpack the root");
        r = process_run(b->interrupt_fd, argv, ROOT_TIMEOUT_USEC, &tail);
        return r < 0 ? run_failed(b, r, "tar", "tar", "Unpacking the root", tail) : 0;
}

/* Lists of packages that only the host has. What else is left as it came. */
static int remove_local_sources(int root_fd) {
        _cleanup_close_ int fd = tree_open_folder(root_fd, "etc/apt/sources.list.d");
        struct dirent *entry;
        DIR *dir;
        int r = 0;

        if (fd < 0)
                return fd == -ENOENT || fd == -ENOTDIR ? 0 : fd;
        dir = fdopendir(fd);
        if (!dir)
                return -errno;
        TAKE_FD(fd);
        while (r >= 0 && (entry = readdir(dir))) {
                _cleanup_free_ char *text = NULL;

                if (entry->d_type == DT_REG && read_file_at(dirfd(dir), entry->d_name, 1U << 20, &text, NULL) >= 0 &&
                    (strstr(text, "copy:") || strstr(text, "file:")))
                        r = unlinkat(dirfd(dir), entry->d_name, 0) < 0 ? -errno : 0;
        }
        closedir(dir);
        return r;
}

static int remove_local_list(int root_fd) {
        _cleanup_close_ int fd = tree_open_folder(root_fd, "etc/apt");
        _cleanup_free_ char *text = NULL;

        if (fd < 0 || faccessat(fd, "sources.list", F_OK, AT_SYMLINK_NOFOLLOW) < 0)
                return 0;
        if (read_file_at(fd, "sources.list", 1U << 20, &text, NULL) < 0 ||
            (!strstr(text, "copy:") && !strstr(text, "file:")))
                return 0;
        return unlinkat(fd, "sources.list", 0) < 0 ? -errno : 0;
}

/* What is the machine's and not the template's: it must not say where it was made, and no two sandboxes may share it.
 */
static int fix_files(int root_fd) {
        static const struct {
                const char *path, *text;
        } files[] = {
                { "etc/resolv.conf", "nameserver 10.0.0.1\n" },
                { "etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n" },
                { "etc/hostname", "localhost\n" },
                { "etc/machine-id", "" },
                { "etc/fstab", "" },
        };
        static const char *const removed[] = {
                "etc/apt/apt.conf.d/99mmdebstrap",  "etc/ssh/ssh_host_rsa_key",       "etc/ssh/ssh_host_rsa_key.pub",
                "etc/ssh/ssh_host_ecdsa_key",       "etc/ssh/ssh_host_ecdsa_key.pub", "etc/ssh/ssh_host_ed25519_key",
                "etc/ssh/ssh_host_ed25519_key.pub", "var/lib/dbus/machine-id",        "var/lib/systemd/random-seed",
        };
        int r = 0;

        for (size_t i = 0; i < ELEMENTSOF(files) && r >= 0; i++)
                r = tree_write(root_fd, files[i].path, files[i].text, strlen(files[i].text), 0644);
        for (size_t i = 0; i < ELEMENTSOF(removed) && r >= 0; i++)
                r = tree_remove(root_fd, removed[i]);
        return r;
}

/* Folders that the agent mounts on or that commands expect; an archive may lack them. */
static int fix_folders(int root_fd) {
        static const struct {
                const char *path;
                mode_t mode;
        } folders[] = { { "dev", 0755 }, { "proc", 0555 }, { "sys", 0555 },
                        { "run", 0755 }, { "tmp", 01777 }, { "root", 0700 } };
        int r = 0;

        for (size_t i = 0; i < ELEMENTSOF(folders) && r >= 0; i++)
                r = tree_mkdir(root_fd, folders[i].path, folders[i].mode);
        return r;
}

static int copy_files(struct bake *b, int root_fd) {
        for (size_t i = 0; i < b->template->n_copy; i++) {
                const struct template_copy *copy = &b->template->copy[i];
                _cleanup_free_ char *from = source_path(b, copy->from);
                int r;

                r = from ? tree_copy(root_fd, copy->to, from, copy->mode) : -ENOMEM;
                if (r < 0)
                        return bake_fail(b, r, "Can't copy %s to %s", copy->from, copy->to);
        }
        return 0;
}

int root_make(struct bake *b) {
        _cleanup_free_ char *root = NULL;
        _cleanup_close_ int root_fd = -1;
        int r;

        if (asprintf(&root, "%s/root", b->work) < 0) {
                root = NULL;
                return bake_fail(b, -ENOMEM, "Can't make the root");
        }
        if (b->template->rootfs)
                bake_status(5, "Unpacking the root");
        else
                bake_status(5, "Installing packages");
        r = b->template->rootfs ? run_tar(b, root) : run_mmdebstrap(b, root);
        if (r < 0)
                return r;
        root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = root_fd < 0 ? -errno : fchmod(root_fd, 0755) < 0 ? -errno : fix_files(root_fd);
        if (r >= 0)
                r = fix_folders(root_fd);
        if (r >= 0)
                r = remove_local_sources(root_fd);
        if (r >= 0)
                r = remove_local_list(root_fd);
        if (r < 0)
                return bake_fail(b, r, "Can't adapt the root's files");
        return copy_files(b, root_fd);
}

int image_make(struct bake *b) {
        _cleanup_free_ char *root = NULL, *image = NULL, *tail = NULL;
        _cleanup_close_ int fd = -1;
        int r = -ENOMEM;

        bake_status(50, "Making the disk");
        if (asprintf(&root, "%s/root", b->work) < 0 || asprintf(&image, "%s/" SNAPSHOT_DISK, b->work) < 0)
                return bake_fail(b, r, "Can't make the disk");
        fd = openat(b->work_fd, SNAPSHOT_DISK, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, (off_t) b->template->disk) < 0)
                return bake_fail(b, -errno, "Can't make the disk");

        /* Metadata at the front in one piece: fewer extents to clone. Room to grow to 1 TiB online, and a small
         * journal, for both cost space. In a fresh sparse file mkfs takes what it needn't write for zeroed, so the
         * guest has no tables left to initialise in the background. */
        char *argv[] = { (char *) "mkfs.ext4",
                         (char *) "-q",
                         (char *) "-F",
                         (char *) "-b",
                         (char *) "4096",
                         (char *) "-m",
                         (char *) "0",
                         (char *) "-J",
                         (char *) "size=16",
                         (char *) "-E",
                         (char *) "root_owner=0:0,packed_meta_blocks=1,resize=268435456",
                         (char *) "-d",
                         root,
                         image,
                         NULL };

        r = process_run(b->interrupt_fd, argv, ROOT_TIMEOUT_USEC, &tail);
        if (r < 0)
                return run_failed(b, r, "mkfs.ext4", "e2fsprogs", "Making the disk", tail);
        return workspace_drop_root(b);
}
