/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Takes the place of QEMU in the jail and tries what a VMM that was taken over would try. Prints a line for each
 * attempt that succeeded, and "done". */

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void denied(const char *what, long result) {
        if (result >= 0)
                printf("ALLOWED %s\n", what);
}

static void try_files(void) {
        static const char *const paths[] = {
                "/etc/passwd", "/run",         "/var",       "/home",        "/sys",        "/tmp",
                "/bin/sh",     "/usr/bin/env", "/dev/kvm",   "/dev/mem",     "/dev/vda",    "/dev/net/tun",
                "/proc/sys",   "/proc/1/maps", "/proc/1/fd", "/proc/1/root", "/proc/kcore", "/proc/sysrq-trigger"
        };

        for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
                denied(paths[i], open(paths[i], O_RDONLY));
        denied("create in /", open("/x", O_WRONLY | O_CREAT, 0600));
        denied("create in /dev", open("/dev/x", O_WRONLY | O_CREAT, 0600));
        denied("create in /usr", mkdir("/usr/lib/x", 0700));
        denied("mknod", mknod("/dev/x", S_IFCHR | 0600, 0x101));
        /* The classic way out. */
        denied("chroot", chroot("."));
        denied("open above the root", open("/../../../etc/passwd", O_RDONLY));
}

static void try_namespaces(void) {
        denied("unshare user", unshare(CLONE_NEWUSER));
        denied("unshare mount", unshare(CLONE_NEWNS));
        denied("mount", mount("x", "/proc", "tmpfs", 0, NULL));
        denied("umount", umount2("/proc", MNT_DETACH));
        denied("setns", setns(open("/proc/self/ns/net", O_RDONLY), 0));
        denied("clone user", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
        denied("clone3", syscall(SYS_clone3, NULL, 0));
        denied("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
        denied("pivot_root", syscall(SYS_pivot_root, "/", "/proc"));
}

static void try_kernel(void) {
        union bpf_attr attr = {};
        struct iovec iov = { &attr, 1 };

        denied("ptrace", ptrace(PTRACE_ATTACH, 1, NULL, NULL));
        denied("process_vm_readv", process_vm_readv(1, &iov, 1, &iov, 1, 0));
        denied("memory of the runner", open("/proc/1/mem", O_RDONLY));
        denied("pidfd_getfd", syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, 1, 0), 3, 0));
        denied("bpf", syscall(SYS_bpf, 0, &attr, sizeof(attr)));
        denied("io_uring", syscall(SYS_io_uring_setup, 1, &attr));
        denied("userfaultfd", syscall(SYS_userfaultfd, 1));
        denied("perf", syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0));
        denied("add_key", syscall(SYS_add_key, "user", "x", "y", 1, -3));
        denied("keyctl", syscall(SYS_keyctl, 0, -3, 0));
        denied("personality", syscall(SYS_personality, 0xffffffff));
        denied("reboot", syscall(SYS_reboot, 0, 0, 0, NULL));
        denied("TIOCSTI", ioctl(0, TIOCSTI, "x"));
        denied("mlock", mlock(&attr, sizeof(attr)) < 0 ? -1 : 0);
}

static void try_identity(void) {
        denied("setuid", setuid(0));
        denied("setgid", setgid(0));
        denied("setgroups", syscall(SYS_setgroups, 0, NULL));
        /* The first process of a namespace takes no signal from inside that it does not handle: it is still there to
         * tell. */
        (void) kill(1, SIGKILL);
        denied("root", geteuid() == 0 ? 0 : -1);
        denied("dropping seccomp", prctl(PR_SET_SECCOMP, 0, 0, 0, 0));
        denied("ambient capability", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0));
}

static void try_network(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd, pair[2];

        denied("socket inet", socket(AF_INET, SOCK_STREAM, 0));
        denied("socket inet6", socket(AF_INET6, SOCK_DGRAM, 0));
        denied("socket netlink", socket(AF_NETLINK, SOCK_RAW, 0));
        denied("socket packet", socket(AF_PACKET, SOCK_RAW, 0));
        denied("socket vsock", socket(AF_VSOCK, SOCK_STREAM, 0));
        denied("socketpair tipc", socketpair(AF_TIPC, SOCK_STREAM, 0, pair));
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        strcpy(address.sun_path, "/run/dbus/system_bus_socket");
        denied("system bus", connect(fd, (struct sockaddr *) &address, sizeof(address)));
}

/* Which descriptors came along: none but what QEMU was to get. */
static void try_descriptors(void) {
        char path[64], target[256];

        for (int fd = 0; fd < 1024; fd++) {
                ssize_t n;

                (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
                n = readlink(path, target, sizeof(target) - 1);
                if (n < 0)
                        continue;
                target[n] = 0;
                if (strstr(target, "anon_inode") || (fd > 2 && strstr(target, "/dev/null")))
                        printf("ALLOWED descriptor %d: %s\n", fd, target);
        }
}

int main(void) {
        try_descriptors();
        try_files();
        try_namespaces();
        try_kernel();
        try_identity();
        try_network();
        puts("done");
        return 0;
}
