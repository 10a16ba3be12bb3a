/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "host.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define VERSION_TIMEOUT_MSEC 15000
#define VERSION_MAJOR_MIN 8U
#define VERSION_MINOR_MIN 2U

extern char **environ;

static int refuse(char **ret_message, int error, const char *format, ...) _printf_(3, 4);
static int refuse(char **ret_message, int error, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        if (vasprintf(ret_message, format, ap) < 0)
                *ret_message = NULL;
        va_end(ap);
        return error;
}

struct host *host_free(struct host *h) {
        if (!h)
                return NULL;
        free(h->vmm);
        free(h->vmm_version);
        free(h->cpu_model);
        free(h);
        return NULL;
}

const char *host_accelerator(const struct host *h) {
        return h->kvm ? "kvm" : "tcg";
}

/* A /dev/kvm alone says little: where the module of neither vendor stands behind it, guests hang. */
static bool kvm_works(void) {
        _cleanup_close_ int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

        return fd >= 0 && (access("/sys/module/kvm_intel", F_OK) == 0 || access("/sys/module/kvm_amd", F_OK) == 0);
}

static int choose_vmm(const struct conf *c, struct host *h, char **ret_message) {
        /* The slim binary starts faster, and can do KVM only. */
        static const char *const candidates[] = { "/usr/bin/qemu-system-x86_64-microvm",
                                                  "/usr/bin/qemu-system-x86_64" };

        if (c->vmm) {
                if (access(c->vmm, X_OK) < 0)
                        return refuse(ret_message, -ENOENT, "VMM=%s can't be executed: %m", c->vmm);
                h->vmm = strdup(c->vmm);
                return h->vmm ? 0 : -ENOMEM;
        }
        for (size_t i = h->kvm ? 0 : 1; i < ELEMENTSOF(candidates); i++)
                if (access(candidates[i], X_OK) == 0) {
                        h->vmm = strdup(candidates[i]);
                        return h->vmm ? 0 : -ENOMEM;
                }
        return refuse(ret_message, -ENOENT, "QEMU is missing: install the package qemu-system-x86 (8.2 or newer)");
}

static int spawn_version(const char *vmm, int output_fd, pid_t *ret) {
        char *argv[] = { (char *) vmm, (char *) "--version", NULL };
        posix_spawn_file_actions_t actions;
        int r;

        r = posix_spawn_file_actions_init(&actions);
        if (r != 0)
                return -r;
        r = posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
        if (r == 0)
                r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r == 0)
                r = posix_spawn(ret, vmm, &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        return -r;
}

/* Reads until the end or until the time is over; the rest of a longer text is ignored. */
static int read_output(int fd, char *buffer, size_t size) {
        uint64_t until = now_boottime_usec() + VERSION_TIMEOUT_MSEC * USEC_PER_MSEC;
        size_t n = 0;

        while (n + 1 < size) {
                struct pollfd p = { .fd = fd, .events = POLLIN };
                uint64_t now = now_boottime_usec();
                ssize_t k;

                if (now >= until)
                        return -ETIMEDOUT;
                k = poll(&p, 1, (int) ((until - now) / USEC_PER_MSEC) + 1);
                if (k < 0 && errno != EINTR)
                        return -errno;
                if (k <= 0)
                        continue;
                k = read(fd, buffer + n, size - n - 1);
                if (k < 0 && errno != EINTR)
                        return -errno;
                if (k == 0)
                        break;
                n += k > 0 ? (size_t) k : 0;
        }
        buffer[n] = 0;
        return 0;
}

static int ask_version(const char *vmm, char *buffer, size_t size) {
        _cleanup_close_ int read_fd = -1, write_fd = -1;
        int fds[2], r, status;
        pid_t pid;

        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        read_fd = fds[0];
        write_fd = fds[1];
        r = spawn_version(vmm, write_fd, &pid);
        if (r < 0)
                return r;
        write_fd = close_fd(write_fd);
        r = read_output(read_fd, buffer, size);
        if (r < 0)
                (void) kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;
        if (r < 0)
                return r;
        return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPROTO;
}

