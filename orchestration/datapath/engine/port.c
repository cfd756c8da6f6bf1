/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A port of a switch: what enters it, when that leaves, and when it arrives at the other end.
 *
 * Packets wait in one queue a class, and are sent by deficit round robin at the line's rate. A
 * packet that arrives is marked with a probability that rises in a straight line with the bytes
 * that wait, from 0 at kmin to max_p at kmax, and always from kmax on. A packet arrives at the
 * other end the cable's delay after its first bit was sent (switches cut through).
 *
 * What happens in between is worked out when somebody looks: everything here first calls `settle`,
 * which sends what has begun to be sent by now. This is exact, because nothing can change between
 * two looks.
 *
 * With one class, first in is first out, so when a packet enters, the time at which it begins to
 * leave is known. It is then written at once to where the other end will find it, behind `left`, from
 * where on packets still wait. A pause frame, sent or taken, takes that back: what waits is then in
 * the queue's own list, without times, as always with several classes.
 */
#include "engine.h"
#include "lists.h"

static bool marks(struct out *o, const struct cl_queue_state *state)
{
	u32 above_bytes = state->backlog_bytes - state->kmin_bytes;

	if (state->backlog_bytes < state->kmin_bytes)
		return false;
	if (state->backlog_bytes >= state->kmax_bytes)
		return true;
	return cl_draw(&o->stream) >> 32 < (u64)state->max_p * above_bytes /
						   (state->kmax_bytes - state->kmin_bytes);
}

static inline void mark(struct out *o, struct queue *q, struct packet *p)
{
	if (marks(o, &q->state) && cl_mark(p))
		q->state.marked_packets++;
}

static void set_busy(const struct cl_engine *e, struct fabric_switch *s, const struct out *o, bool is)
{
	u32 place = o - e->out - s->first;
	u64 bit = 1ULL << place % 64;

	s->busy[place / 64] = is ? s->busy[place / 64] | bit : s->busy[place / 64] & ~bit;
}

/* Let a queue that has packets take its turn, unless it is stopped. */
static inline void join(const struct cl_engine *e, struct fabric_switch *s, struct out *o,
			struct queue *q, u32 klass)
{
	if (unlikely(o->stopped >> klass & 1))
		return;
	if (!o->turns)
		s->departs_ns = 0;
	o->order[o->turns++] = klass;
	q->deficit_bytes = e->fabric.quantum_bytes[klass];
}

static void leave_turns(struct out *o, u32 klass)
{
	u32 kept = 0;

	for (u32 i = 0; i < o->turns; i++)
		if (o->order[i] != klass)
			o->order[kept++] = o->order[i];
	o->turns = kept;
}

/* The class whose turn it is. Deficit round robin, in the details of net/sched/sch_ets.c. */
static u32 next_class(const struct cl_engine *e, struct out *o)
{
	for (;;) {
		u32 klass = o->order[0];
		struct queue *q = cl_queue(e, o, klass);
		u32 bytes = cl_bytes(&e->arena[q->head]);

		if (bytes <= q->deficit_bytes) {
			q->deficit_bytes -= bytes;
			return klass;
		}
		q->deficit_bytes += e->fabric.quantum_bytes[klass];
		memmove(o->order, o->order + 1, o->turns - 1);
		o->order[o->turns - 1] = klass;
	}
}

/* Give a packet the time at which the line is free, and let the other end find it. */
static inline void put_on_wire(struct cl_engine *e, struct out *o, struct packet *p)
{
	u64 arrival_ns = cl_begin_ns(o->free_ps) + o->delay_ns;
	u64 *due_ns = &e->due_ns[o->peer_node];

	p->at_ns = arrival_ns;
	o->free_ps += cl_sending_ps(e, o - e->out, o, cl_bytes(p));
	if (arrival_ns < *due_ns)
		*due_ns = arrival_ns;
	e->coming[o->peer_bit / 64] |= 1ULL << o->peer_bit % 64;
	cl_append(e, &o->tail, p);
}

/* Put a packet on the wire, which is free. */
static inline void transmit(struct cl_engine *e, struct out *o, struct packet *p)
{
	put_on_wire(e, o, p);
	o->left = o->tail;
	e->counts.hops++;
}

