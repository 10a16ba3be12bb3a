/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "util.h"

/* polkit's own agent for terminals, as a child: it asks for a password when the service needs an authorization. */
struct polkit_agent;

/* 0 without an agent when there is no terminal to ask at, or nobody needs to be asked (root). */
int polkit_agent_start(struct polkit_agent **ret);
/* Takes NULL. Returns NULL. */
struct polkit_agent *polkit_agent_stop(struct polkit_agent *a);