/* "QEMU emulator version 10.0.2 (Debian …)\n…" */
static int read_version(struct host *h, char **ret_message) {
        static const char prefix[] = "QEMU emulator version ";
        unsigned major, minor;
        char text[512];
        int r;

        r = ask_version(h->vmm, text, sizeof(text));
        if (r < 0)
                return refuse(ret_message, r, "%s doesn't say its version: %s", h->vmm, strerror(-r));
        text[strcspn(text, "\n")] = 0;
        if (strncmp(text, prefix, strlen(prefix)) != 0 || sscanf(text + strlen(prefix), "%u.%u", &major, &minor) != 2)
                return refuse(ret_message, -EPROTONOSUPPORT, "%s is not QEMU: it says \"%.100s\"", h->vmm, text);
        if (major < VERSION_MAJOR_MIN || (major == VERSION_MAJOR_MIN && minor < VERSION_MINOR_MIN))
                return refuse(ret_message, -EPROTONOSUPPORT,
                              "%s is QEMU %u.%u, and 8.2 or newer is needed: install qemu-system-x86 from backports "
                              "or a newer release",
                              h->vmm, major, minor);
        h->vmm_version = strdup(text + strlen(prefix));
        return h->vmm_version ? 0 : -ENOMEM;
}

static int read_cpu_model(struct host *h) {
        _cleanup_free_ char *text = NULL, *line = NULL;
        const char *p;
        int r;

        if (!h->kvm) {
                h->cpu_model = strdup("max");
                return h->cpu_model ? 0 : -ENOMEM;
        }
        /* A host of many CPUs has a long file; the first one speaks for all. */
        r = read_file_at(AT_FDCWD, "/proc/cpuinfo", 16U << 20, &text, NULL);
        if (r < 0)
                return r;
        p = strstr(text, "model name");
        p = p ? strchr(p, ':') : NULL;
        p = p ? p + 1 + strspn(p + 1, " \t") : "unknown";
        line = strndup(p, strcspn(p, "\n"));
        if (!line)
                return -ENOMEM;
        h->cpu_model = TAKE_PTR(line);
        return 0;
}

int host_probe(const struct conf *c, struct host **ret, char **ret_message) {
        _cleanup_(host_freep) struct host *h = calloc(1, sizeof(*h));
        int r;

        *ret_message = NULL;
        if (!h)
                return -ENOMEM;
        h->kvm = c->accelerator != ACCELERATOR_TCG && kvm_works();
        if (c->accelerator == ACCELERATOR_KVM && !h->kvm)
                return refuse(ret_message, -ENODEV,
                              "Accelerator=kvm, and KVM doesn't work here: /dev/kvm can't be opened, or neither "
                              "kvm_intel nor kvm_amd is loaded");
        r = choose_vmm(c, h, ret_message);
        if (r >= 0)
                r = read_version(h, ret_message);
        if (r >= 0)
                r = read_cpu_model(h);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(h);
        return 0;
}

/* The release that a bzImage says it is: its file may have any name. See the kernel's Documentation/arch/x86/boot.rst.
 */
static int read_release(const char *path, char **ret) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        uint8_t header[0x210];
        char text[128];
        ssize_t n;

        if (fd < 0)
                return -errno;
        n = pread(fd, header, sizeof(header), 0);
        if (n < 0)
                return -errno;
        if ((size_t) n < sizeof(header) || memcmp(header + 0x202, "HdrS", 4) != 0)
                return -ENOEXEC;
        n = pread(fd, text, sizeof(text) - 1, 0x200 + (header[0x20e] | header[0x20f] << 8));
        if (n < 0)
                return -errno;
        text[n] = 0;
        text[strcspn(text, " ")] = 0;
        if (isempty(text) || strchr(text, '/') || text[0] == '.')
                return -ENOEXEC;
        *ret = strdup(text);
        return *ret ? 0 : -ENOMEM;
}

