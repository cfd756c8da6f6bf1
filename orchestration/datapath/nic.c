// SPDX-License-Identifier: GPL-2.0-only
/* The queueing discipline "closloop_nic": a RoCE NIC on a host's link.
 *
 * Each flow of the schedule is a message on a queue pair of its own, sent at the rate that its
 * policy gives. The line sends acknowledgements and CNPs first, then the flows whose time has come
 * and the host's other packets in turn. As at a port, what happens between two events is worked
 * out when somebody looks.
 */
#include <linux/rtnetlink.h>
#include <net/gso.h>
#include <net/pkt_sched.h>
#include "decisions.h"
#include "nic.h"
#include "nic_queues.h"
#include "queue_pair.h"
#include "roce_packets.h"

/* The whole of a NIC's options. */
struct cl_nic_options {
	u64 rate_bps;
	u64 delay_ns; /* of the cable */
	u32 framing_bytes;
	__be32 address;
};

static void settle(struct nic *nic, u64 now_ns);

/* Whether a list's first packet may be sent. One that is stopped holds up those behind it. */
static bool is_ready(const struct nic *nic, const struct cl_fifo *list)
{
	return list->first && (list->first->protocol != htons(ETH_P_IP) ||
			       !cl_nic_stopped(nic, ip_hdr(list->first)->tos));
}

/* What the switch has told has changed. */
static void obey(struct cl_pause *pause, u64 now_ns)
{
	struct nic *nic = container_of(pause, struct nic, pause);

	cl_nic_sort(nic);
	nic->line.free_ps = max(nic->line.free_ps, now_ns * CL_PS_PER_NS);
	settle(nic, now_ns);
	cl_nic_expect(nic);
}

static void settle_before(struct cl_pause *pause, u64 now_ns)
{
	settle(container_of(pause, struct nic, pause), now_ns);
}

/* When the next packet can be sent if nothing else happens, U64_MAX for never. */
static u64 next_sending_ps(const struct nic *nic)
{
	struct rb_node *first = rb_first_cached(&nic->waiting);
	u64 at_ps = nic->start_ps;

	if (first)
		at_ps = min(at_ps, rb_entry(first, struct flow, waiting)->next_ps);
	if (is_ready(nic, &nic->control))
		at_ps = min(at_ps, cl_on_wire(nic->control.first)->at_ns * CL_PS_PER_NS);
	if (is_ready(nic, &nic->stack))
		at_ps = min(at_ps, cl_on_wire(nic->stack.first)->at_ns * CL_PS_PER_NS);
	if (!list_empty(&nic->turns))
		at_ps = 0;
	return at_ps == U64_MAX ? at_ps : max(at_ps, nic->line.free_ps);
}

/* Move the flows whose time has come by `at_ps` into the turn. */
static void begin_turns(struct nic *nic, u64 at_ps)
{
	struct rb_node *first;

	while (nic->start_ps <= at_ps) {
		struct flow *flow = &cl_roce.flow[nic->posted[nic->begun++]];

		cl_nic_look_ahead(nic);
		cl_flow_begin(flow);
		flow->progress_ns = flow->posted.start_ns;
		list_add_tail(&flow->unfinished, &nic->unfinished);
		if (!nic->patience.number)
			cl_schedule(&nic->patience, flow->posted.start_ns + cl_roce.timeout_ns);
		cl_nic_wait(nic, flow, flow->posted.start_ns * CL_PS_PER_NS);
	}
	while ((first = rb_first_cached(&nic->waiting))) {
		struct flow *flow = rb_entry(first, struct flow, waiting);

		if (flow->next_ps > at_ps)
			break;
		rb_erase_cached(first, &nic->waiting);
		list_add_tail(&flow->turn, cl_nic_stopped(nic, flow->posted.tos) ? &nic->stopped :
										   &nic->turns);
	}
}

static struct sk_buff *next_of_flow(struct nic *nic, u64 at_ps)
{
	struct flow *flow = list_first_entry(&nic->turns, struct flow, turn);
	struct sk_buff *skb;
	u64 sending_ps;

	list_del(&flow->turn);
	flow->sending = false;
	if (!cl_flow_may_send(flow))
		return NULL; /* it was acknowledged meanwhile */
	skb = cl_flow_send(flow, DIV_ROUND_UP_ULL(at_ps, CL_PS_PER_NS));
	if (!skb)
		return NULL;
	sending_ps = cl_sending_ps(&nic->line, skb->len);
	if (flow->rate_bps < flow->state.line_bps)
		sending_ps = mul_u64_u64_div_u64(sending_ps, flow->state.line_bps, flow->rate_bps);
	flow->next_ps = at_ps + sending_ps;
	cl_nic_wait(nic, flow, 0);
	qdisc_qlen_inc(nic->sch);
	return skb;
}

