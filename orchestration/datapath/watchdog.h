/* SPDX-License-Identifier: GPL-2.0-only */
/* The watchdog of pauses: see watchdog.c. */
#ifndef CLOSLOOP_WATCHDOG_H
#define CLOSLOOP_WATCHDOG_H

#include "buffer.h"

void cl_watch_init(struct cl_share *share);
/* After a change of `share->pause`. */
void cl_watch(struct cl_share *share, u64 now_ns);

#endif
