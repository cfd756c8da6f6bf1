/* SPDX-License-Identifier: GPL-2.0-only */
/* What user space says and reads of load balancing: see paths_proc.c. */
#ifndef CLOSLOOP_PATHS_PROC_H
#define CLOSLOOP_PATHS_PROC_H

#include <linux/types.h>

/* What user space reads of a switch. */
struct cl_paths_state {
	u64 flowlets, reroutes, overflows;
	u64 entries; /* that are in use */
};

u32 cl_paths_count(void);
void cl_paths_state(u32 number, struct cl_paths_state *state);

#endif
