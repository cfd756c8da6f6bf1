/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A RoCE NIC on a host's link.
 *
 * Each flow is a message on a queue pair of its own, sent at the rate that its policy gives. The line
 * sends acknowledgements and CNPs first, then the flows whose time has come, the earliest first. As
 * at a port, what happens between two events is worked out when somebody looks.
 */
#include "engine.h"
#include "lists.h"

#define FEW_NICS 64 /* from so many on, the caches have forgotten the next one */

static bool is_earlier(const struct waiting *a, const struct waiting *b)
{
	return a->next_ps < b->next_ps || (a->next_ps == b->next_ps && a->flow < b->flow);
}

/* Put `one` in the place of the first, or of none if that is gone. */
static void sink(struct heap *h, struct waiting one)
{
	u32 at = 0, child;

	while ((child = 2 * at + 1) < h->count) {
		child += child + 1 < h->count && is_earlier(&h->at[child + 1], &h->at[child]);
		if (is_earlier(&one, &h->at[child]))
			break;
		h->at[at] = h->at[child];
		at = child;
	}
	h->at[at] = one;
}

static void rise(struct cl_engine *e, struct heap *h, struct waiting one)
{
	u32 at = h->count;

	if (h->count == h->room) {
		u32 room = 2 * h->room + 4;
		struct waiting *grown = realloc(h->at, room * sizeof(*grown));

		if (!grown) {
			fail(e, "no memory for the flows of a NIC");
			return;
		}
		h->at = grown;
		h->room = room;
	}
	h->count++;
	for (; at && is_earlier(&one, &h->at[(at - 1) / 2]); at = (at - 1) / 2)
		h->at[at] = h->at[(at - 1) / 2];
	h->at[at] = one;
}

static void leave_heap(struct heap *h)
{
	if (--h->count)
		sink(h, h->at[h->count]);
}

static void set_timer(struct nic *n)
{
	n->timer_ns = min64(n->patience_ns, n->pause.run_out_ns);
}

/* Let a flow that has something to send wait for its time. */
static void wait_for_turn(struct cl_engine *e, u32 flow, u64 not_before_ps)
{
	struct sender *s = &e->sender[flow];

	if (s->waiting || !may_send(e, s))
		return;
	s->waiting = true;
	s->next_ps = max64(s->next_ps, not_before_ps);
	rise(e, &e->nic[s->nic].lane[s->klass].heap, (struct waiting){ s->next_ps, flow });
}

/* Queue an acknowledgement or a CNP. */
static void add_control(struct cl_engine *e, struct nic *n, const struct packet *p)
{
	u32 klass = cl_class(p);

	struct lane *lane = &n->lane[klass];

	if (!lane->control)
		lane->control = lane->control_end = new_chunk(e);
	cl_append(e, &lane->control_end, p);
	n->controls |= 1 << klass;
}

static void look_ahead(struct cl_engine *e, struct nic *n)
{
	n->start_ps = n->begun < n->end ?
		e->sender[e->posted[n->begun]].start_ns * CL_PS_PER_NS : CL_NEVER;
}

static void begin_flow(struct cl_engine *e, struct nic *n)
{
	u32 flow = e->posted[n->begun++];
	struct sender *s = &e->sender[flow];

	look_ahead(e, n);
	s->progress_ns = s->start_ns;
	s->after = n->unfinished;
	if (n->unfinished)
		e->sender[n->unfinished - 1].before = flow + 1;
	n->unfinished = flow + 1;
	n->flows++;
	n->patience_ns = min64(n->patience_ns, s->start_ns + e->nics.timeout_ns);
	set_timer(n);
	tell(e, s, CL_START, s->start_ns, 0);
	wait_for_turn(e, flow, s->start_ns * CL_PS_PER_NS);
}

static void leave_unfinished(struct cl_engine *e, struct nic *n, u32 flow)
{
	struct sender *s = &e->sender[flow];

	if (s->before)
		e->sender[s->before - 1].after = s->after;
	else
		n->unfinished = s->after;
	if (s->after)
		e->sender[s->after - 1].before = s->before;
	n->flows--;
}

