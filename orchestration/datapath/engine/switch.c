/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A switch in a window of time: all that arrives at it, in the order of docs/order-of-events.md. */
#include "engine.h"
#include "lists.h"

#define FEW_SWITCHES 64 /* from so many on, the caches have forgotten the next one */
#define WARM_PORT 6      /* so many arrivals before, the memory is asked for its port */
#define WARM_LISTS 3
#define FEW_ARRIVALS 64

/* The port of a switch by which a packet leaves. */
static inline u32 port_out(const struct cl_engine *e, const struct fabric_switch *s,
			   const struct packet *p)
{
	u64 route = e->route[2 * (size_t)p->flow + (cl_kind(p) != DATA)];

	return s->first + (route >> cl_switches(p) * e->route_bits & ((1U << e->route_bits) - 1));
}

/* Ask the memory for what a packet touches when it enters its port; then, when that is there, for
 * where it goes.
 */
static inline void warm_port(const struct cl_engine *e, u32 port)
{
	cl_fetch(&e->out[port]);
	cl_fetch(&e->out[port].queue);
}

static inline void warm_lists(const struct cl_engine *e, u32 port)
{
	cl_fetch(&e->arena[e->out[port].tail]);
	cl_fetch(&e->arena[e->out[port].left]);
}

/* The same for a switch's ports that are busy already, and for what came in by all of its ports. */
static inline void warm_busy(const struct cl_engine *e, const struct fabric_switch *s)
{
	for (u32 word = 0; word < e->words; word++)
		for (u64 busy = s->busy[word]; busy; busy &= busy - 1)
			cl_fetch(&e->arena[e->out[s->first + word * 64 + __builtin_ctzll(busy)].left]);
}

static inline void warm_held(const struct cl_engine *e, const struct fabric_switch *s)
{
	if (e->share)
		for (u32 i = 0; i < s->ports * e->fabric.classes; i += CL_LINE / sizeof(u32))
			cl_fetch(&e->held_bytes[s->first * e->fabric.classes + i]);
}

/* What a switch gathers is sorted by time, then as it was gathered: ports come in their order, and
 * each one's packets in that of their times. Few arrivals find their places by counting, all against
 * all: it is no more work than it saves in branches that nothing can predict.
 */
typedef s32 lanes __attribute__((vector_size(16)));

static inline void sort_few(const struct cl_engine *e, struct wheel *w)
{
	union {
		lanes four[FEW_ARRIVALS / 4];
		s32 one[FEW_ARRIVALS];
	} key;
	u32 count = w->count, groups = (count + 3) / 4;

	for (u32 i = 0; i < count; i++)
		key.one[i] = (w->arrival[i].packet.at_ns - (u32)e->now_ns) << 6 | i;
	for (u32 i = count; i < groups * 4; i++)
		key.one[i] = INT32_MAX;
	for (u32 i = 0; i < count; i++) {
		lanes mine = { key.one[i], key.one[i], key.one[i], key.one[i] }, smaller = { 0 };

		for (u32 j = 0; j < groups; j++)
			smaller -= key.four[j] < mine;
		w->order[smaller[0] + smaller[1] + smaller[2] + smaller[3]] = i;
	}
}

