/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A switch in a window of time: all that arrives at it, in the order of docs/order-of-events.md. */
#include "engine.h"
#include "lists.h"

#define FEW_SWITCHES 64 /* from so many on, the caches have forgotten the next one */

/* Ask the memory for what a packet touches when it enters its port. */
static inline void warm_port(const struct cl_engine *e, const struct fabric_switch *s,
			     const struct packet *p)
{
	u32 port = s->first + (p->route & ((1U << e->route_bits) - 1));

	cl_fetch(&e->out[port]);
	cl_fetch(&e->queue[port * e->fabric.classes]);
}

/* Then, when those are there, for where it goes. */
static void warm_lists(const struct cl_engine *e, const struct fabric_switch *s)
{
	for (u32 i = 0; i < e->wheel.count; i++) {
		const struct packet *p = &e->wheel.arrival[i].packet;
		u32 port = s->first + (p->route & ((1U << e->route_bits) - 1));

		cl_fetch(&e->arena[e->out[port].tail]);
		cl_fetch(&e->arena[e->queue[port * e->fabric.classes].tail]);
		cl_fetch(&e->arena[e->queue[port * e->fabric.classes].head]);
	}
}

/* Put what arrives by a port into the wheel. Ports come in their order, and each one's packets in
 * that of their times, so what is equal stays in order.
 */
static inline void add_arrival(struct cl_engine *e, const struct fabric_switch *s, struct wheel *w,
			       const struct packet *p, u32 in)
{
	u32 number = w->count++, after_ns = p->at_ns - (u32)e->now_ns, slot = after_ns >> w->shift;
	struct arrival *all = w->arrival, *a = &all[number];
	u64 bit = 1ULL << slot % 64;

	a->packet = *p;
	a->in = in;
	warm_port(e, s, p);
	a->next = UINT32_MAX;
	if (!(w->taken[slot / 64] & bit)) {
		w->taken[slot / 64] |= bit;
		w->first[slot] = w->last[slot] = number;
	} else if (all[w->last[slot]].packet.at_ns - (u32)e->now_ns <= after_ns) {
		all[w->last[slot]].next = number;
		w->last[slot] = number;
	} else {
		u32 *link = &w->first[slot];

		while (all[*link].packet.at_ns - (u32)e->now_ns <= after_ns)
			link = &all[*link].next;
		a->next = *link;
		*link = number;
	}
}

static bool grow_wheel(struct cl_engine *e)
{
	struct wheel *w = &e->wheel;
	u32 room = w->room ? 2 * w->room : 1024;
	struct arrival *grown = realloc(w->arrival, room * sizeof(*grown));

	if (!grown) {
		fail(e, "no memory for what arrives at a switch");
		return false;
	}
	w->arrival = grown;
	w->room = room;
	return true;
}

/* Take all that arrives before `end_ns`; return when the next one arrives. */
static u64 gather(struct cl_engine *e, const struct fabric_switch *s, u64 end_ns)
{
	struct wheel *w = &e->wheel;
	u64 next_ns = CL_NEVER;

	w->count = 0;
	for (u32 i = 0; i < s->ports; i++) {
		u32 head = e->heads[s->first + i];
		const struct packet *p = &e->arena[head];

		while (p->kind != NO_PACKET && (s32)(p->at_ns - (u32)end_ns) < 0) {
			if (unlikely(w->count == w->room) && !grow_wheel(e))
				return CL_NEVER;
			add_arrival(e, s, w, p, s->first + i);
			head = cl_drop_first(e, head);
			p = &e->arena[head];
		}
		e->heads[s->first + i] = head;
		if (p->kind != NO_PACKET)
			next_ns = min64(next_ns, cl_near_ns(e->now_ns, p->at_ns));
	}
	return next_ns;
}

static void arrive(struct cl_engine *e, struct fabric_switch *s, struct arrival *a, u64 now_ns)
{
	struct packet *p = &a->packet;

	if (unlikely(cl_kind(p) == PAUSE)) {
		/* without a shared buffer, a control frame of the MAC says nothing to a port */
		if (!e->share)
			return;
		settle(e, s, &e->out[a->in], now_ns);
		take_pause(&e->share[a->in].pause, p->psn, p->flow, e->rate_bps[a->in], now_ns);
		add_timer(s, e->share[a->in].pause.run_out_ns);
		obey(e, s, a->in, now_ns);
		return;
	}
	enqueue(e, s, &e->out[s->first + cl_next_port(p, e->route_bits)], p, a->in, now_ns);
}

