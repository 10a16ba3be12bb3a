/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>

#include "agent.h"

#define EVENTS_AT_ONCE 32
#define PORT_RETRY_MSEC 50
#define IDLE_MSEC 20

static int outer_loop = -1;
int work_loop = -1, output_loop = -1;

void source_drop(struct source *s) {
        if (s->loop >= 0 && s->fd >= 0)
                (void) epoll_ctl(s->loop, EPOLL_CTL_DEL, s->fd, NULL);
        s->loop = -1;
}

void source_watch(struct source *s, int loop, uint32_t events) {
        struct epoll_event e = { .events = events, .data.ptr = s };

        if (s->loop == loop && s->events == events)
                return;
        if (s->loop >= 0 && s->loop != loop)
                source_drop(s);
        if (epoll_ctl(loop, s->loop == loop ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, s->fd, &e) < 0)
                die("cannot watch a descriptor: %s", strerror(errno));
        s->loop = loop;
        s->events = events;
}

static int dispatch(int loop, int timeout) {
        struct epoll_event events[EVENTS_AT_ONCE];
        int n = epoll_wait(loop, events, EVENTS_AT_ONCE, timeout);

        /* A source that an earlier callback of this round has dropped is skipped; it is freed by commands_sweep()
         * only. */
        for (int i = 0; i < n; i++) {
                struct source *s = events[i].data.ptr;
                if (s->loop == loop)
                        s->ready(s, events[i].events);
        }
        return n;
}

static void work_ready(struct source *s, uint32_t events _unused_) {
        (void) dispatch(s->fd, 0);
}

/* Level-triggered epoll takes turns: what was reported goes to the end of its list, so no pipe starves another. */
static void output_ready(struct source *s, uint32_t events _unused_) {
        (void) dispatch(s->fd, 0);
}

static void child_ready(struct source *s, uint32_t events _unused_) {
        struct signalfd_siginfo info[8];

        while (read(s->fd, info, sizeof(info)) > 0)
                ;
        commands_reap();
}

static struct source work_source = { .fd = -1, .loop = -1, .ready = work_ready };
static struct source output_source = { .fd = -1, .loop = -1, .ready = output_ready };
static struct source child_source = { .fd = -1, .loop = -1, .ready = child_ready };
static bool suspended;

void work_suspend(bool suspend) {
        suspended = suspend;
        if (suspend)
                source_drop(&work_source);
        else
                source_watch(&work_source, outer_loop, EPOLLIN);
}

static int make_loop(void) {
        int fd = epoll_create1(EPOLL_CLOEXEC);

        if (fd < 0)
                die("cannot make an epoll: %s", strerror(errno));
        return fd;
}

static void setup_loops(void) {
        sigset_t all;

        /* Everything is blocked, for PID 1 has nothing to handle but its children; spawn() undoes it for commands. */
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        sigemptyset(&all);
        sigaddset(&all, SIGCHLD);

        outer_loop = make_loop();
        work_source.fd = work_loop = make_loop();
        output_source.fd = output_loop = make_loop();
        child_source.fd = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
        if (child_source.fd < 0)
                die("cannot make a signalfd: %s", strerror(errno));
        source_watch(&child_source, work_loop, EPOLLIN);
        work_suspend(false);
}

/* How long the loop may sleep, in milliseconds; -1: until something happens. */
static int next_timeout(bool more_to_read, bool chores) {
        /* Suspended there is no time: nothing ends, and no connection is lost, while the machine may be captured. */
        uint64_t next = suspended ? USEC_INFINITY : commands_tick(), port = suspended ? USEC_INFINITY : port_tick();
        uint64_t now = now_usec();
        int timeout;

        next = MIN(next, port);
        timeout = next == USEC_INFINITY ? -1 : next <= now ? 0 : (int) MIN((next - now) / 1000 + 1, 60000U);
        if (more_to_read)
                return 0;
        /* The port wakes us when it takes more; the timer is for the case that it forgets. */
        if (port_is_waiting())
                timeout = timeout < 0 ? PORT_RETRY_MSEC : MIN(timeout, PORT_RETRY_MSEC);
        if (chores)
                timeout = timeout < 0 ? IDLE_MSEC : MIN(timeout, IDLE_MSEC);
        return timeout;
}

/* What no client should wait for is done when nothing has happened for a moment. */
void do_chores(void) {
        commands_sweep(true);
        cgroup_prepare();
        identity_renew_later();
}

int main(void) {
        bool chores = false;

        boot();
        setup_loops();
        if (cgroup_setup() < 0)
                die("cannot make the workload's cgroup");
        port_setup(outer_loop);

        for (;;) {
                bool more = port_read();
                int timeout = next_timeout(more, chores && !suspended);

                port_flush();
                if (port_is_congested())
                        source_drop(&output_source);
                else
                        source_watch(&output_source, work_loop, EPOLLIN);

                if (dispatch(outer_loop, timeout) > 0)
                        chores = true;
                else if (chores && !suspended && timeout == IDLE_MSEC) {
                        do_chores();
                        chores = false;
                }
                port_flush();
                if (!suspended)
                        commands_sweep(false);
        }
}
