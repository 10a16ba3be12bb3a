/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The stages of the jail that take rights from the process itself: see the list in jail.c. */

#include <cap-ng.h>
#include <grp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "jail.h"

#define fail(what, error)                                                                                             \
        ({                                                                                                            \
                *ret_what = (what);                                                                                   \
                (error);                                                                                              \
        })

/* Three descriptors for each of the commands that may run at once, and some. */
#define RUNNER_FILES 8192
/* QEMU's workers (one for each outstanding disk request, 64 at most), its processors, and the two processes. */
#define RUNNER_TASKS 256

int jail_limits(const char **ret_what) {
        static const struct {
                __rlimit_resource_t resource;
                rlim_t value;
        } limits[] = {
                { RLIMIT_CORE, 0 },
                { RLIMIT_MEMLOCK, 0 },
                { RLIMIT_NOFILE, RUNNER_FILES },
                { RLIMIT_NPROC, RUNNER_TASKS },
                { RLIMIT_FSIZE, RLIM_INFINITY },
                { RLIMIT_MSGQUEUE, 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(limits); i++) {
                struct rlimit l;

                if (getrlimit(limits[i].resource, &l) < 0)
                        return fail("read limits", -errno);
                /* Never more than we were given: that would take a capability. */
                l.rlim_cur = l.rlim_max = MIN(l.rlim_max, limits[i].value);
                if (setrlimit(limits[i].resource, &l) < 0)
                        return fail("set limits", -errno);
        }
        return 0;
}

#define SECURE_BITS                                                                                                   \
        (SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |             \
         SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED)

/* Capabilities can be raised from the bounding set, by root or by files: the first is emptied, the others are made
 * meaningless. */
int jail_identity(uid_t uid, const char **ret_what) {
        capng_clear(CAPNG_SELECT_ALL);
        if (capng_apply(CAPNG_SELECT_BOUNDS) < 0)
                return fail("drop the capability bounding set", -EPERM);
        if (prctl(PR_SET_SECUREBITS, SECURE_BITS, 0, 0, 0) < 0)
                return fail("set secure bits", -errno);

        if (setgroups(0, NULL) < 0)
                return fail("drop groups", -errno);
        if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
                return fail("change the user", -errno);

        capng_clear(CAPNG_SELECT_ALL);
        if (capng_apply(CAPNG_SELECT_CAPS) < 0)
                return fail("drop capabilities", -EPERM);
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
                return fail("drop ambient capabilities", -errno);
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return fail("forbid new privileges", -errno);
        /* QEMU has the same uid: it must find no way into the memory or the descriptors of the runner. */
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
                return fail("protect the runner's memory", -errno);

        if (setresuid(0, 0, 0) == 0)
                return fail("lose the way back to root", -EPERM);
        return 0;
}

/* Neither runner nor QEMU has a use for these: they change the host, look into other processes, or are where kernels
 * have been attacked most. The rights are gone already; this is the second lock. */
/* clang-format off */
static const char *const denied_calls[] = {
        /* namespaces and mounts */
        "mount", "umount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_tree", "move_mount", "fsopen",
        "fsconfig", "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at",
        /* other processes */
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
        /* identity */
        "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups",
        "capset",
        /* large attack surfaces */
        "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "add_key",
        "request_key", "keyctl", "personality", "modify_ldt", "lookup_dcookie", "nfsservctl", "uselib",
        "fanotify_init", "landlock_create_ruleset", "migrate_pages", "move_pages", "remap_file_pages",
        /* the machine */
        "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module", "swapon",
        "swapoff", "reboot", "acct", "quotactl", "quotactl_fd", "iopl", "ioperm", "settimeofday", "clock_settime",
        "clock_adjtime", "adjtimex", "stime", "sethostname", "setdomainname", "syslog", "vhangup", "sysfs", "_sysctl",
        "mknod", "mknodat",
};
/* clang-format on */

static const scmp_datum_t denied_clone_flags[] = {
        CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP,
};

static const scmp_datum_t denied_ioctls[] = { TIOCSTI, 0x541c /* TIOCLINUX */ };

static int add_rules(scmp_filter_ctx filter) {
        int r = 0;

        for (size_t i = 0; i < ELEMENTSOF(denied_calls) && r >= 0; i++) {
                int call = seccomp_syscall_resolve_name(denied_calls[i]);

                /* Names that this library or this architecture doesn't know. */
                if (call < 0)
                        continue;
                r = seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(EPERM), call, 0, NULL);
        }
        for (size_t i = 0; i < ELEMENTSOF(denied_clone_flags) && r >= 0; i++)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, denied_clone_flags[i], denied_clone_flags[i]));
        for (size_t i = 0; i < ELEMENTSOF(denied_ioctls) && r >= 0; i++)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffU, denied_ioctls[i]));
        /* Its flags lie in memory, where a filter can't see them. glibc falls back to clone. */
        if (r >= 0)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
        /* All of QEMU's sockets are given to it. */
        if (r >= 0)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1,
                                     SCMP_A0(SCMP_CMP_NE, AF_UNIX));
        if (r >= 0)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socketpair), 1,
                                     SCMP_A0(SCMP_CMP_NE, AF_UNIX));
        return r;
}

int jail_filter_new(void **ret, const char **ret_what) {
        scmp_filter_ctx filter;
        int r;

        filter = seccomp_init(SCMP_ACT_ALLOW);
        if (!filter)
                return fail("make a system call filter", -ENOMEM);
        /* A binary tree instead of a comparison with each: every call of the VM's inner loop passes through it. */
        (void) seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
        r = add_rules(filter);
        if (r < 0) {
                seccomp_release(filter);
                return fail("make a system call filter", r);
        }
        *ret = filter;
        return 0;
}

int jail_filter_load(void *filter, const char **ret_what) {
        int r = seccomp_load(filter);

        return r < 0 ? fail("load the system call filter", r) : 0;
}

void jail_filter_free(void *filter) {
        if (filter)
                seccomp_release(filter);
}
