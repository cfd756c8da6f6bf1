// SPDX-License-Identifier: GPL-2.0-only
/* The engine: the events of all ports in their order, driven by one event of virtual time.
 *
 * A timer of user-mode Linux costs much more than what happens at an event: an interrupt, the
 * timer's own queue, the way out to the idle loop and back. So, after an event, the engine looks
 * whether anything else could run before the next one. If nothing can, it moves virtual time there
 * itself (time_travel_jump, arch/um/kernel/time.c) and goes on. The order of events is the order of
 * their times; of equal times, that in which they were scheduled.
 *
 * What happens soon is in a timing wheel (Varghese, Lauck, "Hashed and hierarchical timing wheels",
 * SOSP 1987) whose slots are single nanoseconds, so that nothing in a slot needs sorting: it costs
 * the same for a thousand ports as for ten. What is later is in a heap, and stays there.
 *
 * In a large fabric nearly every port is one that the caches have forgotten, and most of an event's
 * time would be spent waiting for memory. The wheel knows what comes next, so the engine asks early
 * for what the next events will touch, from each what the memory has answered by then.
 *
 * Otherwise it is woken by an event of user-mode Linux' virtual time, at the same nanosecond. A
 * timer would expire one later, and what happens would then depend on who else looks.
 */
#include <linux/bitmap.h>
#include <linux/hrtimer.h>
#include <linux/hrtimer_bases.h>
#include <linux/interrupt.h>
#include <linux/time-internal.h>
#include "engine.h"

#define MOST_EVENTS 65536
/* Of the wheel, a nanosecond each: what a packet takes to the next port, and some more. */
#define SLOTS 8192
/* Children of a place in the heap. Their times are beside each other, to touch few cache lines. */
#define WAYS 4
/* From so many on it pays to ask the memory early. */
#define MANY_EVENTS 128

DECLARE_PER_CPU(struct hrtimer_cpu_base, hrtimer_bases);
bool time_travel_jump(unsigned long long ns);

#define IN_HEAP U32_MAX

/* What is scheduled, by its number, from 1 on. */
static struct {
	struct cl_event *event;
	u32 next;   /* in its slot of the wheel, 0: none; or IN_HEAP */
	u32 before; /* in its slot of the wheel, 0: none; or its place in the heap */
} entry[MOST_EVENTS];
static u32 free_number[MOST_EVENTS], free_numbers, used_numbers;

/* What happens within SLOTS of `wheel_ns`, the time of what happened last. */
static struct {
	u32 first, last; /* the first was scheduled first */
} wheel[SLOTS];
static DECLARE_BITMAP(taken, SLOTS);
static u32 in_wheel;
static u64 wheel_ns;

/* All else. To move a place, nothing of its event is touched: that is often far away in memory. */
static struct {
	u64 at_ns;
	u32 number;
} heap[MOST_EVENTS];
static u32 in_heap;

static u64 orders;
static struct time_travel_event wake;

u64 cl_engine_ns;

static bool precedes(u64 at_ns, u32 number, u32 at)
{
	return at_ns < heap[at].at_ns ||
	       (unlikely(at_ns == heap[at].at_ns) &&
		entry[number].event->order < entry[heap[at].number].event->order);
}

static void put(u64 at_ns, u32 number, u32 at)
{
	heap[at].at_ns = at_ns;
	heap[at].number = number;
	entry[number].before = at;
}

/* Find the place of an event, from `at` towards the root. */
static void rise(u64 at_ns, u32 number, u32 at)
{
	while (at && precedes(at_ns, number, (at - 1) / WAYS)) {
		put(heap[(at - 1) / WAYS].at_ns, heap[(at - 1) / WAYS].number, at);
		at = (at - 1) / WAYS;
	}
	put(at_ns, number, at);
}

/* Find the place of an event, from `at` towards the leaves. */
static void sink(u64 at_ns, u32 number, u32 at)
{
	u32 child, end, first;

	while ((child = WAYS * at + 1) < in_heap) {
		end = min(child + WAYS, in_heap);
		for (first = child++; child < end; child++)
			if (precedes(heap[child].at_ns, heap[child].number, first))
				first = child;
		if (precedes(at_ns, number, first))
			break;
		put(heap[first].at_ns, heap[first].number, at);
		at = first;
	}
	put(at_ns, number, at);
}

/* What is at `at` of the heap leaves it. */
static void take_out(u32 at)
{
	u64 at_ns = heap[--in_heap].at_ns;
	u32 number = heap[in_heap].number;

	if (at == in_heap)
		return;
	if (at && precedes(at_ns, number, (at - 1) / WAYS))
		rise(at_ns, number, at);
	else
		sink(at_ns, number, at);
}

