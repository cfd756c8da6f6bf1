// SPDX-License-Identifier: GPL-2.0-only
/* A port of a switch: what enters it, when that leaves, and when it arrives at the other end.
 *
 * Packets wait in one queue a class, and are sent by deficit round robin at the line's rate. A
 * packet that arrives is marked with a probability that rises in a straight line with the bytes
 * that wait, from 0 at kmin to max_p at kmax, and always from kmax on. A packet arrives at the
 * other end the cable's delay after its first bit was sent (switches cut through).
 *
 * A port needs one event a packet, at the arrival at the other end. What happens in between is
 * worked out when somebody looks: everything here first calls `settle`, which sends what has begun
 * to be sent by now. This is exact, because nothing can change between two looks.
 */
#include <net/dsfield.h>
#include <net/inet_ecn.h>
#include <net/pkt_sched.h>
#include "hosts.h"
#include "port.h"
#include "telemetry.h"
#include "watchdog.h"

/* SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
static u32 draw(struct port *port)
{
	u64 z = port->stream += 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return (z ^ (z >> 31)) >> 32;
}

static bool marks(struct port *port, const struct cl_queue_state *state)
{
	u32 above_bytes = state->backlog_bytes - state->kmin_bytes;

	if (state->backlog_bytes < state->kmin_bytes)
		return false;
	if (state->backlog_bytes >= state->kmax_bytes)
		return true;
	return draw(port) < div_u64((u64)state->max_p * above_bytes,
				    state->kmax_bytes - state->kmin_bytes);
}

static void mark(struct port *port, struct queue *queue, struct sk_buff *skb)
{
	if (marks(port, &queue->state) && INET_ECN_set_ce(skb))
		queue->state.marked_packets++;
}

/* Let a queue that has packets take its turn, unless it is stopped. */
static void join(struct port *port, struct queue *queue)
{
	if (cl_class_stopped(&port->share, queue - port->queue))
		return;
	list_add_tail(&queue->turn, &port->turns);
	queue->deficit_bytes = queue->quantum_bytes;
}

/* Take the packet whose turn it is. Deficit round robin, in the details of net/sched/sch_ets.c. */
static struct sk_buff *next_packet(struct port *port, u64 now_ns)
{
	for (;;) {
		struct queue *queue = list_first_entry(&port->turns, struct queue, turn);
		u32 bytes = qdisc_pkt_len(queue->packets.first);
		struct sk_buff *skb;

		if (port->classes > 1 && bytes > queue->deficit_bytes) {
			queue->deficit_bytes += queue->quantum_bytes;
			list_move_tail(&queue->turn, &port->turns);
			continue;
		}
		queue->deficit_bytes -= bytes;
		queue->state.backlog_bytes -= bytes;
		queue->state.tx_bytes += bytes;
		queue->state.tx_packets++;
		port->sch->qstats.backlog -= bytes;
		if (queue->packets.first == queue->packets.last)
			list_del_init(&queue->turn);
		skb = cl_take(&queue->packets);
		if (port->share.buffer)
			cl_buffer_release(&port->share, skb, queue - port->queue, now_ns);
		if (port->marks_departures)
			mark(port, queue, skb);
		return skb;
	}
}

/* `skb` leaves at `at_ns`. Bytes are counted with their framing: so many the line can send. */
static void add_telemetry(struct port *port, struct sk_buff *skb, u64 at_ns)
{
	struct gnet_stats_basic_sync *sent = &port->sch->bstats;
	struct cl_hop seen = {
		.at_ns = at_ns,
		.tx_bytes = u64_stats_read(&sent->bytes) +
			    u64_stats_read(&sent->packets) * port->line.framing_bytes,
		.queue_bytes = port->sch->qstats.backlog,
		.rate_mbps = div_u64(port->line.rate_bps, 1000000),
	};

	cl_telemetry_add(skb, port->first_queue, &seen);
}

/* Whether a pause frame is next. The wire is then free for it. */
static bool control_is_next(struct port *port)
{
	u64 at_ps;

	if (likely(!port->control.first))
		return false;
	at_ps = cl_on_wire(port->control.first)->at_ns * CL_PS_PER_NS;
	if (at_ps > port->line.free_ps) {
		if (!list_empty(&port->turns))
			return false;
		port->line.free_ps = at_ps;
	}
	return true;
}