/* Put on the wire what has begun to be sent by `now_ns`. */
static void settle(struct nic *nic, u64 now_ns)
{
	u64 now_ps = now_ns * CL_PS_PER_NS, at_ps;

	while ((at_ps = next_sending_ps(nic)) <= now_ps) {
		struct sk_buff *skb;
		bool own = true;

		if (unlikely(nic->first_decision) && cl_decision_takes_effect(nic, at_ps))
			continue;
		begin_turns(nic, at_ps);
		if (is_ready(nic, &nic->control) &&
		    cl_on_wire(nic->control.first)->at_ns * CL_PS_PER_NS <= at_ps) {
			skb = cl_take(&nic->control);
		} else if (is_ready(nic, &nic->stack) && (list_empty(&nic->turns) || !nic->stack_was_last)) {
			skb = cl_take(&nic->stack);
			nic->sch->qstats.backlog -= qdisc_pkt_len(skb);
			nic->stack_was_last = true;
			skb_orphan(skb);
			own = false;
		} else if (!list_empty(&nic->turns)) {
			nic->stack_was_last = false;
			skb = next_of_flow(nic, at_ps);
		} else {
			continue; /* a flow began that has nothing to send */
		}
		if (!skb)
			continue;
		if (unlikely(cl_roce.icrc) && own)
			cl_write_icrc(skb);
		cl_on_wire(skb)->at_ns =
			DIV_ROUND_UP_ULL(at_ps, CL_PS_PER_NS) + nic->line.delay_ns;
		nic->line.free_ps = at_ps + cl_sending_ps(&nic->line, qdisc_pkt_len(skb));
		qdisc_bstats_update(nic->sch, skb);
		cl_append(&nic->wire, skb);
	}
}

void cl_nic_settle(struct nic *nic)
{
	settle(nic, cl_now_ns());
}

void cl_nic_expect(struct nic *nic)
{
	u64 at_ps;

	if (nic->wire.first) {
		cl_schedule(&nic->event, cl_on_wire(nic->wire.first)->at_ns);
		return;
	}
	at_ps = next_sending_ps(nic);
	if (at_ps != U64_MAX)
		cl_schedule(&nic->event, DIV_ROUND_UP_ULL(at_ps, CL_PS_PER_NS) + nic->line.delay_ns);
}

static void arrive(struct cl_event *event)
{
	struct nic *nic = container_of(event, struct nic, event);
	u64 now_ns = cl_now_ns();

	settle(nic, now_ns);
	while (nic->wire.first && cl_on_wire(nic->wire.first)->at_ns <= now_ns) {
		struct sk_buff *skb = cl_take(&nic->wire);

		qdisc_qlen_dec(nic->sch);
		cl_known = *cl_known_of(skb);
		cl_deliver(skb, nic->dev, nic->peer);
		cl_known = (struct cl_known){};
	}
	cl_nic_expect(nic);
}

static void warm(const struct cl_event *event, u32 away)
{
	const struct nic *nic = container_of(event, struct nic, event);

	cl_warm_wire(&nic->wire, nic->dev, nic->peer, away);
}

/* The first decision is due. */
static void decided(struct cl_event *event)
{
	struct nic *nic = container_of(event, struct nic, decided);
	u64 now_ns = cl_now_ns();

	settle(nic, now_ns);
	while (cl_decision_takes_effect(nic, now_ns * CL_PS_PER_NS))
		;
	settle(nic, now_ns);
	if (nic->first_decision)
		cl_schedule(&nic->decided, max(nic->first_decision->at_ns, now_ns));
	cl_nic_expect(nic);
}

static void be_patient(struct cl_event *event)
{
	struct nic *nic = container_of(event, struct nic, patience);
	u64 now_ns = cl_now_ns();

	settle(nic, now_ns);
	while (!list_empty(&nic->unfinished)) {
		struct flow *flow = list_first_entry(&nic->unfinished, struct flow, unfinished);

		if (flow->progress_ns + cl_roce.timeout_ns > now_ns) {
			cl_schedule(&nic->patience, flow->progress_ns + cl_roce.timeout_ns);
			break;
		}
		cl_flow_time_out(flow, now_ns);
		cl_nic_progress(nic, flow, now_ns);
	}
	cl_nic_expect(nic);
}

static rx_handler_result_t receive(struct sk_buff **pskb)
{
	struct sk_buff *skb = *pskb;
	struct nic *nic = rcu_dereference(skb->dev->rx_handler_data);
	const struct header *h = (const struct header *)skb_mac_header(skb);
	struct flow *flow;
	u64 now_ns;
	u32 number;

	if (unlikely(skb->protocol == htons(ETH_P_PAUSE))) {
		cl_pause_receive(&nic->pause, skb);
		consume_skb(skb);
		return RX_HANDLER_CONSUMED;
	}
	if (skb->protocol != htons(ETH_P_IP) ||
	    skb_headlen(skb) < DATA_HEADER_BYTES - ETH_HLEN || h->ip.ihl != 5 ||
	    h->ip.protocol != IPPROTO_UDP || h->udp.dest != htons(ROCE_PORT))
		return RX_HANDLER_PASS;
	number = (ntohl(h->bth.qpn) & PSN_MASK) - FIRST_QPN;
	if (likely(number < cl_roce.count)) {
		flow = &cl_roce.flow[number];
		now_ns = cl_now_ns();
		settle(nic, now_ns);
		cl_flow_receive(nic, flow, h, now_ns);
		settle(nic, now_ns);
		cl_nic_expect(nic);
	}
	cl_packet_done(skb);
	return RX_HANDLER_CONSUMED;
}

