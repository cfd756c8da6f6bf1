// SPDX-License-Identifier: GPL-2.0-only
/* The engine: one heap of events for all ports, driven by one timer.
 *
 * A timer of user-mode Linux costs much more than what happens at an event: an interrupt, the
 * timer's own queue, the way out to the idle loop and back. So, after an event, the engine looks
 * whether anything else could run before the next one. If nothing can, it moves virtual time there
 * itself (time_travel_jump, arch/um/kernel/time.c) and goes on. The order of events is the order of
 * their times; of equal times, that in which they were scheduled.
 */
#include <linux/hrtimer.h>
#include <linux/hrtimer_bases.h>
#include <linux/interrupt.h>
#include "data_path.h"

#define MOST_EVENTS 65536

DECLARE_PER_CPU(struct hrtimer_cpu_base, hrtimer_bases);
bool time_travel_jump(unsigned long long ns);

static struct cl_event *heap[MOST_EVENTS];
static u32 scheduled;
static u64 numbers;
static u64 timer_ns = U64_MAX; /* when the timer expires */
static bool running;
static struct hrtimer timer;

static bool precedes(const struct cl_event *a, const struct cl_event *b)
{
	return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->number < b->number);
}

static void put(struct cl_event *event, u32 at)
{
	heap[at] = event;
	event->place = at + 1;
}

/* Find the place of `event`, from `at` towards the root, then towards the leaves. */
static void sift(struct cl_event *event, u32 at)
{
	while (at && precedes(event, heap[(at - 1) / 2])) {
		put(heap[(at - 1) / 2], at);
		at = (at - 1) / 2;
	}
	for (;;) {
		u32 child = 2 * at + 1;

		if (child + 1 < scheduled && precedes(heap[child + 1], heap[child]))
			child++;
		if (child >= scheduled || !precedes(heap[child], event))
			break;
		put(heap[child], at);
		at = child;
	}
	put(event, at);
}

static void set_timer(void)
{
	if (!running && scheduled && heap[0]->at_ns < timer_ns) {
		timer_ns = heap[0]->at_ns;
		hrtimer_start(&timer, ns_to_ktime(timer_ns), HRTIMER_MODE_ABS);
	}
}

void cl_schedule(struct cl_event *event, u64 at_ns)
{
	if (event->place && event->at_ns == at_ns)
		return;
	event->at_ns = at_ns;
	event->number = numbers++;
	if (event->place) {
		sift(event, event->place - 1);
	} else {
		if (WARN_ON_ONCE(scheduled == MOST_EVENTS))
			return;
		scheduled++;
		sift(event, scheduled - 1);
	}
	set_timer();
}

void cl_cancel(struct cl_event *event)
{
	u32 at = event->place - 1;

	if (!event->place)
		return;
	event->place = 0;
	scheduled--;
	if (at != scheduled)
		sift(heap[scheduled], at);
}

/* Soft timers whose time has come are not among the clock's next events until they have run. */
static bool soft_timers_wait(void)
{
	return this_cpu_read(hrtimer_bases.softirq_activated);
}

static void run(struct tasklet_struct *tasklet)
{
	u64 now_ns = ktime_get_ns();

	running = true;
	timer_ns = U64_MAX;
	while (scheduled) {
		struct cl_event *event = heap[0];

		if (event->at_ns > now_ns) {
			if (soft_timers_wait() || !time_travel_jump(event->at_ns))
				break;
			now_ns = event->at_ns;
		}
		cl_cancel(event);
		event->happen(event);
	}
	running = false;
	set_timer();
}

static DECLARE_TASKLET(engine, run);

static enum hrtimer_restart expired(struct hrtimer *unused)
{
	tasklet_schedule(&engine);
	return HRTIMER_NORESTART;
}

static int __init begin(void)
{
	hrtimer_setup(&timer, expired, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	return 0;
}
subsys_initcall(begin);