/* Put on the wire what has begun to be sent by `now_ns`. */
static void settle(struct port *port, u64 now_ns)
{
	u64 now_ps = now_ns * CL_PS_PER_NS;
	bool control;

	while (((control = control_is_next(port)) || !list_empty(&port->turns)) &&
	       port->line.free_ps <= now_ps) {
		struct sk_buff *skb =
			control ? cl_take(&port->control) : next_packet(port, now_ns);

		cl_on_wire(skb)->at_ns =
			DIV_ROUND_UP_ULL(port->line.free_ps, CL_PS_PER_NS) + port->line.delay_ns;
		if (unlikely(cl_telemetry) && !control)
			add_telemetry(port, skb, cl_on_wire(skb)->at_ns - port->line.delay_ns);
		port->line.free_ps += cl_sending_ps(&port->line, qdisc_pkt_len(skb));
		qdisc_bstats_update(port->sch, skb);
		cl_append(&port->wire, skb);
	}
}

/* Schedule the next arrival at the other end, or, if somebody waits for it, the next departure. */
static void expect(struct port *port)
{
	bool sends = control_is_next(port) || !list_empty(&port->turns);
	u64 departure_ns = DIV_ROUND_UP_ULL(port->line.free_ps, CL_PS_PER_NS);

	if (unlikely(sends && cl_buffer_waits(&port->share)) &&
	    (!port->wire.first || departure_ns < cl_on_wire(port->wire.first)->at_ns))
		cl_schedule(&port->arrival, departure_ns);
	else if (port->wire.first)
		cl_schedule(&port->arrival, cl_on_wire(port->wire.first)->at_ns);
	else if (sends)
		cl_schedule(&port->arrival, departure_ns + port->line.delay_ns);
}

static void arrive(struct cl_event *event)
{
	struct port *port = container_of(event, struct port, arrival);
	u64 now_ns = cl_now_ns();

	settle(port, now_ns);
	while (port->wire.first && cl_on_wire(port->wire.first)->at_ns <= now_ns) {
		struct sk_buff *skb = cl_take(&port->wire);

		qdisc_qlen_dec(port->sch);
		if (!cl_forwards(port->peer))
			cl_hosts_received(dev_net(port->peer), skb);
		cl_known = *cl_known_of(skb);
		cl_deliver(skb, port->dev, port->peer);
		cl_known = (struct cl_known){};
	}
	expect(port);
}

static void warm(const struct cl_event *event, u32 away)
{
	const struct port *port = container_of(event, struct port, arrival);

	if (away == 3)
		cl_port_warm(port->sch);
	cl_warm_wire(&port->wire, port->dev, port->peer, away);
}

static u32 class_of(const struct port *port, struct sk_buff *skb)
{
	u32 klass;

	if (port->classes == 1 || skb->protocol != htons(ETH_P_IP))
		return 0;
	/* orchestration/agent/linux/qdiscs.py, CLASS_TOS */
	klass = ipv4_get_dsfield(ip_hdr(skb)) >> 3;
	return klass < port->classes ? klass : 0;
}

static bool enters(struct port *port, struct queue *queue, struct sk_buff *skb, u64 now_ns)
{
	u32 klass = queue - port->queue, backlog_bytes = queue->state.backlog_bytes;

	if (port->share.buffer)
		return !(port->share.discards & BIT(klass)) &&
		       cl_buffer_admit(&port->share, skb, klass, backlog_bytes, now_ns);
	return qdisc_pkt_len(skb) <= queue->limit_bytes - min(queue->limit_bytes, backlog_bytes);
}

int cl_port_enqueue(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free)
{
	struct port *port = qdisc_priv(sch);
	struct queue *queue = &port->queue[class_of(port, skb)];
	u32 bytes = qdisc_pkt_len(skb);
	u64 now_ns = cl_now_ns();

	settle(port, now_ns);
	if (unlikely(!enters(port, queue, skb, now_ns))) {
		queue->state.dropped_packets++;
		return qdisc_drop(skb, sch, to_free);
	}
	if (!port->marks_departures)
		mark(port, queue, skb);
	if (list_empty(&port->turns))
		port->line.free_ps = max(port->line.free_ps, now_ns * CL_PS_PER_NS);
	if (!queue->state.backlog_bytes)
		join(port, queue);
	queue->state.backlog_bytes += bytes;
	sch->qstats.backlog += bytes;
	qdisc_qlen_inc(sch);
	*cl_known_of(skb) = cl_known;
	cl_append(&queue->packets, skb);
	settle(port, now_ns);
	expect(port);
	return NET_XMIT_SUCCESS;
}

/* What the port has been told by its peer has changed. */
static void obey(struct cl_pause *pause, u64 now_ns)
{
	struct port *port = container_of(pause, struct port, share.pause);

	/* a port that was stopped has sent nothing meanwhile */
	if (list_empty(&port->turns))
		port->line.free_ps = max(port->line.free_ps, now_ns * CL_PS_PER_NS);
	for (u32 i = 0; i < port->classes; i++) {
		struct queue *queue = &port->queue[i];

		if (!list_empty(&queue->turn)) {
			if (cl_class_stopped(&port->share, i))
				list_del_init(&queue->turn);
		} else if (queue->packets.first) {
			join(port, queue);
		}
	}
	cl_watch(&port->share, now_ns);
	settle(port, now_ns);
	expect(port);
}