/* The first of the acknowledgements and CNPs that may be sent, and its class; CL_NEVER for none. */
static u64 first_control_ns(const struct cl_engine *e, const struct nic *n, u8 stopped, u32 *klass)
{
	u64 first_ns = CL_NEVER;

	for (u32 left = n->controls & ~stopped; left; left &= left - 1) {
		u32 i = __builtin_ctz(left);
		u64 at_ns = cl_near_ns(e->now_ns, e->arena[n->lane[i].control].at_ns);

		if (at_ns < first_ns) {
			first_ns = at_ns;
			*klass = i;
		}
	}
	return first_ns;
}

/* The heap whose first flow may send first, and may do so by its class; NULL if none has any. */
static struct heap *first_heap(const struct cl_engine *e, struct nic *n, u8 stopped)
{
	struct heap *first = NULL;

	for (u32 i = 0; i < e->fabric.classes; i++)
		if (n->lane[i].heap.count && !(stopped >> i & 1) &&
		    (!first || is_earlier(&n->lane[i].heap.at[0], &first->at[0])))
			first = &n->lane[i].heap;
	return first;
}

/* The next packet of the flow whose turn it is; false if it has none by now. */
static bool next_of_flow(struct cl_engine *e, struct heap *h, struct out *o, u64 at_ps,
			 struct packet *p)
{
	u32 flow = h->at[0].flow;
	struct sender *s = &e->sender[flow];
	u64 gap_ps;

	if (!may_send(e, s)) { /* it was acknowledged meanwhile */
		s->waiting = false;
		leave_heap(h);
		return false;
	}
	next_data(e, flow, cl_begin_ns(at_ps), p);
	gap_ps = cl_sending_ps(e, o - e->out, o, cl_bytes(p));
	/* bytes times 8e12: this fits in 64 bits for packets of up to a megabyte */
	if (s->state.rate_bps < s->state.line_bps)
		gap_ps = gap_ps * s->state.line_bps / s->state.rate_bps;
	s->next_ps = at_ps + gap_ps;
	if (may_send(e, s)) {
		sink(h, (struct waiting){ s->next_ps, flow });
	} else {
		s->waiting = false;
		leave_heap(h);
	}
	return true;
}

/* Put on the wire what has begun to be sent by `now_ns`; return when the next packet could be. */
static u64 settle_nic(struct cl_engine *e, struct nic *n, u64 now_ns)
{
	struct out *o = &e->out[n->port];
	u64 now_ps = now_ns * CL_PS_PER_NS;

	/* a flow begins at its start, even if the line is busy then */
	while (n->start_ps <= now_ps)
		begin_flow(e, n);
	for (;;) {
		u32 klass = 0;
		u64 control_ns = unlikely(n->controls) ?
			first_control_ns(e, n, o->stopped, &klass) : CL_NEVER;
		u64 control_ps = control_ns == CL_NEVER ? CL_NEVER : control_ns * CL_PS_PER_NS;
		u64 at_ps = control_ps;
		struct heap *h = first_heap(e, n, o->stopped);
		struct packet p;

		if (h)
			at_ps = min64(at_ps, h->at[0].next_ps);
		if (at_ps != CL_NEVER)
			at_ps = max64(at_ps, o->free_ps);
		if (at_ps > now_ps)
			return min64(at_ps, n->start_ps);
		if (control_ps <= at_ps) {
			struct lane *lane = &n->lane[klass];

			p = e->arena[lane->control];
			lane->control = cl_drop_first(e, lane->control);
			if (cl_is_empty(e, lane->control))
				n->controls &= ~(1 << klass);
		} else if (!next_of_flow(e, h, o, at_ps, &p)) {
			continue;
		}
		e->counts.bytes_sent += cl_bytes(&p);
		o->free_ps = at_ps;
		transmit(e, o, &p);
	}
}

static void obey_nic(struct cl_engine *e, struct nic *n, u64 now_ns)
{
	struct out *o = &e->out[n->port];

	set_timer(n);
	o->stopped = stopped_classes(e, &n->pause);
	o->free_ps = max64(o->free_ps, now_ns * CL_PS_PER_NS);
}