static void append(u32 number, u32 slot)
{
	entry[number].next = 0;
	entry[number].before = wheel[slot].last;
	if (wheel[slot].last)
		entry[wheel[slot].last].next = number;
	else
		wheel[slot].first = number;
	wheel[slot].last = number;
	__set_bit(slot, taken);
	in_wheel++;
}

static void unlink(u32 number, u32 slot)
{
	u32 next = entry[number].next, before = entry[number].before;

	if (next)
		entry[next].before = before;
	else
		wheel[slot].last = before;
	if (before)
		entry[before].next = next;
	else
		wheel[slot].first = next;
	if (!wheel[slot].first)
		__clear_bit(slot, taken);
	in_wheel--;
}

/* Take an event out of the wheel or the heap. */
static void leave(const struct cl_event *event)
{
	if (entry[event->number].next == IN_HEAP)
		take_out(entry[event->number].before);
	else
		unlink(event->number, event->at_ns % SLOTS);
}

/* The first slot from `slot` on, once round, in which something is. The wheel is not empty. */
static u32 slot_from(u32 slot)
{
	slot = find_next_bit(taken, SLOTS, slot % SLOTS);
	return slot < SLOTS ? slot : find_first_bit(taken, SLOTS);
}

/* What happens next, NULL if nothing does. */
static struct cl_event *first(void)
{
	u32 number;

	if (in_wheel) {
		number = wheel[slot_from(wheel_ns)].first;
		if (!in_heap || precedes(entry[number].event->at_ns, number, 0))
			return entry[number].event;
	}
	return in_heap ? entry[heap[0].number].event : NULL;
}

/* Be woken at the first event. */
static void set_wake(void)
{
	const struct cl_event *event;
	u64 now_ns;

	if (cl_engine_ns)
		return;
	event = first();
	if (!event || (wake.pending && wake.time <= event->at_ns))
		return;
	now_ns = ktime_get_ns();
	time_travel_del_event(&wake);
	time_travel_add_event_rel(&wake, event->at_ns > now_ns ? event->at_ns - now_ns : 0);
}

static void enter(struct cl_event *event, u64 at_ns, u64 order)
{
	u32 number = event->number;

	if (number) {
		leave(event);
	} else {
		if (WARN_ON_ONCE(!free_numbers && used_numbers == MOST_EVENTS - 1))
			return;
		number = free_numbers ? free_number[--free_numbers] : ++used_numbers;
		entry[number].event = event;
	}
	event->number = number;
	event->at_ns = at_ns;
	event->order = order;
	/* what is late, or last of its time, is sorted by the heap */
	if (at_ns - wheel_ns < SLOTS && order != U64_MAX) {
		append(number, at_ns % SLOTS);
	} else {
		entry[number].next = IN_HEAP;
		rise(at_ns, number, in_heap++);
	}
	set_wake();
}

void cl_schedule(struct cl_event *event, u64 at_ns)
{
	if (!event->number || event->at_ns != at_ns)
		enter(event, at_ns, orders++);
}

void cl_schedule_last(struct cl_event *event, u64 at_ns)
{
	enter(event, at_ns, U64_MAX);
}

void cl_cancel(struct cl_event *event)
{
	if (event->number) {
		leave(event);
		free_number[free_numbers++] = event->number;
		event->number = 0;
	}
}

/* Soft timers whose time has come are not among the clock's next events until they have run. */
static bool soft_timers_wait(void)
{
	return this_cpu_read(hrtimer_bases.softirq_activated);
}

/* Each event is asked to warm up some times, the nearer the further it can see. */
static void warm_next(void)
{
	u32 slot = slot_from(wheel_ns), number = wheel[slot].first;

	for (u32 away = 1; away <= CL_WARM_FIRST; away++) {
		const struct cl_event *event = entry[number].event;

		if (away == CL_WARM_FIRST)
			cl_warm_lines(event, 3);
		else if (event->warm)
			event->warm(event, away);
		number = entry[number].next;
		if (!number) {
			slot = slot_from(slot + 1);
			number = wheel[slot].first;
		}
	}
}

static void run(struct tasklet_struct *tasklet)
{
	struct cl_event *event;

	cl_engine_ns = ktime_get_ns();
	while ((event = first())) {
		if (event->at_ns > cl_engine_ns) {
			if (soft_timers_wait() || !time_travel_jump(event->at_ns))
				break;
			cl_engine_ns = event->at_ns;
		}
		wheel_ns = max(wheel_ns, event->at_ns);
		cl_cancel(event);
		if (in_wheel >= MANY_EVENTS)
			warm_next();
		event->happen(event);
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
