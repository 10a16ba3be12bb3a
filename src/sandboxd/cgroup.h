/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reads cgroup v2, and only that. */

#include "util.h"

#define CGROUP_ROOT "/sys/fs/cgroup"

/* The control group of a process, as a path below CGROUP_ROOT. */
int cgroup_of_pid(pid_t pid, char **ret);
/* CPU time burned by the group and all below. */
int cgroup_cpu_nsec(const char *group, uint64_t *ret);
/* A file with one number in it, such as memory.current; -ENOENT where the controller is missing. */
int cgroup_read_uint64(const char *group, const char *file, uint64_t *ret);
/* Which of cpu, memory and pids the kernel can't give us. */
int cgroup_missing_controllers(char ***ret);
