// SPDX-License-Identifier: GPL-2.0-only
/* The queueing discipline "closloop_host": the NIC of a host that speaks TCP.
 *
 * It does what tbf over fq without pacing does on Linux' fabric, with one event a packet: flows
 * (sockets) send in turn by deficit round robin, new ones first, at the line's rate; large segments
 * are cut into packets when they come (tbf); the packet after the one on the line is chosen when
 * that one begins (tbf peeks). A packet is its socket's until its first bit is sent: TCP's limit of
 * what may wait below it holds as on Linux.
 */
#include <linux/hash.h>
#include <linux/rtnetlink.h>
#include <net/gso.h>
#include <net/pkt_sched.h>
#include <net/sock.h>
#include <net/tcp.h>
#include "wire.h"

/* Of fq (net/sched/sch_fq.c): in full packets, what a flow sends in its turn, and at its first. */
#define TURN_PACKETS 2
#define FIRST_TURN_PACKETS 10
#define REFILL_NS (40 * NSEC_PER_MSEC)
/* An idle NIC takes so many packets without asking whose they are. */
#define MOST_AT_ONCE 8
#define TABLE_BITS 8

/* The whole of the options of a TCP host's NIC, and their attribute. */
#define CL_HOST_OPTIONS 1

struct cl_host_options {
	u64 rate_bps;
	u32 framing_bytes;
	u32 unused;
};

struct flow {
	struct flow *next; /* with the same hash */
	const struct sock *sk; /* NULL for packets of no connection */
	u32 owner_hash; /* another one: the socket's memory has a new owner */
	s32 credit_bytes;
	u64 last_ns;
	struct list_head turn; /* in `fresh` or `old` */
	struct cl_fifo packets;
};

struct host {
	struct cl_event departure;
	struct Qdisc *sch;
	struct net_device *peer;
	struct cl_line line;
	u32 frame_bytes;
	struct sk_buff *chosen; /* the next to be sent */
	struct cl_fifo at_once;
	u32 at_once_packets, busy_flows;
	struct list_head fresh, old;
	struct flow *flow[1 << TABLE_BITS];
};

static struct kmem_cache *flow_cache;

static struct flow *find(struct host *host, struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;
	struct flow **head, *flow;

	if (!sk || sk_listener_or_tw(sk)) {
		skb_orphan(skb);
		sk = NULL;
	} else if (sk->sk_state == TCP_CLOSE) {
		sk = NULL;
	}
	head = &host->flow[hash_ptr(sk, TABLE_BITS)];
	for (flow = *head; flow && flow->sk != sk; flow = flow->next)
		;
	if (!flow) {
		flow = kmem_cache_zalloc(flow_cache, GFP_ATOMIC);
		if (!flow)
			return NULL;
		flow->sk = sk;
		flow->owner_hash = sk ? sk->sk_hash : 0;
		flow->credit_bytes = FIRST_TURN_PACKETS * host->frame_bytes;
		INIT_LIST_HEAD(&flow->turn);
		flow->next = *head;
		*head = flow;
	} else if (sk && flow->owner_hash != sk->sk_hash) {
		flow->owner_hash = sk->sk_hash;
		flow->credit_bytes = FIRST_TURN_PACKETS * host->frame_bytes;
	}
	return flow;
}

static struct sk_buff *next_packet(struct host *host)
{
	const s32 turn_bytes = TURN_PACKETS * host->frame_bytes;

	if (host->at_once.first) {
		host->at_once_packets--;
		return cl_take(&host->at_once);
	}
	for (;;) {
		bool fresh = !list_empty(&host->fresh);
		struct flow *flow = list_first_entry_or_null(fresh ? &host->fresh : &host->old,
							     struct flow, turn);
		struct sk_buff *skb;

		if (!flow)
			return NULL;
		if (flow->credit_bytes <= 0) {
			flow->credit_bytes += turn_bytes;
			list_move_tail(&flow->turn, &host->old);
			continue;
		}
		if (!flow->packets.first) {
			/* a new flow waits its turn among the old ones before it is new again */
			if (fresh)
				list_move_tail(&flow->turn, &host->old);
			else
				list_del_init(&flow->turn);
			continue;
		}
		skb = cl_take(&flow->packets);
		if (!flow->packets.first)
			host->busy_flows--;
		flow->credit_bytes -= qdisc_pkt_len(skb);
		return skb;
	}
}

/* Send what can be sent by now. */
static void send(struct host *host, u64 now_ns)
{
	struct sk_buff *skb;

	while (host->chosen && host->line.free_ps <= now_ns * CL_PS_PER_NS) {
		skb = host->chosen;
		host->line.free_ps += cl_sending_ps(&host->line, qdisc_pkt_len(skb));
		host->chosen = next_packet(host);
		host->sch->qstats.backlog -= qdisc_pkt_len(skb);
		qdisc_qlen_dec(host->sch);
		qdisc_bstats_update(host->sch, skb);
		/* as a pair of veth does: here TCP learns that there is room again */
		skb_orphan(skb);
		skb_dst_drop(skb);
		skb_clear_tstamp(skb);
		cl_deliver(skb, qdisc_dev(host->sch), host->peer);
	}
	if (host->chosen)
		cl_schedule(&host->departure, DIV_ROUND_UP_ULL(host->line.free_ps, CL_PS_PER_NS));
}