/* What begins to leave by `until_ns`, of all ports, in the order of times. */
static void depart_in_order(struct cl_engine *e, struct fabric_switch *s, u64 until_ns)
{
	while (s->departs_ns <= until_ns) {
		u64 first_ns = CL_NEVER;
		struct out *first = NULL;

		for (u32 word = 0; word <= (s->ports - 1) / 64; word++)
			for (u64 busy = s->busy[word]; busy; busy &= busy - 1) {
				struct out *o = &e->out[s->first + word * 64 +
							__builtin_ctzll(busy)];
				u64 at_ns = departure_ns(e, o);

				if (at_ns < first_ns) {
					first_ns = at_ns;
					first = o;
				}
			}
		s->departs_ns = first_ns;
		if (first_ns > until_ns)
			return;
		settle_busy(e, s, first, first_ns);
		s->departs_ns = 0;
	}
}

static void settle_all_busy(struct cl_engine *e, struct fabric_switch *s, u64 now_ns)
{
	for (u32 word = 0; word <= (s->ports - 1) / 64; word++)
		for (u64 busy = s->busy[word]; busy; busy &= busy - 1)
			settle_busy(e, s, &e->out[s->first + word * 64 + __builtin_ctzll(busy)],
				    now_ns);
}

/* The timers of a switch that are due. */
static void happen_timers(struct cl_engine *e, struct fabric_switch *s, u64 now_ns)
{
	s->timer_ns = CL_NEVER;
	for (u32 port = s->first; port < s->first + s->ports; port++) {
		struct share *share = &e->share[port];

		if (share->pause.run_out_ns <= now_ns) {
			settle(e, s, &e->out[port], now_ns);
			run_out(&share->pause, now_ns);
			obey(e, s, port, now_ns);
		}
		if (share->refresh_at_ns <= now_ns)
			refresh(e, s, port, now_ns);
	}
	for (u32 port = s->first; port < s->first + s->ports; port++)
		add_timer(s, min64(e->share[port].pause.run_out_ns,
				   e->share[port].refresh_at_ns));
}

/* All arrivals, timers and, while somebody is told to stop, departures, in the order of times. */
static void happen_in_order(struct cl_engine *e, struct fabric_switch *s, u64 end_ns)
{
	struct wheel *w = &e->wheel;
	u32 word = 0, next = UINT32_MAX;

	for (;;) {
		u64 arrival_ns = CL_NEVER, at_ns;

		while (next == UINT32_MAX && word < WHEEL_SLOTS / 64) {
			u32 slot;

			if (!w->taken[word]) {
				word++;
				continue;
			}
			slot = word * 64 + __builtin_ctzll(w->taken[word]);
			w->taken[word] &= w->taken[word] - 1;
			next = w->first[slot];
		}
		if (next != UINT32_MAX)
			arrival_ns = cl_near_ns(e->now_ns, w->arrival[next].packet.at_ns);
		at_ns = min64(arrival_ns, min64(s->timer_ns, end_ns - 1));
		if (unlikely(s->stopping))
			depart_in_order(e, s, at_ns);
		if (arrival_ns != CL_NEVER && arrival_ns <= at_ns) {
			struct arrival *a = &w->arrival[next];

			next = a->next;
			arrive(e, s, a, arrival_ns);
		} else if (unlikely(s->timer_ns < end_ns)) {
			happen_timers(e, s, s->timer_ns);
		} else {
			break;
		}
	}
}

/* Ask the memory early for what arrives at the next switch. */
static inline void warm_switch(const struct cl_engine *e, u32 number)
{
	const struct fabric_switch *s = &e->fabric_switch[number];

	for (u32 i = 0; i < s->ports; i++)
		cl_fetch(&e->arena[e->heads[s->first + i]]);
}

static void switch_window(struct cl_engine *e, u32 number, u64 end_ns)
{
	struct fabric_switch *s = &e->fabric_switch[number];
	u64 next_ns = gather(e, s, end_ns);

	if (e->switches > FEW_SWITCHES)
		warm_lists(e, s);
	happen_in_order(e, s, end_ns);
	settle_all_busy(e, s, end_ns - 1);
	for (u32 word = 0; word <= (s->ports - 1) / 64; word++)
		if (s->busy[word])
			next_ns = end_ns;
	e->due_ns[e->nic_count + number] = min64(next_ns, s->timer_ns);
}