/* What has had no answer for long is lost. */
static void be_patient(struct cl_engine *e, struct nic *n, u64 now_ns)
{
	u64 first_ns = CL_NEVER;
	u32 last = 0;

	for (;;) {
		u32 flow = UINT32_MAX;

		/* those whose time it is, the lower number first */
		for (u32 i = n->unfinished; i; i = e->sender[i - 1].after)
			if (e->sender[i - 1].progress_ns + e->nics.timeout_ns <= now_ns &&
			    i - 1 < flow && i > last)
				flow = i - 1;
		if (flow == UINT32_MAX)
			break;
		last = flow + 1;
		time_out(e, flow, now_ns);
		e->sender[flow].progress_ns = now_ns;
	}
	for (u32 i = n->unfinished; i; i = e->sender[i - 1].after)
		first_ns = min64(first_ns, e->sender[i - 1].progress_ns + e->nics.timeout_ns);
	n->patience_ns = first_ns;
	set_timer(n);
}

/* Ask the memory early for what the next NICs touch: from each what is known by then. */
static inline void warm_nic(const struct cl_engine *e, u32 number)
{
	const struct nic *n = &e->nic[number];

	if (number + 12 < e->nic_count) {
		cl_fetch(&n[12]);
		cl_fetch(&n[12].received_packets);
	}
	if (number + 9 < e->nic_count) {
		cl_fetch(&e->heads[n[9].port]);
		cl_fetch(&e->out[n[9].port]);
		cl_fetch(n[9].lane[0].heap.at);
	}
	if (number + 6 < e->nic_count) {
		cl_fetch(&e->arena[e->heads[n[6].port]]);
		cl_fetch(&e->arena[e->out[n[6].port].tail]);
		if (n[6].lane[0].heap.count) {
			const struct sender *s = &e->sender[n[6].lane[0].heap.at[0].flow];

			cl_fetch(s);
			cl_fetch(&s->state);
			cl_fetch(&s->state.window_bytes);
			cl_fetch(&s->state.own[7]);
		}
	}
	if (number + 3 < e->nic_count) {
		u32 slot = e->heads[n[3].port];

		for (u32 i = 0; i < 3 && !cl_is_empty(e, slot); i++, slot = cl_after(e, slot)) {
			const struct packet *p = &e->arena[slot];

			if (cl_kind(p) == DATA) {
				cl_fetch(&e->receiver[p->flow]);
			} else {
				cl_fetch(&e->sender[p->flow]);
				cl_fetch(&e->sender[p->flow].state);
			}
		}
	}
}

static void nic_window(struct cl_engine *e, u32 number, u64 end_ns)
{
	struct nic *n = &e->nic[number];
	u32 head = e->heads[n->port];
	u64 next_ps;

	for (;;) {
		const struct packet *first = &e->arena[head];
		u64 timer_ns = n->timer_ns;
		u64 arrival_ns = first->kind == NO_PACKET ? CL_NEVER :
			cl_near_ns(e->now_ns, first->at_ns);

		if (arrival_ns < end_ns && arrival_ns <= timer_ns) {
			struct packet p = *first;

			head = cl_drop_first(e, head);
			settle_nic(e, n, arrival_ns);
			if (unlikely(cl_kind(&p) == PAUSE)) {
				take_pause(&n->pause, p.psn, p.flow, n->line_bps, arrival_ns);
				obey_nic(e, n, arrival_ns);
			} else {
				take_packet(e, n, &p, arrival_ns);
			}
		} else if (timer_ns < end_ns) {
			settle_nic(e, n, timer_ns);
			if (n->pause.run_out_ns <= timer_ns) {
				run_out(&n->pause, timer_ns);
				obey_nic(e, n, timer_ns);
				settle_nic(e, n, timer_ns);
			}
			if (n->patience_ns <= timer_ns)
				be_patient(e, n, timer_ns);
		} else {
			next_ps = settle_nic(e, n, end_ns - 1);
			e->heads[n->port] = head;
			arrival_ns = min64(arrival_ns, n->timer_ns);
			e->due_ns[number] = min64(arrival_ns, next_ps == CL_NEVER ? CL_NEVER :
								cl_begin_ns(next_ps));
			return;
		}
	}
}