int host_find_modules(const char *kernel, const char *release, char **ret) {
        const char *slash = strrchr(kernel, '/');
        int length = slash ? (int) (slash - kernel) : 0;
        /* The host's, then those of a kernel package that was unpacked somewhere. */
        static const char *const places[] = { "/usr/lib/modules", "/lib/modules", "../usr/lib/modules",
                                              "../lib/modules" };

        for (size_t i = 0; i < ELEMENTSOF(places); i++) {
                bool beside = places[i][0] != '/';
                _cleanup_free_ char *dir = NULL;

                if (asprintf(&dir, "%.*s%s%s/%s", beside ? length : 0, kernel, beside ? "/" : "", places[i], release) <
                    0)
                        return -ENOMEM;
                if (access(dir, F_OK) == 0) {
                        *ret = TAKE_PTR(dir);
                        return 0;
                }
        }
        return -ENOENT;
}

static int check_kernel(const char *path, char **ret_release, char **ret_message) {
        _cleanup_free_ char *release = NULL, *modules = NULL;
        int r;

        r = read_release(path, &release);
        if (r == -ENOEXEC)
                return refuse(ret_message, r, "%s is not a Linux kernel image for x86-64 (bzImage)", path);
        if (r < 0)
                return refuse(ret_message, r, "Can't read the kernel image %s: %s", path, strerror(-r));
        r = host_find_modules(path, release, &modules);
        if (r < 0)
                return refuse(
                        ret_message, r,
                        "The kernel image %s is of release %s, and its modules (/usr/lib/modules/%s) aren't here",
                        path, release, release);
        *ret_release = TAKE_PTR(release);
        return 0;
}

static int is_kernel(const struct dirent *entry) {
        const char *s = entry->d_name;
        size_t n = strlen(s);

        return strncmp(s, "vmlinuz-", 8) == 0 && !strstr(s, ".dpkg-") && !(n > 4 && streq(s + n - 4, ".old"));
}

static bool is_cloud_kernel(const char *name) {
        static const char suffix[] = "-cloud-amd64";
        size_t n = strlen(name);

        return n > strlen(suffix) && streq(name + n - strlen(suffix), suffix);
}

/* Cloud kernels first: they are smaller and boot faster. Then the newest. */
static int compare_kernels(const struct dirent **a, const struct dirent **b) {
        bool x = is_cloud_kernel((*a)->d_name), y = is_cloud_kernel((*b)->d_name);

        return x != y ? (x ? -1 : 1) : -strverscmp((*a)->d_name, (*b)->d_name);
}

/* Returns the fault of the best candidate when no one will do. */
static int search_kernel(struct dirent *const *entries, int n, char **ret_path, char **ret_release,
                         char **ret_message) {
        int result = 0;

        for (int i = 0; i < n; i++) {
                _cleanup_free_ char *path = NULL, *message = NULL;
                int r;

                if (asprintf(&path, "/boot/%s", entries[i]->d_name) < 0)
                        return -ENOMEM;
                r = check_kernel(path, ret_release, &message);
                if (r >= 0) {
                        *ret_path = TAKE_PTR(path);
                        free(*ret_message);
                        *ret_message = NULL;
                        return 0;
                }
                if (result == 0) {
                        result = r == -ENOMEM ? r : -ENOENT;
                        *ret_message = TAKE_PTR(message);
                }
        }
        if (result == 0)
                return refuse(ret_message, -ENOENT,
                              "No kernel for sandboxes in /boot: install linux-image-cloud-amd64, or set Kernel=");
        return result;
}

int host_find_kernel(const struct conf *c, char **ret_path, char **ret_release, char **ret_message) {
        struct dirent **entries = NULL;
        _cleanup_free_ char *path = NULL;
        int n, r;

        *ret_message = NULL;
        if (c->kernel) {
                path = strdup(c->kernel);
                if (!path)
                        return -ENOMEM;
                r = check_kernel(path, ret_release, ret_message);
                if (r >= 0)
                        *ret_path = TAKE_PTR(path);
                return r;
        }
        n = scandir("/boot", &entries, is_kernel, compare_kernels);
        if (n < 0 && errno != ENOENT)
                return refuse(ret_message, -errno, "Can't read /boot: %m");
        r = search_kernel(entries, n, ret_path, ret_release, ret_message);
        for (int i = 0; i < n; i++)
                free(entries[i]);
        free(entries);
        return r;
}