static void settle_before(struct cl_pause *pause, u64 now_ns)
{
	settle(container_of(pause, struct port, share.pause), now_ns);
}

static void expect_share(struct cl_share *share)
{
	expect(container_of(share, struct port, share));
}

static void send_control(struct cl_share *share, struct sk_buff *skb, u64 now_ns)
{
	struct port *port = container_of(share, struct port, share);

	cl_on_wire(skb)->at_ns = now_ns;
	*cl_known_of(skb) = (struct cl_known){};
	cl_append(&port->control, skb);
	qdisc_qlen_inc(port->sch);
	cl_schedule(&port->arrival, now_ns);
}

/* Drop what waits in a queue. */
static void discard(struct port *port, struct queue *queue, u64 now_ns)
{
	while (queue->packets.first) {
		struct sk_buff *skb = cl_take(&queue->packets);

		queue->state.backlog_bytes -= qdisc_pkt_len(skb);
		port->sch->qstats.backlog -= qdisc_pkt_len(skb);
		qdisc_qlen_dec(port->sch);
		if (port->share.buffer)
			cl_buffer_release(&port->share, skb, queue - port->queue, now_ns);
		kfree_skb(skb);
	}
	list_del_init(&queue->turn);
}

static void discard_class(struct cl_share *share, u32 klass, u64 now_ns)
{
	struct port *port = container_of(share, struct port, share);

	for (struct sk_buff *skb = port->queue[klass].packets.first; skb; skb = skb->next)
		port->queue[klass].state.dropped_packets++;
	discard(port, &port->queue[klass], now_ns);
}

static bool holds(const struct cl_share *share, u32 klass, const struct cl_share *from)
{
	struct sk_buff *skb = container_of(share, struct port, share)->queue[klass].packets.first;

	while (skb && from && cl_on_wire(skb)->from != from->place + 1)
		skb = skb->next;
	return skb;
}

static const struct cl_share_ops share_ops = {
	.expect = expect_share,
	.control = send_control,
	.discard = discard_class,
	.holds = holds,
};

void cl_port_warm(const struct Qdisc *sch)
{
	const struct port *port = (const struct port *)sch->privdata;

	prefetch(&sch->ops);
	prefetch(&sch->q);
	cl_warm_lines(port, 5);
	prefetch(&port->share);
}

void cl_port_settle(struct Qdisc *sch)
{
	settle(qdisc_priv(sch), cl_now_ns());
}

void cl_port_set(struct Qdisc *sch, u32 klass, u32 kmin_bytes, u32 kmax_bytes, u32 max_p)
{
	struct port *port = qdisc_priv(sch);
	struct cl_queue_state *state = &port->queue[klass].state;

	state->kmin_bytes = kmin_bytes;
	state->kmax_bytes = kmax_bytes;
	state->max_p = max_p;
}

void cl_port_state(struct Qdisc *sch, u32 klass, struct cl_queue_state *state)
{
	*state = ((struct port *)qdisc_priv(sch))->queue[klass].state;
}

void cl_port_init(struct port *port, const struct cl_port_options *options)
{
	port->arrival.happen = arrive;
	port->arrival.warm = warm;
	cl_line_init(&port->line, options->rate_bps, options->delay_ns, options->framing_bytes);
	port->stream = options->seed;
	port->first_queue = options->first_queue;
	port->classes = options->classes;
	port->marks_departures = options->marks_departures;
	INIT_LIST_HEAD(&port->turns);
	for (u32 i = 0; i < options->classes; i++) {
		struct queue *queue = &port->queue[i];

		queue->limit_bytes = options->queue[i].limit_bytes;
		queue->quantum_bytes = max(1U, options->queue[i].quantum_bytes);
		INIT_LIST_HEAD(&queue->turn);
		/* until a tuner sets thresholds, nothing is marked */
		queue->state.kmin_bytes = queue->state.kmax_bytes = U32_MAX;
	}
	port->share.ops = &share_ops;
	port->share.port = port->sch;
	port->share.dev = port->dev;
	port->share.peer = port->peer;
	port->share.first_queue = port->first_queue;
	port->share.classes = port->classes;
	cl_pause_init(&port->share.pause, options->rate_bps, settle_before, obey);
}

void cl_port_reset(struct port *port)
{
	cl_cancel(&port->arrival);
	cl_empty(&port->wire);
	cl_empty(&port->control);
	for (u32 i = 0; i < port->classes; i++)
		discard(port, &port->queue[i], cl_now_ns());
}
