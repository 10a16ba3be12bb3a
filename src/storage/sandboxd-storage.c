/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Makes STORAGE_PATH a place on btrfs, before sandboxd starts: where the file system isn't btrfs, a sparse image
 * beside it is formatted once and mounted. What is there already is used as it is, so an administrator may mount a
 * disk of their own. Runs in the host's mount namespace, for the mount must be everyone's. */

#include <dirent.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <linux/major.h>
#include <mntent.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "conf.h"
#include "log.h"
#include "manifest.h"

#define IMAGE_DIRECTORY "/var/lib"
#define IMAGE_PATH IMAGE_DIRECTORY "/sandboxd.btrfs"
#define IMAGE_TEMPORARY IMAGE_DIRECTORY "/.sandboxd.btrfs.new"
#define FREE_MIN (2ULL << 30)
#define MIB(bytes) ((unsigned long long) (bytes) >> 20)

extern char **environ;

static int is_btrfs(const char *path) {
        struct statfs fs;

        if (statfs(path, &fs) < 0)
                return log_error_errno(-errno, "Can't look at the file system of %s", path);
        return fs.f_type == BTRFS_SUPER_MAGIC;
}

/* Opening the file system's type loads its module where there is one. */
static int check_kernel(void) {
        _cleanup_close_ int fd = fsopen("btrfs", FSOPEN_CLOEXEC);

        if (fd < 0 && errno == ENODEV)
                return log_error_errno(-ENODEV,
                                       "The kernel has no btrfs, which %s needs: install a kernel that has it, "
                                       "or the package with its modules",
                                       STORAGE_PATH);
        return 0;
}

static int run_mkfs(const char *path) {
        char *argv[] = { (char *) "mkfs.btrfs",
                         (char *) "--quiet",
                         (char *) "--label",
                         (char *) "sandboxd",
                         (char *) "--",
                         (char *) path,
                         NULL };
        int r, status;
        pid_t pid;

        r = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
        if (r == ENOENT)
                return log_error_errno(-r, "mkfs.btrfs is missing: install the package btrfs-progs");
        if (r != 0)
                return log_error_errno(-r, "Can't start mkfs.btrfs");
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return log_error_errno(-errno, "Can't wait for mkfs.btrfs");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                return log_error_errno(-EIO, "mkfs.btrfs failed on %s", path);
        return 0;
}

static int choose_size(const struct conf *c, uint64_t *ret) {
        struct statvfs fs;
        uint64_t available;

        if (statvfs(IMAGE_DIRECTORY, &fs) < 0)
                return log_error_errno(-errno, "Can't see how much space is free in %s", IMAGE_DIRECTORY);
        available = (uint64_t) fs.f_bavail * fs.f_frsize;
        if (available < FREE_MIN)
                return log_error_errno(-ENOSPC,
                                       "Only %llu"
                                       " MiB are free in %s, and the storage needs 2048 at least: make room, or "
                                       "mount a btrfs at %s",
                                       MIB(available), IMAGE_DIRECTORY, STORAGE_PATH);
        if (c->storage_size > available)
                return log_error_errno(-ENOSPC, "StorageSize= asks for %llu MiB, and %llu are free in %s",
                                       MIB(c->storage_size), MIB(available), IMAGE_DIRECTORY);
        *ret = (c->storage_size > 0 ? c->storage_size : available / 100 * 80) & ~((1ULL << 20) - 1);
        return 0;
}

static int fsync_path(const char *path, int flags) {
        _cleanup_close_ int fd = open(path, flags | O_CLOEXEC);

        return fd < 0 || fsync(fd) < 0 ? log_error_errno(-errno, "Can't write %s to the disk", path) : 0;
}

/* Under a temporary name until it is whole: an interrupted start leaves nothing that the next one would take for an
 * image. */