/* Many go into a wheel of slots, each with a sorted list. */
static void add_to_wheel(const struct cl_engine *e, struct wheel *w, u32 number)
{
	struct arrival *all = w->arrival, *a = &all[number];
	u32 after_ns = a->packet.at_ns - (u32)e->now_ns, slot = after_ns >> w->shift;
	u64 bit = 1ULL << slot % 64;

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

static void sort_many(const struct cl_engine *e, struct wheel *w)
{
	u32 count = 0;

	for (u32 i = 0; i < w->count; i++)
		add_to_wheel(e, w, i);
	for (u32 word = 0; word < WHEEL_SLOTS / 64; word++) {
		for (u64 taken = w->taken[word]; taken; taken &= taken - 1)
			for (u32 i = w->first[word * 64 + __builtin_ctzll(taken)]; i != UINT32_MAX;
			     i = w->arrival[i].next)
				w->order[count++] = i;
		w->taken[word] = 0;
	}
}

static bool grow_wheel(struct cl_engine *e)
{
	struct wheel *w = &e->wheel;
	u32 room = w->room ? 2 * w->room : 1024;
	struct arrival *grown = realloc(w->arrival, room * sizeof(*grown));

	u32 *order = realloc(w->order, room * sizeof(*order));

	w->arrival = grown ? grown : w->arrival;
	w->order = order ? order : w->order;
	if (!grown || !order) {
		fail(e, "no memory for what arrives at a switch");
		return false;
	}
	w->room = room;
	return true;
}

/* Take all that arrives before `end_ns`; return when the next one arrives. */
static u64 gather(struct cl_engine *e, const struct fabric_switch *s, u64 *coming, u64 end_ns)
{
	struct wheel *w = &e->wheel;
	u64 next_ns = CL_NEVER;

	w->count = 0;
	for (u32 word = 0; word < e->words; word++)
		for (u64 left = coming[word]; left; left &= left - 1) {
			u32 in = s->first + word * 64 + __builtin_ctzll(left), head = e->heads[in];
			const struct packet *p = &e->arena[head];

			while (p->kind != NO_PACKET && (s32)(p->at_ns - (u32)end_ns) < 0) {
				if (unlikely(w->count == w->room) && !grow_wheel(e))
					return CL_NEVER;
				w->arrival[w->count].packet = *p;
				w->arrival[w->count].in = in;
				w->arrival[w->count++].out =
					likely(cl_kind(p) != PAUSE) ? port_out(e, s, p) : in;
				head = cl_drop_first(e, head);
				p = &e->arena[head];
			}
			e->heads[in] = head;
			if (p->kind != NO_PACKET)
				next_ns = min64(next_ns, cl_near_ns(e->now_ns, p->at_ns));
			else
				coming[word] &= ~(left & -left);
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
	p->switches++;
	enqueue(e, s, &e->out[a->out], p, a->in, now_ns);
}

static void settle_port(struct cl_engine *e, struct fabric_switch *s, struct out *o, u64 now_ns)
{
	settle(e, s, o, now_ns);
	if (!is_busy(o))
		set_busy(e, s, o, false);
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
		settle_port(e, s, first, first_ns);
		s->departs_ns = 0;
	}
}

static void settle_all_busy(struct cl_engine *e, struct fabric_switch *s, u64 now_ns)
{
	for (u32 word = 0; word <= (s->ports - 1) / 64; word++)
		for (u64 busy = s->busy[word]; busy; busy &= busy - 1)
			settle_port(e, s, &e->out[s->first + word * 64 + __builtin_ctzll(busy)],
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

/* All arrivals, timers and, while a peer is paused, departures, in the order of times. With
 * `warms`, the memory is asked early for what those touch, and for what arrives at the next switch.
 */
static void happen_in_order(struct cl_engine *e, struct fabric_switch *s, u64 end_ns, bool warms)
{
	const struct wheel *w = &e->wheel;
	u64 next_coming = warms ? e->coming[(size_t)(e->nic_count + (s + 1 - e->fabric_switch)) *
					    e->words] : 0;
	u64 next_busy = warms ? s[1].busy[0] : 0;
	u32 done = 0;

	for (u32 i = 0; warms && i < w->count && i < WARM_PORT; i++)
		warm_port(e, w->arrival[w->order[i]].out);
	for (;;) {
		u64 arrival_ns = CL_NEVER, at_ns;
		struct arrival *a = NULL;

		if (done < w->count) {
			a = &w->arrival[w->order[done]];
			arrival_ns = cl_near_ns(e->now_ns, a->packet.at_ns);
		}
		at_ns = min64(arrival_ns, min64(s->timer_ns, end_ns - 1));
		if (unlikely(s->stopping))
			depart_in_order(e, s, at_ns);
		if (arrival_ns <= at_ns) {
			if (warms && done + WARM_PORT < w->count)
				warm_port(e, w->arrival[w->order[done + WARM_PORT]].out);
			if (warms && done + WARM_LISTS < w->count)
				warm_lists(e, w->arrival[w->order[done + WARM_LISTS]].out);
			if (next_coming) {
				cl_fetch(&e->arena[e->heads[s[1].first + __builtin_ctzll(next_coming)]]);
				next_coming &= next_coming - 1;
			}
			if (next_busy) {
				warm_port(e, s[1].first + __builtin_ctzll(next_busy));
				next_busy &= next_busy - 1;
			}
			done++;
			arrive(e, s, a, arrival_ns);
		} else if (unlikely(s->timer_ns < end_ns)) {
			happen_timers(e, s, s->timer_ns);
		} else {
			break;
		}
	}
	for (; next_coming; next_coming &= next_coming - 1)
		cl_fetch(&e->arena[e->heads[s[1].first + __builtin_ctzll(next_coming)]]);
}

static void switch_window(struct cl_engine *e, u32 number, u64 end_ns)
{
	struct fabric_switch *s = &e->fabric_switch[number];
	bool warms = e->switches > FEW_SWITCHES && number + 1 < e->switches;
	u64 next_ns;

	if (warms)
		warm_busy(e, s);
	next_ns = gather(e, s, &e->coming[(size_t)(e->nic_count + number) * e->words], end_ns);

	if (warms)
		warm_held(e, s + 1);
	if (likely(e->wheel.count <= FEW_ARRIVALS && e->window_ns < 1U << 24))
		sort_few(e, &e->wheel);
	else
		sort_many(e, &e->wheel);
	happen_in_order(e, s, end_ns, warms);
	settle_all_busy(e, s, end_ns - 1);
	for (u32 word = 0; word <= (s->ports - 1) / 64; word++)
		if (s->busy[word])
			next_ns = end_ns;
	e->due_ns[e->nic_count + number] = min64(next_ns, s->timer_ns);
}
