/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* spawn-runner RUNNER ID SOCKET: listens at SOCKET as a controller does, starts the runner and prints its pid; once
 * the runner has ended, prints "exit STATUS" or "signal NUMBER". */

#include <stdio.h>
#include <sys/wait.h>

#include "control.h"
#include "runner-spawn.h"

int main(int argc, char **argv) {
        int fd, pidfd, r;
        siginfo_t info;
        pid_t pid;

        if (argc != 4)
                return 2;
        fd = control_listen(argv[3]);
        if (fd < 0) {
                fprintf(stderr, "listen: %s\n", strerror(-fd));
                return 1;
        }
        r = runner_spawn(argv[1], argv[2], fd, &pid, &pidfd);
        if (r < 0) {
                fprintf(stderr, "spawn: %s\n", strerror(-r));
                return 1;
        }
        close(fd);
        printf("pid %d\n", (int) pid);
        fflush(stdout);

        if (waitid((idtype_t) P_PIDFD, (id_t) pidfd, &info, WEXITED) < 0) {
                perror("waitid");
                return 1;
        }
        printf("%s %d\n", info.si_code == CLD_EXITED ? "exit" : "signal", info.si_status);
        close(pidfd);
        return 0;
}