static int make_image(const struct conf *c) {
        _cleanup_close_ int fd = -1;
        uint64_t size = 0;
        int r;

        r = choose_size(c, &size);
        if (r < 0)
                return r;
        if (unlink(IMAGE_TEMPORARY) < 0 && errno != ENOENT)
                return log_error_errno(-errno, "Can't remove %s", IMAGE_TEMPORARY);
        fd = open(IMAGE_TEMPORARY, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return log_error_errno(-errno, "Can't create %s", IMAGE_TEMPORARY);
        r = ftruncate(fd, (off_t) size) < 0
                    ? log_error_errno(-errno, "Can't make %s %llu MiB long", IMAGE_TEMPORARY, MIB(size))
                    : 0;
        if (r >= 0)
                r = run_mkfs(IMAGE_TEMPORARY);
        if (r >= 0)
                r = fsync_path(IMAGE_TEMPORARY, O_RDONLY);
        if (r >= 0 && rename(IMAGE_TEMPORARY, IMAGE_PATH) < 0)
                r = log_error_errno(-errno, "Can't rename %s", IMAGE_TEMPORARY);
        if (r < 0) {
                (void) unlink(IMAGE_TEMPORARY);
                return r;
        }
        log_notice("Made %s, a sparse btrfs image of %llu MiB", IMAGE_PATH, MIB(size));
        return fsync_path(IMAGE_DIRECTORY, O_RDONLY | O_DIRECTORY);
}

static int open_loop(int number) {
        char path[32];
        int fd;

        snprintf(path, sizeof(path), "/dev/loop%d", number);
        fd = open(path, O_RDWR | O_CLOEXEC);
        /* Where /dev isn't the kernel's own (containers), a node for a new device doesn't come by itself. */
        if (fd < 0 && errno == ENOENT && mknod(path, S_IFBLK | 0600, makedev(LOOP_MAJOR, (unsigned) number)) == 0)
                fd = open(path, O_RDWR | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* The device that has the image already: sandboxes that outlived an unmount hold it, and the file system can't be mounted
 * from a second one. -ENOENT: none has. */
static int find_loop(int image_fd, int *ret_number) {
        struct loop_info64 info;
        struct dirent *e;
        struct stat st;
        int number, found = -ENOENT;
        DIR *d;

        if (fstat(image_fd, &st) < 0)
                return -errno;
        d = opendir("/sys/block");
        if (!d)
                return -errno;
        while (found < 0 && (e = readdir(d))) {
                _cleanup_close_ int fd = -1;
                char path[300];

                snprintf(path, sizeof(path), "/sys/block/%s/loop/backing_file", e->d_name);
                if (sscanf(e->d_name, "loop%d", &number) != 1 || access(path, F_OK) < 0)
                        continue;
                fd = open_loop(number);
                if (fd < 0 || ioctl(fd, LOOP_GET_STATUS64, &info) < 0 || info.lo_device != st.st_dev ||
                    info.lo_inode != st.st_ino)
                        continue;
                *ret_number = number;
                found = TAKE_FD(fd);
        }
        closedir(d);
        return found;
}

/* Direct I/O: everything is in btrfs's page cache already, and must not fill the image's as well. The kernel falls
 * back by itself where the file can't do it. The device detaches itself when the last user is gone. */
static int attach_loop(int image_fd, int *ret_number) {
        struct loop_config config = { .fd = (uint32_t) image_fd,
                                      .block_size = 4096,
                                      .info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO };
        _cleanup_close_ int control_fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);

        if (control_fd < 0)
                return log_error_errno(-errno, "Can't open /dev/loop-control, which mounting %s needs", IMAGE_PATH);
        snprintf((char *) config.info.lo_file_name, sizeof(config.info.lo_file_name), "%s", IMAGE_PATH);
        for (unsigned attempt = 0; attempt < 64; attempt++) {
                int number, fd;

                number = ioctl(control_fd, LOOP_CTL_GET_FREE);
                if (number < 0)
                        return log_error_errno(-errno, "No loop device is free");
                fd = open_loop(number);
                if (fd < 0)
                        return log_error_errno(fd, "Can't open /dev/loop%d", number);
                if (ioctl(fd, LOOP_CONFIGURE, &config) == 0) {
                        *ret_number = number;
                        return fd;
                }
                close_fd(fd);
                if (errno != EBUSY) /* else another process was faster */
                        return log_error_errno(-errno, "Can't attach %s to /dev/loop%d", IMAGE_PATH, number);
        }
        return log_error_errno(-EBUSY, "Can't attach %s to a loop device", IMAGE_PATH);
}

static int mount_image(void) {
        _cleanup_close_ int image_fd = -1, loop_fd = -1;
        char device[32];
        int number = -1;

        image_fd = open(IMAGE_PATH, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (image_fd < 0)
                return log_error_errno(-errno, "Can't open %s", IMAGE_PATH);
        loop_fd = find_loop(image_fd, &number);
        if (loop_fd < 0)
                loop_fd = attach_loop(image_fd, &number);
        if (loop_fd < 0)
                return loop_fd;
        snprintf(device, sizeof(device), "/dev/loop%d", number);
        /* Freed extents become holes of the image, in the background. Not noexec nor nodev: bakes install their
         * packages in a tree in there. */
        if (mount(device, STORAGE_PATH, "btrfs", MS_NOATIME, "discard=async") < 0)
                return log_error_errno(-errno, "Can't mount %s at %s", IMAGE_PATH, STORAGE_PATH);
        return 0;
}

static int make_directory(const char *path) {
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
                return log_error_errno(-errno, "Can't create %s", path);
        if (chmod(path, 0700) < 0)
                return log_error_errno(-errno, "Can't set the mode of %s", path);
        return 0;
}

static int start(void) {
        static const char *const directories[] = { "templates", "snapshots", "sandboxes", "work" };
        _cleanup_(conf_freep) struct conf *c = NULL;
        int r;

        r = conf_load(NULL, &c);
        if (r >= 0)
                r = make_directory(STORAGE_PATH);
        if (r >= 0)
                r = is_btrfs(STORAGE_PATH);
        if (r < 0)
                return r;
        if (r == 0) {
                r = check_kernel();
                if (r >= 0 && access(IMAGE_PATH, F_OK) < 0)
                        r = errno == ENOENT ? make_image(c) : log_error_errno(-errno, "Can't look for %s", IMAGE_PATH);
                if (r >= 0)
                        r = mount_image();
                if (r >= 0)
                        r = make_directory(STORAGE_PATH); /* the mode is the mounted one's now */
                if (r < 0)
                        return r;
        }
        for (size_t i = 0; i < ELEMENTSOF(directories); i++) {
                char path[256];

                snprintf(path, sizeof(path), "%s/%s", STORAGE_PATH, directories[i]);
                r = make_directory(path);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Is the image what is mounted at STORAGE_PATH? Anything else isn't ours to unmount. */
static int image_is_mounted(void) {
        _cleanup_free_ char *backing = NULL;
        char path[128], device[32] = "";
        struct mntent *entry;
        FILE *f;

        f = setmntent("/proc/self/mounts", "re");
        if (!f)
                return log_error_errno(-errno, "Can't read /proc/self/mounts");
        while ((entry = getmntent(f)))
                if (streq(entry->mnt_dir, STORAGE_PATH)) /* the last of several is on top */
                        snprintf(device, sizeof(device), "%.31s", entry->mnt_fsname);
        endmntent(f);
        if (strncmp(device, "/dev/loop", 9) != 0)
                return false;
        snprintf(path, sizeof(path), "/sys/block/%s/loop/backing_file", device + 5);
        if (read_file_at(AT_FDCWD, path, 4096, &backing, NULL) < 0)
                return false;
        /* The kernel shows the path as seen from its own root: in a container there may be more before it. */
        backing[strcspn(backing, "\n")] = 0;
        return strlen(backing) >= strlen(IMAGE_PATH) &&
               streq(backing + strlen(backing) - strlen(IMAGE_PATH), IMAGE_PATH);
}

static int stop(void) {
        int r = image_is_mounted();

        if (r <= 0)
                return r;
        if (umount2(STORAGE_PATH, UMOUNT_NOFOLLOW) < 0)
                return log_error_errno(-errno,
                                       errno == EBUSY ? "Sandboxes or bakes still use %s: end them first"
                                                      : "Can't unmount %s",
                                       STORAGE_PATH);
        return 0;
}

int main(int argc, char *argv[]) {
        log_setup("sandboxd-storage");
        umask(0077);
        if (argc == 2 && streq(argv[1], "start"))
                return start() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        if (argc == 2 && streq(argv[1], "stop"))
                return stop() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        fprintf(stderr, "usage: sandboxd-storage start|stop\n");
        return 2;
}
