/* SPDX-License-Identifier: GPL-2.0-only */
/* Every queue of the fabric by its number: see queues.c. */
#ifndef CLOSLOOP_QUEUES_H
#define CLOSLOOP_QUEUES_H

#include "port.h"

int cl_queues_add(struct Qdisc *port, u32 first, u32 count);
void cl_queues_remove(u32 first, u32 count);
u32 cl_queues_count(void);
/* The first `count` queues now, with bottom halves off. */
void cl_queues_states(struct cl_queue_state *states, u32 count);

#endif
