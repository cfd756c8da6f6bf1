// SPDX-License-Identifier: GPL-2.0-only
/* The engine: one heap of events for all ports, driven by one event of virtual time.
 *
 * A timer of user-mode Linux costs much more than what happens at an event: an interrupt, the
 * timer's own queue, the way out to the idle loop and back. So, after an event, the engine looks
 * whether anything else could run before the next one. If nothing can, it moves virtual time there
 * itself (time_travel_jump, arch/um/kernel/time.c) and goes on. The order of events is the order of
 * their times; of equal times, that in which they were scheduled.
 *
 * In a large fabric nearly every port is one that the caches have forgotten, and most of an event's
 * time is spent waiting for memory. So the engine asks early for what the events at the top of the
 * heap will touch.
 *
 * Otherwise it is woken by an event of user-mode Linux' virtual time, at the same nanosecond. A
 * timer would expire one later, and what happens would then depend on who else looks.
 */
#include <linux/hrtimer.h>
#include <linux/hrtimer_bases.h>
#include <linux/interrupt.h>
#include <linux/prefetch.h>
#include <linux/time-internal.h>
#include "data_path.h"

#define MOST_EVENTS 65536
/* Children of a place in the heap. Their times are beside each other, to touch few cache lines. */
#define WAYS 4
/* From so many on it pays to ask the memory early. */
#define MANY_EVENTS 128

DECLARE_PER_CPU(struct hrtimer_cpu_base, hrtimer_bases);
bool time_travel_jump(unsigned long long ns);

/* To move a place of the heap, nothing of its event is touched: that is often far away in memory. */
static struct {
	u64 at_ns;
	u32 slot; /* of the event, while it is scheduled */
} heap[MOST_EVENTS];
static u32 scheduled;
static struct cl_event *event_of[MOST_EVENTS]; /* by their slots, from 1 on */
static u32 place_of[MOST_EVENTS], free_slot[MOST_EVENTS], free_slots, used_slots;
static u64 numbers;
static struct cl_event *happening; /* its place, the root, is free until it is scheduled again */
static struct time_travel_event wake;

u64 cl_engine_ns;

static bool precedes(u64 at_ns, u32 slot, u32 at)
{
	return at_ns < heap[at].at_ns ||
	       (unlikely(at_ns == heap[at].at_ns) &&
		event_of[slot]->number < event_of[heap[at].slot]->number);
}

static void put(u64 at_ns, u32 slot, u32 at)
{
	heap[at].at_ns = at_ns;
	heap[at].slot = slot;
	place_of[slot] = at;
}

/* Find the place of an event, from `at` towards the root. */
static void rise(u64 at_ns, u32 slot, u32 at)
{
	while (at && precedes(at_ns, slot, (at - 1) / WAYS)) {
		put(heap[(at - 1) / WAYS].at_ns, heap[(at - 1) / WAYS].slot, at);
		at = (at - 1) / WAYS;
	}
	put(at_ns, slot, at);
}

/* Find the place of an event, from `at` towards the leaves. */
static void sink(u64 at_ns, u32 slot, u32 at)
{
	u32 child, end, first;

	while ((child = WAYS * at + 1) < scheduled) {
		end = min(child + WAYS, scheduled);
		for (first = child++; child < end; child++)
			if (precedes(heap[child].at_ns, heap[child].slot, first))
				first = child;
		if (precedes(at_ns, slot, first))
			break;
		put(heap[first].at_ns, heap[first].slot, at);
		at = first;
	}
	put(at_ns, slot, at);
}

static void place(u64 at_ns, u32 slot, u32 at)
{
	if (at && precedes(at_ns, slot, (at - 1) / WAYS))
		rise(at_ns, slot, at);
	else
		sink(at_ns, slot, at);
}

/* What is at `at` is scheduled no more. */
static void take_out(u32 at)
{
	free_slot[free_slots++] = heap[at].slot;
	scheduled--;
	if (at != scheduled)
		place(heap[scheduled].at_ns, heap[scheduled].slot, at);
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
	if (event->slot) {
		place(at_ns, event->slot, place_of[event->slot]);
	} else if (event == happening) {
		happening = NULL;
		event->slot = heap[0].slot;
		sink(at_ns, event->slot, 0);
	} else {
		if (WARN_ON_ONCE(scheduled == MOST_EVENTS - 1))
			return;
		event->slot = free_slots ? free_slot[--free_slots] : ++used_slots;
		event_of[event->slot] = event;
		scheduled++;
		rise(at_ns, event->slot, scheduled - 1);
	}
	set_wake();
}

void cl_schedule(struct cl_event *event, u64 at_ns)
{
	if (!event->slot || event->at_ns != at_ns)
		enter(event, at_ns, numbers++);
}

void cl_schedule_last(struct cl_event *event, u64 at_ns)
{
	enter(event, at_ns, U64_MAX);
}

void cl_cancel(struct cl_event *event)
{
	if (event->slot) {
		take_out(place_of[event->slot]);
		event->slot = 0;
	}
}

/* Soft timers whose time has come are not among the clock's next events until they have run. */
static bool soft_timers_wait(void)
{
	return this_cpu_read(hrtimer_bases.softirq_activated);
}

/* The first of those at `at` and beside it that is not `but`; 0 if there is none. */
static u32 first_of(u32 at, u32 but)
{
	u32 end = min(at + WAYS, scheduled), first = 0;

	for (; at < end; at++) {
		prefetch(event_of[heap[at].slot]);
		if (at != but && (!first || heap[at].at_ns < heap[first].at_ns))
			first = at;
	}
	return first;
}

static void warm(u32 at, bool next)
{
	const struct cl_event *event = event_of[heap[at].slot];

	if (event->warm)
		event->warm(event, next);
}

/* What comes next is most likely among the root's children, and what comes after that among the
 * others and its own children. An event touches what it knows, and what that leads to.
 */
static void warm_next(void)
{
	u32 next, other, child;

	if (scheduled < MANY_EVENTS)
		return;
	next = first_of(1, 0);
	other = first_of(1, next);
	child = first_of(WAYS * next + 1, 0);
	if (child && heap[child].at_ns < heap[other].at_ns)
		other = child;
	warm(other, false);
	warm(next, true);
}

static void run(struct tasklet_struct *tasklet)
{
	cl_engine_ns = ktime_get_ns();
	while (scheduled) {
		struct cl_event *event = event_of[heap[0].slot];

		if (heap[0].at_ns > cl_engine_ns) {
			if (soft_timers_wait() || !time_travel_jump(heap[0].at_ns))
				break;
			cl_engine_ns = heap[0].at_ns;
		}
		/* most are scheduled again: then one search for a place is enough */
		event->slot = 0;
		happening = event;
		heap[0].at_ns = 0;
		warm_next();
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