/* Give all that waits in the queue its time. */
static void time_ahead(struct cl_engine *e, struct out *o)
{
	struct queue *q = &o->queue;

	while (q->head != q->tail) {
		struct packet p = e->arena[q->head];

		q->head = cl_drop_first(e, q->head);
		put_on_wire(e, o, &p);
	}
	o->turns = 0;
}

/* Take the times of what has not begun to leave back: it is in the queue's list then. */
static void take_back(struct cl_engine *e, struct fabric_switch *s, struct out *o)
{
	struct queue *q = &o->queue;
	u32 slot = o->left;

	if (slot == o->tail)
		return;
	for (; slot != o->tail; slot = cl_after(e, slot)) {
		struct packet p = e->arena[slot];

		o->free_ps -= cl_sending_ps(e, o - e->out, o, cl_bytes(&p));
		cl_append(e, &q->tail, &p);
	}
	cl_cut(e, o->left, &o->tail);
	o->turns = 1;
	o->order[0] = 0;
	s->departs_ns = 0;
}

/* Whether a pause frame is next. The wire is then free for it. */
static inline bool control_is_next(const struct cl_engine *e, struct out *o)
{
	u64 at_ps;

	if (likely(!o->has_control))
		return false;
	at_ps = cl_near_ns(e->now_ns, e->arena[o->control].at_ns) * CL_PS_PER_NS;
	if (at_ps > o->free_ps) {
		if (o->turns)
			return false;
		o->free_ps = at_ps;
	}
	return true;
}

/* A packet begins to leave its queue. */
static inline void depart(struct cl_engine *e, struct fabric_switch *s, struct queue *q,
			  const struct packet *p, u32 klass, u64 now_ns)
{
	q->state.backlog_bytes -= cl_bytes(p);
	q->state.tx_bytes += cl_bytes(p);
	q->state.tx_packets++;
	if (e->share)
		release(e, s, p, klass, now_ns);
}

/* Send pause frames, and what has no time yet, by `now_ns`. */
static void send_waiting(struct cl_engine *e, struct fabric_switch *s, struct out *o, u64 now_ns)
{
	u64 now_ps = now_ns * CL_PS_PER_NS;
	bool control;

	while (((control = control_is_next(e, o)) || o->turns) && o->free_ps <= now_ps) {
		struct packet p;
		struct queue *q;
		u32 klass;

		if (unlikely(control)) {
			p = e->arena[o->control];
			o->control = cl_drop_first(e, o->control);
			o->has_control = !cl_is_empty(e, o->control);
			transmit(e, o, &p);
			continue;
		}
		klass = e->fabric.classes > 1 ? next_class(e, o) : 0;
		q = cl_queue(e, o, klass);
		p = e->arena[q->head];
		q->head = cl_drop_first(e, q->head);
		if (q->head == q->tail)
			leave_turns(o, klass);
		depart(e, s, q, &p, klass, now_ns);
		if (e->fabric.marks_departures)
			mark(o, q, &p);
		transmit(e, o, &p);
	}
	if (e->times_ahead && o->turns && !o->has_control)
		time_ahead(e, o);
}

/* Let leave what has begun to be sent by `now_ns`. */
static inline void settle(struct cl_engine *e, struct fabric_switch *s, struct out *o, u64 now_ns)
{
	while (o->left != o->tail) {
		const struct packet *p = &e->arena[o->left];

		if ((s32)(p->at_ns - o->delay_ns - (u32)now_ns) > 0)
			break;
		/* it has left before what lets go of a peer takes back what has not */
		o->left = cl_after(e, o->left);
		e->counts.hops++;
		depart(e, s, &o->queue, p, 0, now_ns);
	}
	if (unlikely(o->turns || o->has_control))
		send_waiting(e, s, o, now_ns);
}

static bool is_busy(const struct out *o)
{
	return o->left != o->tail || o->turns || o->has_control;
}

static void settle_all(struct cl_engine *e, struct fabric_switch *s, u64 now_ns)
{
	for (u32 port = s->first; port < s->first + s->ports; port++)
		settle(e, s, &e->out[port], now_ns);
}

static inline bool enters(struct cl_engine *e, struct fabric_switch *s, struct out *o,
			  struct queue *q, struct packet *p, u32 in, u64 now_ns)
{
	u32 klass = cl_class(p), backlog_bytes = q->state.backlog_bytes;

