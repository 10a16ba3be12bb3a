/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reading properties is a method call too, but sd-bus answers it without asking. The guard stands before that. */

#include "manager.h"

int guard_install(struct manager *m);