static void depart(struct cl_event *event)
{
	send(container_of(event, struct host, departure), cl_now_ns());
}

static int take(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free, u64 now_ns)
{
	struct host *host = qdisc_priv(sch);
	struct flow *flow;

	if (!host->chosen) {
		host->line.free_ps = max(host->line.free_ps, now_ns * CL_PS_PER_NS);
		host->chosen = skb;
	} else if (!host->busy_flows && host->at_once_packets < MOST_AT_ONCE) {
		host->at_once_packets++;
		cl_append(&host->at_once, skb);
	} else {
		flow = find(host, skb);
		if (!flow)
			return qdisc_drop(skb, sch, to_free);
		if (list_empty(&flow->turn)) {
			list_add_tail(&flow->turn, &host->fresh);
			if (now_ns > flow->last_ns + REFILL_NS)
				flow->credit_bytes = max(flow->credit_bytes,
							 (s32)(TURN_PACKETS * host->frame_bytes));
		}
		flow->last_ns = now_ns;
		if (!flow->packets.first)
			host->busy_flows++;
		cl_append(&flow->packets, skb);
	}
	sch->qstats.backlog += qdisc_pkt_len(skb);
	qdisc_qlen_inc(sch);
	return NET_XMIT_SUCCESS;
}

static int host_enqueue(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free)
{
	struct host *host = qdisc_priv(sch);
	u64 now_ns = cl_now_ns();
	int result = NET_XMIT_SUCCESS;

	send(host, now_ns);
	if (skb_is_gso(skb)) {
		netdev_features_t features = netif_skb_features(skb);
		struct sk_buff *segment, *next;

		segment = skb_gso_segment(skb, features & ~NETIF_F_GSO_MASK);
		if (IS_ERR_OR_NULL(segment))
			return qdisc_drop(skb, sch, to_free);
		skb_list_walk_safe(segment, segment, next) {
			skb_mark_not_on_list(segment);
			qdisc_skb_cb(segment)->pkt_len = segment->len;
			qdisc_skb_cb(segment)->pkt_segs = 1;
			result = take(segment, sch, to_free, now_ns);
		}
		consume_skb(skb);
	} else {
		result = take(skb, sch, to_free, now_ns);
	}
	send(host, now_ns);
	return result;
}

/* Packets leave by `send`, not by the device's transmission. */
static struct sk_buff *host_dequeue(struct Qdisc *sch)
{
	return NULL;
}

static const struct nla_policy policy[CL_HOST_OPTIONS + 1] = {
	[CL_HOST_OPTIONS] = NLA_POLICY_EXACT_LEN(sizeof(struct cl_host_options)),
};

static int host_init(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct net_device *dev = qdisc_dev(sch);
	struct host *host = qdisc_priv(sch);
	struct nlattr *found[CL_HOST_OPTIONS + 1];
	struct cl_host_options options;
	int error;

	INIT_LIST_HEAD(&host->fresh);
	INIT_LIST_HEAD(&host->old);
	if (!opt)
		return -EINVAL;
	error = nla_parse_nested(found, CL_HOST_OPTIONS, opt, policy, extack);
	if (error)
		return error;
	if (NL_REQ_ATTR_CHECK(extack, opt, found, CL_HOST_OPTIONS))
		return -EINVAL;
	memcpy(&options, nla_data(found[CL_HOST_OPTIONS]), sizeof(options));
	if (dev->netdev_ops->ndo_get_peer_dev)
		host->peer = dev->netdev_ops->ndo_get_peer_dev(dev);
	if (!host->peer || !options.rate_bps) {
		NL_SET_ERR_MSG(extack, "a NIC needs a rate, and must be one end of a veth pair");
		return -EINVAL;
	}
	host->sch = sch;
	host->departure.happen = depart;
	host->frame_bytes = psched_mtu(dev);
	cl_line_init(&host->line, options.rate_bps, 0, options.framing_bytes);
	return 0;
}

static void host_reset(struct Qdisc *sch)
{
	struct host *host = qdisc_priv(sch);

	cl_cancel(&host->departure);
	kfree_skb(host->chosen);
	host->chosen = NULL;
	cl_empty(&host->at_once);
	for (u32 i = 0; i < ARRAY_SIZE(host->flow); i++)
		while (host->flow[i]) {
			struct flow *flow = host->flow[i];

			host->flow[i] = flow->next;
			cl_empty(&flow->packets);
			kmem_cache_free(flow_cache, flow);
		}
	INIT_LIST_HEAD(&host->fresh);
	INIT_LIST_HEAD(&host->old);
	host->at_once_packets = host->busy_flows = 0;
}

static int host_dump(struct Qdisc *sch, struct sk_buff *skb)
{
	return skb->len;
}

static struct Qdisc_ops host_ops = {
	.id = "closloop_host",
	.priv_size = sizeof(struct host),
	.enqueue = host_enqueue,
	.dequeue = host_dequeue,
	.peek = qdisc_peek_dequeued,
	.init = host_init,
	.reset = host_reset,
	.destroy = host_reset,
	.dump = host_dump,
	.owner = THIS_MODULE,
};

static int __init begin(void)
{
	flow_cache = kmem_cache_create("closloop_host_flow", sizeof(struct flow), 0, 0, NULL);
	return flow_cache ? register_qdisc(&host_ops) : -ENOMEM;
}
device_initcall(begin);