	if (e->share)
		return !(o->discards >> klass & 1) &&
		       admit(e, s, p, in, klass, backlog_bytes, now_ns);
	return cl_bytes(p) <= q->limit_bytes - min32(q->limit_bytes, backlog_bytes);
}

static void count_drop(struct cl_engine *e, struct queue *q, const struct packet *p)
{
	q->state.dropped_packets++;
	e->counts.data_dropped += cl_kind(p) == DATA;
	e->counts.bytes_dropped += cl_bytes(p);
}

/* A packet that came by port `in` enters the port `o`. */
static inline void enqueue(struct cl_engine *e, struct fabric_switch *s, struct out *o,
			   struct packet *p, u32 in, u64 now_ns)
{
	u32 klass = cl_class(p);
	struct queue *q = cl_queue(e, o, klass);
	u64 now_ps = now_ns * CL_PS_PER_NS;

	settle(e, s, o, now_ns);
	if (unlikely(!enters(e, s, o, q, p, in, now_ns))) {
		count_drop(e, q, p);
		return;
	}
	if (!e->fabric.marks_departures)
		mark(o, q, p);
	/* admitting it may have made a pause frame, so this is looked at now */
	if (!o->turns && o->left == o->tail)
		o->free_ps = max64(o->free_ps, now_ps);
	q->state.backlog_bytes += cl_bytes(p);
	if (likely(e->times_ahead && !(o->turns | o->has_control | o->stopped))) {
		put_on_wire(e, o, p);
		set_busy(e, s, o, true);
		if (s->departs_ns && o->left != o->tail)
			s->departs_ns = 0;
		settle(e, s, o, now_ns);
		return;
	}
	if (q->head == q->tail)
		join(e, s, o, q, klass);
	cl_append(e, &q->tail, p);
	set_busy(e, s, o, true);
	settle(e, s, o, now_ns);
}

/* The pauses of the port have changed, or what the watchdog lets it do. */
static void obey(struct cl_engine *e, struct fabric_switch *s, u32 port, u64 now_ns)
{
	struct out *o = &e->out[port];

	take_back(e, s, o);
	o->stopped = stopped_classes(e, &e->share[port].pause);
	/* a port that was stopped has sent nothing meanwhile */
	if (!o->turns)
		o->free_ps = max64(o->free_ps, now_ns * CL_PS_PER_NS);
	for (u32 i = 0; i < e->fabric.classes; i++) {
		struct queue *q = cl_queue(e, o, i);
		bool takes_turns = false;

		for (u32 j = 0; j < o->turns; j++)
			takes_turns |= o->order[j] == i;
		if (takes_turns && (o->stopped >> i & 1))
			leave_turns(o, i);
		else if (!takes_turns && q->head != q->tail)
			join(e, s, o, q, i);
	}
	watch(e, port, now_ns);
	settle(e, s, o, now_ns);
	set_busy(e, s, o, is_busy(o));
}

/* Drop what waits in a queue. */
static void discard(struct cl_engine *e, struct fabric_switch *s, u32 port, u32 klass, u64 now_ns)
{
	struct out *o = &e->out[port];
	struct queue *q = cl_queue(e, o, klass);

	leave_turns(o, klass);
	while (q->head != q->tail) {
		struct packet p = e->arena[q->head];

		q->head = cl_drop_first(e, q->head);
		q->state.backlog_bytes -= cl_bytes(&p);
		count_drop(e, q, &p);
		release(e, s, &p, klass, now_ns);
	}
}

/* Whether a queue has packets that came by port `in`, or any if that is UINT32_MAX. */
static bool holds(struct cl_engine *e, u32 port, u32 klass, u32 in)
{
	const struct queue *q = cl_queue(e, &e->out[port], klass);
	u32 slot = q->head, from = in - cl_switch_of(e, port)->first + 1;

	while (slot != q->tail && in != UINT32_MAX && cl_from(&e->arena[slot]) != from)
		slot = cl_after(e, slot);
	return slot != q->tail;
}

/* When a busy port's next departure is. */
static inline u64 departure_ns(const struct cl_engine *e, struct out *o)
{
	if (o->left != o->tail)
		return cl_near_ns(e->now_ns, e->arena[o->left].at_ns - o->delay_ns);
	return control_is_next(e, o) || o->turns ? cl_begin_ns(o->free_ps) : CL_NEVER;
}
