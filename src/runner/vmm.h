/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The QEMU process: its start, its monitor, what it and the guest's console said last, its end. */

#include <systemd/sd-event.h>

#include "qemu-args.h"
#include "qmp.h"

typedef struct Vmm Vmm;

struct vmm_callbacks {
        /* A QMP event; "" once QEMU has come up. */
        void (*event)(const char *name, json_t *data, void *userdata);
        /* The monitor's connection closed, as when QEMU exits, or spoke nonsense. */
        void (*broken)(bool closed, const char *message, void *userdata);
};

/* m: everything but the sockets, which are made here; its descriptors stay the caller's. *ret_agent_fd is the other
 * end of the agent's port. */
int vmm_start(sd_event *event, struct qemu_machine *m, const struct vmm_callbacks *callbacks, void *userdata,
              Vmm **ret, int *ret_agent_fd);
/* Kills and reaps QEMU if it still runs. */
void vmm_free(Vmm *v);
DEFINE_CLEANUP(Vmm *, vmm_free)

pid_t vmm_pid(const Vmm *v);
/* As qmp_execute(). */
int vmm_execute(Vmm *v, const char *command, json_t *arguments, int fd, qmp_reply_t reply, void *userdata);
/* The process was reaped by the caller with this status. */
void vmm_exited(Vmm *v, int status);
bool vmm_is_running(const Vmm *v);

/* For people: how QEMU ended and its last words, and with console the console's. Never NULL but without memory. */
char *vmm_explain(Vmm *v, bool console);
