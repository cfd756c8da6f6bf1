// SPDX-License-Identifier: GPL-2.0-only
/* The engine: one heap of events for all ports, driven by one event of virtual time.
 *
 * A timer of user-mode Linux costs much more than what happens at an event: an interrupt, the
 * timer's own queue, the way out to the idle loop and back. So, after an event, the engine looks
 * whether anything else could run before the next one. If nothing can, it moves virtual time there
 * itself (time_travel_jump, arch/um/kernel/time.c) and goes on. The order of events is the order of
 * their times; of equal times, that in which they were scheduled.
 *
 * Otherwise it is woken by an event of user-mode Linux' virtual time, at the same nanosecond. A
 * timer would expire one later, and what happens would then depend on who else looks.
 */
#include <linux/hrtimer.h>
#include <linux/hrtimer_bases.h>
#include <linux/interrupt.h>
#include <linux/time-internal.h>
#include "data_path.h"

#define MOST_EVENTS 65536
/* Children of a place in the heap. Their times are beside each other, to touch few cache lines. */
#define WAYS 4

DECLARE_PER_CPU(struct hrtimer_cpu_base, hrtimer_bases);
bool time_travel_jump(unsigned long long ns);

static struct {
	u64 at_ns;
	struct cl_event *event;
} heap[MOST_EVENTS];
static u32 scheduled;
static u64 numbers;
static struct cl_event *happening; /* its place, the root, is free until it is scheduled again */
static struct time_travel_event wake;

u64 cl_engine_ns;

static bool precedes(u64 at_ns, const struct cl_event *event, u32 at)
{
	return at_ns < heap[at].at_ns ||
	       (at_ns == heap[at].at_ns && event->number < heap[at].event->number);
}

static void put(u64 at_ns, struct cl_event *event, u32 at)
{
	heap[at].at_ns = at_ns;
	heap[at].event = event;
	event->place = at + 1;
}

/* Find the place of `event`, from `at` towards the root. */
static void rise(struct cl_event *event, u32 at)
{
	while (at && precedes(event->at_ns, event, (at - 1) / WAYS)) {
		put(heap[(at - 1) / WAYS].at_ns, heap[(at - 1) / WAYS].event, at);
		at = (at - 1) / WAYS;
	}
	put(event->at_ns, event, at);
}

/* Find the place of `event`, from `at` towards the leaves. */
static void sink(struct cl_event *event, u32 at)
{
	u32 child, end, first;

	while ((child = WAYS * at + 1) < scheduled) {
		end = min(child + WAYS, scheduled);
		for (first = child++; child < end; child++)
			if (precedes(heap[child].at_ns, heap[child].event, first))
				first = child;
		if (precedes(event->at_ns, event, first))
			break;
		put(heap[first].at_ns, heap[first].event, at);
		at = first;
	}
	put(event->at_ns, event, at);
}

static void place(struct cl_event *event, u32 at)
{
	if (at && precedes(event->at_ns, event, (at - 1) / WAYS))
		rise(event, at);
	else
		sink(event, at);
}

static void take_out(u32 at)
{
	scheduled--;
	if (at != scheduled)
		place(heap[scheduled].event, at);
}

/* Be woken at the first event. */
static void set_wake(void)
{
	u64 now_ns;

	if (cl_engine_ns || !scheduled || (wake.pending && wake.time <= heap[0].at_ns))
		return;
	now_ns = ktime_get_ns();
	time_travel_del_event(&wake);
	time_travel_add_event_rel(&wake, heap[0].at_ns > now_ns ? heap[0].at_ns - now_ns : 0);
}

static void enter(struct cl_event *event, u64 at_ns, u64 number)
{
	event->at_ns = at_ns;
	event->number = number;
	if (event->place) {
		place(event, event->place - 1);
	} else if (event == happening) {
		happening = NULL;
		sink(event, 0);
	} else {
		if (WARN_ON_ONCE(scheduled == MOST_EVENTS))
			return;
		scheduled++;
		rise(event, scheduled - 1);
	}
	set_wake();
}

void cl_schedule(struct cl_event *event, u64 at_ns)
{
	if (!event->place || event->at_ns != at_ns)
		enter(event, at_ns, numbers++);
}

void cl_schedule_last(struct cl_event *event, u64 at_ns)
{
	enter(event, at_ns, U64_MAX);
}

void cl_cancel(struct cl_event *event)
{
	if (event->place) {
		take_out(event->place - 1);
		event->place = 0;
	}
}

/* Soft timers whose time has come are not among the clock's next events until they have run. */
static bool soft_timers_wait(void)
{
	return this_cpu_read(hrtimer_bases.softirq_activated);
}

static void run(struct tasklet_struct *tasklet)
{
	cl_engine_ns = ktime_get_ns();
	while (scheduled) {
		struct cl_event *event = heap[0].event;

		if (heap[0].at_ns > cl_engine_ns) {
			if (soft_timers_wait() || !time_travel_jump(heap[0].at_ns))
				break;
			cl_engine_ns = heap[0].at_ns;
		}
		/* most are scheduled again: then one search for a place is enough */
		event->place = 0;
		happening = event;
		heap[0].at_ns = 0;
		event->happen(event);
		if (happening) {
			happening = NULL;
			take_out(0);
		}
	}
	cl_engine_ns = 0;
	set_wake();
}

static DECLARE_TASKLET(engine, run);

static void woken(struct time_travel_event *unused)
{
	tasklet_schedule(&engine);
}

static int __init begin(void)
{
	time_travel_set_event_fn(&wake, woken);
	return 0;
}
subsys_initcall(begin);
