/* SPDX-License-Identifier: GPL-2.0-only */
/* Events at their times, and the time: see engine.c. */
#ifndef CLOSLOOP_ENGINE_H
#define CLOSLOOP_ENGINE_H

#include <linux/cache.h>
#include <linux/ktime.h>
#include <linux/prefetch.h>
#include <linux/timekeeping.h>
#include <linux/types.h>

/* Something that happens at a time. `number` is its own among those that are scheduled, 0 while it is
 * not one of them.
 */
struct cl_event {
	u64 at_ns;
	u64 order; /* of equal times, the one scheduled first is first */
	u32 number;
	void (*happen)(struct cl_event *event);
	/* Ask the memory for what it will touch, if it knows; it changes nothing. It is called when the
	 * event is `away` from happening, 3 to 1: what the call before asked for has come.
	 */
	void (*warm)(const struct cl_event *event, u32 away);
};

/* So many events before, the memory is asked for an event's own first lines. */
#define CL_WARM_FIRST 4

static inline void cl_warm_lines(const void *at, u32 lines)
{
	for (u32 i = 0; i < lines; i++)
		prefetch((const char *)at + i * SMP_CACHE_BYTES);
}

void cl_schedule(struct cl_event *event, u64 at_ns);
/* The same, but after all else that happens at that time. */
void cl_schedule_last(struct cl_event *event, u64 at_ns);
void cl_cancel(struct cl_event *event);

/* The time while events happen, else 0. */
extern u64 cl_engine_ns;

static inline u64 cl_now_ns(void)
{
	return cl_engine_ns ?: ktime_get_ns();
}

#endif