static void add_to_stack(struct nic *nic, struct sk_buff *skb, u64 now_ns)
{
	cl_on_wire(skb)->at_ns = now_ns;
	*cl_known_of(skb) = (struct cl_known){};
	cl_append(&nic->stack, skb);
	nic->sch->qstats.backlog += qdisc_pkt_len(skb);
	qdisc_qlen_inc(nic->sch);
}

/* TCP hands over packets for the device to cut. They are cut here, as net/sched/sch_tbf.c does:
 * what leaves by `arrive` does not pass where Linux would do it.
 */
static int add_segments(struct nic *nic, struct sk_buff *skb, u64 now_ns, struct sk_buff **to_free)
{
	netdev_features_t features = netif_skb_features(skb) & ~NETIF_F_GSO_MASK;
	struct sk_buff *segments = skb_gso_segment(skb, features), *next;

	if (IS_ERR_OR_NULL(segments))
		return qdisc_drop(skb, nic->sch, to_free);
	skb_list_walk_safe(segments, segments, next) {
		skb_mark_not_on_list(segments);
		qdisc_skb_cb(segments)->pkt_len = segments->len;
		add_to_stack(nic, segments, now_ns);
	}
	consume_skb(skb);
	return NET_XMIT_SUCCESS;
}

static int nic_enqueue(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free)
{
	struct nic *nic = qdisc_priv(sch);
	u64 now_ns = cl_now_ns();
	int answer = NET_XMIT_SUCCESS;

	settle(nic, now_ns);
	if (skb_is_gso(skb))
		answer = add_segments(nic, skb, now_ns, to_free);
	else
		add_to_stack(nic, skb, now_ns);
	settle(nic, now_ns);
	cl_nic_expect(nic);
	return answer;
}

/* Packets leave by `arrive`, not by the device's transmission. */
static struct sk_buff *nic_dequeue(struct Qdisc *sch)
{
	return NULL;
}

static int nic_init(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct nic *nic = qdisc_priv(sch);
	struct cl_nic_options options;
	int error = cl_read_options(sch, opt, &options, sizeof(options), &nic->peer, extack);

	if (error)
		return error;
	if (!options.rate_bps || cl_roce.nics == MOST_NICS) {
		NL_SET_ERR_MSG(extack, "a NIC needs a rate, and there are at most 4096");
		return -EINVAL;
	}
	nic->dev = qdisc_dev(sch);
	nic->sch = sch;
	nic->event.happen = arrive;
	nic->event.warm = warm;
	nic->patience.happen = be_patient;
	nic->start_ps = U64_MAX;
	nic->decided.happen = decided;
	nic->address = options.address;
	nic->waiting = RB_ROOT_CACHED;
	INIT_LIST_HEAD(&nic->turns);
	INIT_LIST_HEAD(&nic->stopped);
	cl_pause_init(&nic->pause, options.rate_bps, settle_before, obey);
	INIT_LIST_HEAD(&nic->unfinished);
	cl_line_init(&nic->line, options.rate_bps, options.delay_ns, options.framing_bytes);
	error = netdev_rx_handler_register(nic->dev, receive, nic);
	if (!error)
		cl_roce.nic[cl_roce.nics++] = nic;
	return error;
}

static void nic_reset(struct Qdisc *sch)
{
	struct nic *nic = qdisc_priv(sch);

	if (!nic->sch)
		return;
	cl_cancel(&nic->event);
	cl_decisions_end(nic);
	cl_cancel(&nic->pause.run_out);
	cl_empty(&nic->wire);
	cl_empty(&nic->control);
	cl_empty(&nic->held);
	cl_empty(&nic->stack);
}

static void nic_destroy(struct Qdisc *sch)
{
	struct nic *nic = qdisc_priv(sch);

	nic_reset(sch);
	if (!nic->sch)
		return;
	cl_cancel(&nic->patience);
	for (u32 i = 0; i < cl_roce.nics; i++)
		if (cl_roce.nic[i] == nic) {
			cl_roce.nic[i] = cl_roce.nic[--cl_roce.nics];
			netdev_rx_handler_unregister(nic->dev);
			break;
		}
}

static int nic_dump(struct Qdisc *sch, struct sk_buff *skb)
{
	return skb->len;
}

static struct Qdisc_ops nic_ops = {
	.id = "closloop_nic",
	.priv_size = sizeof(struct nic),
	.enqueue = nic_enqueue,
	.dequeue = nic_dequeue,
	.peek = qdisc_peek_dequeued,
	.init = nic_init,
	.reset = nic_reset,
	.destroy = nic_destroy,
	.dump = nic_dump,
	.owner = THIS_MODULE,
};

static int __init begin(void)
{
	return register_qdisc(&nic_ops);
}
late_initcall(begin);
