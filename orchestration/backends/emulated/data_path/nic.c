// SPDX-License-Identifier: GPL-2.0-only
/* The queueing discipline "closloop_nic": a RoCE NIC on a host's link.
 *
 * Each flow of the schedule is a message on a queue pair of its own: RoCEv2 packets (InfiniBand
 * Architecture Specification, annex 17: Ethernet, IPv4, UDP port 4791, base transport header, CRC),
 * sent at the rate that its policy gives. The receiver acknowledges every so many packets, asks for
 * what is missing (go-back-N), and answers marked packets with CNPs.
 *
 * The line sends acknowledgements and CNPs first, then the flows whose time has come and the host's
 * other packets in turn. As at a port, what happens between two events is worked out when somebody
 * looks.
 */
#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/proc_fs.h>
#include <linux/rbtree.h>
#include <linux/rtnetlink.h>
#include <linux/uaccess.h>
#include <linux/udp.h>
#include <linux/vmalloc.h>
#include <net/inet_ecn.h>
#include <net/ip.h>
#include <net/pkt_sched.h>
#include "data_path.h"
#include "wire.h"
#include "policy.h"

#define ROCE_PORT 4791
#define PSN_MASK 0xffffffU
#define FIRST_QPN 2 /* 0 and 1 are for management */
#define ICRC_BYTES 4
#define AETH_ACK 0x1f
#define AETH_NAK_SEQUENCE 0x60

enum opcode {
	SEND_FIRST = 0x00,
	SEND_MIDDLE = 0x01,
	SEND_LAST = 0x02,
	SEND_ONLY = 0x04,
	ACKNOWLEDGE = 0x11,
	CNP = 0x81,
};

struct bth {
	u8 opcode, flags;
	__be16 partition;
	__be32 qpn;
	__be32 psn; /* its first bit asks for an acknowledgement */
} __packed;

struct header {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct bth bth;
	union {
		__be32 aeth;
		u8 reserved[16]; /* of a CNP */
	};
} __packed;

#define DATA_HEADER_BYTES offsetof(struct header, aeth)
#define ACK_HEADER_BYTES (DATA_HEADER_BYTES + 4)
#define CNP_HEADER_BYTES (DATA_HEADER_BYTES + 16)

/* A flow as user space posts it. */
struct posted {
	u64 start_ns; /* of CLOCK_MONOTONIC */
	u64 bytes;
	__be32 src, dst;
	u16 udp_source;
	u8 tos;
	u8 unused[5];
};

/* And its results. Times are of CLOCK_MONOTONIC, 0 for never. */
struct result {
	u64 sent_ns;     /* when its first bit was sent */
	u64 received_ns; /* when the receiver had all of it */
	u64 done_ns;     /* when the sender knew */
	u64 rate_bps;
	u32 packets, resent, marked, cnps, naks, timeouts;
};

struct flow {
	struct nic *nic, *to;
	struct posted posted;
	struct result result;
	struct cl_flow_state state;
	/* the sender's, in packets */
	u32 packets, next, acked, timed_packet;
	u64 timed_ns, next_ps, progress_ns;
	bool sending;
	struct rb_node waiting;
	struct list_head turn, unfinished;
	/* the receiver's */
	u32 expected, since_ack;
	bool asked_again;
	u64 cnp_ns;
};

struct nic {
	struct cl_event event, patience;
	struct Qdisc *sch;
	struct net_device *dev, *peer;
	__be32 address;
	struct cl_line line;
	struct cl_fifo wire, control, stack;
	struct rb_root_cached waiting; /* flows by the time of their next packet */
	struct list_head turns;        /* flows whose time has come */
	struct list_head unfinished;   /* flows by the time of their last progress */
	u32 *posted, posts, begun;     /* numbers of flows by start */
	bool stack_was_last;
	u16 ident;
};

#define MOST_NICS 4096

static struct {
	struct flow *flow;
	u32 count, received;
	const struct cl_policy *policy;
	u32 parameters[CL_MOST_PARAMETERS];
	/* of all NICs; see struct settings */
	u32 payload_bytes, ack_every, window_bytes;
	u64 cnp_interval_ns, timeout_ns;
	struct nic *nic[MOST_NICS];
	u32 nics;
	struct page *zeros;
} all;

/* What user space writes before the flows. */
struct settings {
	u64 cnp_interval_ns, timeout_ns;
	u32 payload_bytes, ack_every, window_bytes, policy;
	u32 parameters[CL_MOST_PARAMETERS];
};

static const struct cl_policy *const policies[] = { &cl_policy_fixed, &cl_policy_dcqcn };

static void tell(struct flow *flow, u32 event, u64 now_ns, u32 bytes)
{
	struct cl_flow_state *state = &flow->state;

	state->now_ns = now_ns;
	state->event = event;
	state->bytes = bytes;
	all.policy->happen(state, all.parameters);
	state->rate_bps = clamp(state->rate_bps, 1000000ULL, state->line_bps);
}

static struct sk_buff *packet(struct nic *nic, const struct flow *flow, bool back, u32 header_bytes,
			      u32 payload_bytes, u8 tos)
{
	struct sk_buff *skb = alloc_skb(NET_SKB_PAD + sizeof(struct header) + ICRC_BYTES, GFP_ATOMIC);
	struct header *h;

	if (!skb)
		return NULL;
	skb_reserve(skb, NET_SKB_PAD);
	h = skb_put(skb, header_bytes);
	if (payload_bytes) {
		get_page(all.zeros);
		skb_add_rx_frag(skb, 0, all.zeros, 0, payload_bytes + ICRC_BYTES,
				payload_bytes + ICRC_BYTES);
	} else {
		skb_put_zero(skb, ICRC_BYTES);
	}
	ether_addr_copy(h->eth.h_dest, nic->peer->dev_addr);
	ether_addr_copy(h->eth.h_source, nic->dev->dev_addr);
	h->eth.h_proto = htons(ETH_P_IP);
	h->ip = (struct iphdr){
		.version = 4, .ihl = 5, .tos = tos, .tot_len = htons(skb->len - ETH_HLEN),
		.id = htons(nic->ident++), .frag_off = htons(IP_DF), .ttl = 64,
		.protocol = IPPROTO_UDP,
		.saddr = back ? flow->posted.dst : flow->posted.src,
		.daddr = back ? flow->posted.src : flow->posted.dst,
	};
	ip_send_check(&h->ip);
	h->udp = (struct udphdr){
		.source = htons(flow->posted.udp_source),
		.dest = htons(ROCE_PORT),
		.len = htons(skb->len - ETH_HLEN - sizeof(struct iphdr)),
	};
	skb->dev = nic->dev;
	skb->protocol = htons(ETH_P_IP);
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	qdisc_skb_cb(skb)->pkt_len = skb->len;
	return skb;
}

static u32 number_of(const struct flow *flow)
{
	return flow - all.flow;
}

static struct bth bth(const struct flow *flow, enum opcode opcode, u32 psn, bool ask)
{
	return (struct bth){
		.opcode = opcode,
		.partition = htons(0xffff),
		.qpn = htonl((number_of(flow) + FIRST_QPN) & PSN_MASK),
		.psn = htonl((psn & PSN_MASK) | (u32)ask << 31),
	};
}

static struct sk_buff *data_packet(struct nic *nic, struct flow *flow, u64 at_ns)
{
	u32 psn = flow->next, bytes = all.payload_bytes;
	bool last = psn == flow->packets - 1, ask = last || (psn + 1) % all.ack_every == 0;
	struct sk_buff *skb;

	if (last)
		bytes = flow->posted.bytes - (u64)psn * all.payload_bytes;
	skb = packet(nic, flow, false, DATA_HEADER_BYTES, bytes, flow->posted.tos);
	if (!skb)
		return NULL;
	((struct header *)skb->data)->bth =
		bth(flow, flow->packets == 1 ? SEND_ONLY : last ? SEND_LAST : psn ? SEND_MIDDLE :
		    SEND_FIRST, psn, ask);
	if (ask && !flow->timed_ns) {
		flow->timed_ns = at_ns;
		flow->timed_packet = psn;
	}
	return skb;
}

/* Queue a packet back to the sender of `flow`. */
static void answer(struct nic *nic, struct flow *flow, enum opcode opcode, u32 psn, u8 syndrome,
		   u64 now_ns)
{
	u32 bytes = opcode == CNP ? CNP_HEADER_BYTES : ACK_HEADER_BYTES;
	/* the six bits of its class as the flow's, but a CNP and an acknowledgement are not marked */
	struct sk_buff *skb = packet(nic, flow, true, bytes, 0, flow->posted.tos & ~INET_ECN_MASK);
	struct header *h;

	if (!skb)
		return;
	h = (struct header *)skb->data;
	h->bth = bth(flow, opcode, psn, false);
	if (opcode == CNP)
		memset(h->reserved, 0, sizeof(h->reserved));
	else
		h->aeth = htonl((u32)syndrome << 24);
	cl_on_wire(skb)->at_ns = now_ns;
	cl_append(&nic->control, skb);
	qdisc_qlen_inc(nic->sch);
}

static bool later(struct rb_node *a, const struct rb_node *b)
{
	return rb_entry(a, struct flow, waiting)->next_ps < rb_entry(b, struct flow, waiting)->next_ps;
}

static bool may_send(const struct flow *flow)
{
	return flow->next < flow->packets &&
	       (!all.window_bytes ||
		(u64)(flow->next - flow->acked) * all.payload_bytes < all.window_bytes);
}

/* Let a flow that has something to send wait for its time. */
static void wait(struct nic *nic, struct flow *flow, u64 not_before_ps)
{
	if (flow->sending || !may_send(flow))
		return;
	flow->sending = true;
	flow->next_ps = max(flow->next_ps, not_before_ps);
	rb_add_cached(&flow->waiting, &nic->waiting, later);
}

static void progress(struct nic *nic, struct flow *flow, u64 now_ns)
{
	flow->progress_ns = now_ns;
	list_move_tail(&flow->unfinished, &nic->unfinished);
}

static u64 next_start_ps(const struct nic *nic)
{
	return nic->begun < nic->posts ?
	       all.flow[nic->posted[nic->begun]].posted.start_ns * CL_PS_PER_NS : U64_MAX;
}

/* When the next packet can be sent if nothing else happens, U64_MAX for never. */
static u64 next_sending_ps(const struct nic *nic)
{
	struct rb_node *first = rb_first_cached(&nic->waiting);
	u64 at_ps = next_start_ps(nic);

	if (first)
		at_ps = min(at_ps, rb_entry(first, struct flow, waiting)->next_ps);
	if (nic->control.first)
		at_ps = min(at_ps, cl_on_wire(nic->control.first)->at_ns * CL_PS_PER_NS);
	if (nic->stack.first)
		at_ps = min(at_ps, cl_on_wire(nic->stack.first)->at_ns * CL_PS_PER_NS);
	if (!list_empty(&nic->turns))
		at_ps = 0;
	return at_ps == U64_MAX ? at_ps : max(at_ps, nic->line.free_ps);
}

/* Move the flows whose time has come by `at_ps` into the turn. */
static void begin_turns(struct nic *nic, u64 at_ps)
{
	struct rb_node *first;

	while (next_start_ps(nic) <= at_ps) {
		struct flow *flow = &all.flow[nic->posted[nic->begun++]];

		tell(flow, CL_START, flow->posted.start_ns, 0);
		flow->progress_ns = flow->posted.start_ns;
		list_add_tail(&flow->unfinished, &nic->unfinished);
		if (!nic->patience.place)
			cl_schedule(&nic->patience, flow->posted.start_ns + all.timeout_ns);
		wait(nic, flow, flow->posted.start_ns * CL_PS_PER_NS);
	}
	while ((first = rb_first_cached(&nic->waiting))) {
		struct flow *flow = rb_entry(first, struct flow, waiting);

		if (flow->next_ps > at_ps)
			break;
		rb_erase_cached(first, &nic->waiting);
		list_add_tail(&flow->turn, &nic->turns);
	}
}

static struct sk_buff *next_of_flow(struct nic *nic, u64 at_ps)
{
	struct flow *flow = list_first_entry(&nic->turns, struct flow, turn);
	u64 at_ns = DIV_ROUND_UP_ULL(at_ps, CL_PS_PER_NS);
	struct sk_buff *skb;
	u64 sending_ps;

	list_del(&flow->turn);
	flow->sending = false;
	if (!may_send(flow))
		return NULL; /* it was acknowledged meanwhile */
	skb = data_packet(nic, flow, at_ns);
	if (!skb)
		return NULL;
	if (!flow->result.sent_ns)
		flow->result.sent_ns = at_ns;
	flow->result.packets++;
	flow->next++;
	tell(flow, CL_TX, at_ns, skb->len);
	sending_ps = cl_sending_ps(&nic->line, skb->len);
	if (flow->state.rate_bps < flow->state.line_bps)
		sending_ps = mul_u64_u64_div_u64(sending_ps, flow->state.line_bps,
						 flow->state.rate_bps);
	flow->next_ps = at_ps + sending_ps;
	wait(nic, flow, 0);
	qdisc_qlen_inc(nic->sch);
	return skb;
}

/* Put on the wire what has begun to be sent by `now_ns`. */
static void settle(struct nic *nic, u64 now_ns)
{
	u64 now_ps = now_ns * CL_PS_PER_NS, at_ps;

	while ((at_ps = next_sending_ps(nic)) <= now_ps) {
		struct sk_buff *skb;

		begin_turns(nic, at_ps);
		if (nic->control.first &&
		    cl_on_wire(nic->control.first)->at_ns * CL_PS_PER_NS <= at_ps) {
			skb = cl_take(&nic->control);
		} else if (nic->stack.first && (list_empty(&nic->turns) || !nic->stack_was_last)) {
			skb = cl_take(&nic->stack);
			nic->sch->qstats.backlog -= qdisc_pkt_len(skb);
			nic->stack_was_last = true;
			skb_orphan(skb);
		} else if (!list_empty(&nic->turns)) {
			nic->stack_was_last = false;
			skb = next_of_flow(nic, at_ps);
		} else {
			continue; /* a flow began that has nothing to send */
		}
		if (!skb)
			continue;
		cl_on_wire(skb)->at_ns =
			DIV_ROUND_UP_ULL(at_ps, CL_PS_PER_NS) + nic->line.delay_ns;
		nic->line.free_ps = at_ps + cl_sending_ps(&nic->line, qdisc_pkt_len(skb));
		qdisc_bstats_update(nic->sch, skb);
		cl_append(&nic->wire, skb);
	}
}

static void expect(struct nic *nic)
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
	u64 now_ns = ktime_get_ns();

	settle(nic, now_ns);
	while (nic->wire.first && cl_on_wire(nic->wire.first)->at_ns <= now_ns) {
		qdisc_qlen_dec(nic->sch);
		cl_deliver(cl_take(&nic->wire), nic->dev, nic->peer);
	}
	expect(nic);
}

/* A flow without progress for the timeout goes back to what is not acknowledged. */
static void be_patient(struct cl_event *event)
{
	struct nic *nic = container_of(event, struct nic, patience);
	u64 now_ns = ktime_get_ns();

	settle(nic, now_ns);
	while (!list_empty(&nic->unfinished)) {
		struct flow *flow = list_first_entry(&nic->unfinished, struct flow, unfinished);

		if (flow->progress_ns + all.timeout_ns > now_ns) {
			cl_schedule(&nic->patience, flow->progress_ns + all.timeout_ns);
			break;
		}
		if (flow->next > flow->acked && !flow->sending) {
			flow->result.timeouts++;
			flow->result.resent += flow->next - flow->acked;
			flow->next = flow->acked;
			flow->timed_ns = 0;
			tell(flow, CL_TIMEOUT, now_ns, 0);
			wait(nic, flow, now_ns * CL_PS_PER_NS);
		}
		progress(nic, flow, now_ns);
	}
	expect(nic);
}

/* The whole number of a packet of which the header has 24 bits, near `about`. */
static u32 whole_psn(u32 about, u32 psn)
{
	s32 ahead = (s32)((psn - about) << 8) >> 8;

	return about + ahead;
}

static void acknowledged(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	u32 psn = whole_psn(flow->acked, ntohl(h->bth.psn) & PSN_MASK);
	bool again = ntohl(h->aeth) >> 24 == AETH_NAK_SEQUENCE;
	u32 up_to = again ? psn : psn + 1, newly = up_to - flow->acked;

	if (flow->result.done_ns || up_to > flow->packets)
		return;
	if (up_to > flow->acked) {
		flow->acked = up_to;
		progress(nic, flow, now_ns);
	} else {
		newly = 0;
	}
	flow->state.rtt_ns = 0;
	if (again) {
		flow->result.naks++;
		if (flow->next > psn) {
			flow->result.resent += flow->next - psn;
			flow->next = max(psn, flow->acked);
		}
		flow->timed_ns = 0;
		tell(flow, CL_NACK, now_ns, newly * all.payload_bytes);
	} else {
		if (flow->timed_ns && psn >= flow->timed_packet) {
			if (psn == flow->timed_packet)
				flow->state.rtt_ns = now_ns - flow->timed_ns;
			flow->timed_ns = 0;
		}
		if (flow->next < flow->acked)
			flow->next = flow->acked;
		tell(flow, CL_ACK, now_ns, newly * all.payload_bytes);
	}
	if (flow->acked == flow->packets) {
		flow->result.done_ns = now_ns;
		list_del(&flow->unfinished);
	} else {
		wait(nic, flow, now_ns * CL_PS_PER_NS);
	}
}

static void received(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	u32 psn = whole_psn(flow->expected, ntohl(h->bth.psn) & PSN_MASK);
	bool ask = ntohl(h->bth.psn) >> 31;

	if (INET_ECN_is_ce(h->ip.tos)) {
		flow->result.marked++;
		if (!flow->cnp_ns || now_ns - flow->cnp_ns >= all.cnp_interval_ns) {
			flow->cnp_ns = now_ns;
			answer(nic, flow, CNP, 0, 0, now_ns);
		}
	}
	if (psn == flow->expected) {
		flow->expected++;
		flow->asked_again = false;
		if (flow->expected == flow->packets) {
			/* its last bit comes as long after its first as the line takes for it */
			flow->result.received_ns = now_ns;
			all.received++;
		}
		if (ask)
			answer(nic, flow, ACKNOWLEDGE, psn, AETH_ACK, now_ns);
	} else if ((s32)(psn - flow->expected) > 0) {
		if (!flow->asked_again)
			answer(nic, flow, ACKNOWLEDGE, flow->expected, AETH_NAK_SEQUENCE, now_ns);
		flow->asked_again = true;
	} else if (ask) {
		answer(nic, flow, ACKNOWLEDGE, flow->expected - 1, AETH_ACK, now_ns);
	}
}

static rx_handler_result_t receive(struct sk_buff **pskb)
{
	struct sk_buff *skb = *pskb;
	struct nic *nic = rcu_dereference(skb->dev->rx_handler_data);
	const struct header *h = (const struct header *)skb_mac_header(skb);
	struct flow *flow;
	u64 now_ns;
	u32 number;

	if (skb->protocol != htons(ETH_P_IP) ||
	    skb_headlen(skb) < DATA_HEADER_BYTES - ETH_HLEN || h->ip.ihl != 5 ||
	    h->ip.protocol != IPPROTO_UDP || h->udp.dest != htons(ROCE_PORT))
		return RX_HANDLER_PASS;
	number = (ntohl(h->bth.qpn) & PSN_MASK) - FIRST_QPN;
	if (likely(number < all.count)) {
		flow = &all.flow[number];
		now_ns = ktime_get_ns();
		settle(nic, now_ns);
		if (h->bth.opcode == CNP) {
			flow->result.cnps++;
			tell(flow, CL_CNP, now_ns, 0);
		} else if (h->bth.opcode == ACKNOWLEDGE) {
			acknowledged(nic, flow, h, now_ns);
		} else {
			received(nic, flow, h, now_ns);
		}
		settle(nic, now_ns);
		expect(nic);
	}
	consume_skb(skb);
	return RX_HANDLER_CONSUMED;
}

static int nic_enqueue(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free)
{
	struct nic *nic = qdisc_priv(sch);
	u64 now_ns = ktime_get_ns();

	settle(nic, now_ns);
	cl_on_wire(skb)->at_ns = now_ns;
	cl_append(&nic->stack, skb);
	sch->qstats.backlog += qdisc_pkt_len(skb);
	qdisc_qlen_inc(sch);
	settle(nic, now_ns);
	expect(nic);
	return NET_XMIT_SUCCESS;
}

/* Packets leave by `arrive`, not by the device's transmission. */
static struct sk_buff *nic_dequeue(struct Qdisc *sch)
{
	return NULL;
}

static const struct nla_policy policy[CL_NIC_MAX + 1] = {
	[CL_NIC_OPTIONS] = NLA_POLICY_EXACT_LEN(sizeof(struct cl_nic_options)),
};

static int nic_init(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct nic *nic = qdisc_priv(sch);
	struct nlattr *found[CL_NIC_MAX + 1];
	struct cl_nic_options options;
	int error;

	if (!opt)
		return -EINVAL;
	error = nla_parse_nested(found, CL_NIC_MAX, opt, policy, extack);
	if (error)
		return error;
	if (NL_REQ_ATTR_CHECK(extack, opt, found, CL_NIC_OPTIONS) || all.nics == MOST_NICS)
		return -EINVAL;
	memcpy(&options, nla_data(found[CL_NIC_OPTIONS]), sizeof(options));
	nic->dev = qdisc_dev(sch);
	if (nic->dev->netdev_ops->ndo_get_peer_dev)
		nic->peer = nic->dev->netdev_ops->ndo_get_peer_dev(nic->dev);
	if (!nic->peer || !options.rate_bps) {
		NL_SET_ERR_MSG(extack, "a NIC needs a rate, and must be one end of a veth pair");
		return -EINVAL;
	}
	nic->sch = sch;
	nic->event.happen = arrive;
	nic->patience.happen = be_patient;
	nic->address = options.address;
	nic->waiting = RB_ROOT_CACHED;
	INIT_LIST_HEAD(&nic->turns);
	INIT_LIST_HEAD(&nic->unfinished);
	cl_line_init(&nic->line, options.rate_bps, options.delay_ns, options.framing_bytes);
	error = netdev_rx_handler_register(nic->dev, receive, nic);
	if (!error)
		all.nic[all.nics++] = nic;
	return error;
}

static void nic_reset(struct Qdisc *sch)
{
	struct nic *nic = qdisc_priv(sch);

	if (!nic->sch)
		return;
	cl_cancel(&nic->event);
	cl_empty(&nic->wire);
	cl_empty(&nic->control);
	cl_empty(&nic->stack);
}

static void nic_destroy(struct Qdisc *sch)
{
	struct nic *nic = qdisc_priv(sch);

	nic_reset(sch);
	if (!nic->sch)
		return;
	cl_cancel(&nic->patience);
	for (u32 i = 0; i < all.nics; i++)
		if (all.nic[i] == nic) {
			all.nic[i] = all.nic[--all.nics];
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

static struct nic *nic_of(__be32 address)
{
	for (u32 i = 0; i < all.nics; i++)
		if (all.nic[i]->address == address)
			return all.nic[i];
	return NULL;
}

static int add_flow(struct flow *flow, const struct posted *posted)
{
	flow->posted = *posted;
	flow->nic = nic_of(posted->src);
	flow->to = nic_of(posted->dst);
	if (!flow->nic || !flow->to)
		return -ENODEV;
	flow->packets = max_t(u64, 1, DIV_ROUND_UP_ULL(posted->bytes, all.payload_bytes));
	flow->state.line_bps = flow->state.rate_bps = flow->nic->line.rate_bps;
	flow->nic->posts++;
	return 0;
}

/* Give every NIC the numbers of its flows, which are ordered by their starts. */
static int hand_out(void)
{
	for (u32 i = 0; i < all.nics; i++) {
		all.nic[i]->posted = vzalloc(array_size(max(1U, all.nic[i]->posts), sizeof(u32)));
		if (!all.nic[i]->posted)
			return -ENOMEM;
		all.nic[i]->posts = 0;
	}
	for (u32 i = 0; i < all.count; i++)
		all.flow[i].nic->posted[all.flow[i].nic->posts++] = i;
	return 0;
}

/* /proc/closloop/flows. Written once: struct settings, then every flow, by start. Read: results. */
static ssize_t flows_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	u32 count = (size - sizeof(struct settings)) / sizeof(struct posted);
	struct settings settings;
	struct posted posted;
	ssize_t error;

	if (all.flow)
		return -EBUSY;
	if (size < sizeof(settings) || copy_from_user(&settings, from, sizeof(settings)))
		return -EFAULT;
	if (settings.policy >= ARRAY_SIZE(policies) || !settings.payload_bytes ||
	    settings.payload_bytes > PAGE_SIZE * 2 - ICRC_BYTES || !settings.ack_every)
		return -EINVAL;
	all.policy = policies[settings.policy];
	memcpy(all.parameters, settings.parameters, sizeof(all.parameters));
	all.payload_bytes = settings.payload_bytes;
	all.ack_every = settings.ack_every;
	all.window_bytes = settings.window_bytes;
	all.cnp_interval_ns = settings.cnp_interval_ns;
	all.timeout_ns = settings.timeout_ns;
	all.flow = vzalloc(array_size(max(1U, count), sizeof(struct flow)));
	if (!all.flow)
		return -ENOMEM;
	from += sizeof(settings);
	for (u32 i = 0; i < count; i++) {
		if (copy_from_user(&posted, from + i * sizeof(posted), sizeof(posted)))
			return -EFAULT;
		error = add_flow(&all.flow[i], &posted);
		if (error)
			return error;
	}
	all.count = count;
	error = hand_out();
	if (error)
		return error;
	local_bh_disable();
	for (u32 i = 0; i < all.nics; i++)
		expect(all.nic[i]);
	local_bh_enable();
	return size;
}

static ssize_t flows_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	u32 first = *at / sizeof(struct result), count = 0;

	for (; first + count < all.count && (count + 1) * sizeof(struct result) <= size; count++) {
		struct flow *flow = &all.flow[first + count];

		flow->result.rate_bps = flow->state.rate_bps;
		if (copy_to_user(to + count * sizeof(struct result), &flow->result,
				 sizeof(struct result)))
			return -EFAULT;
	}
	*at += count * sizeof(struct result);
	return count * sizeof(struct result);
}

static const struct proc_ops flows_ops = {
	.proc_read = flows_read,
	.proc_write = flows_write,
	.proc_lseek = default_llseek,
};

/* /proc/closloop/received: how many flows have been received, as a number of 32 bits. */
static ssize_t received_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	if (size < sizeof(all.received) || copy_to_user(to, &all.received, sizeof(all.received)))
		return -EFAULT;
	return sizeof(all.received);
}

static const struct proc_ops received_ops = {
	.proc_read = received_read,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	all.zeros = alloc_pages(GFP_KERNEL | __GFP_ZERO | __GFP_COMP, 1);
	if (!all.zeros || !proc_create("closloop/flows", 0600, NULL, &flows_ops) ||
	    !proc_create("closloop/received", 0600, NULL, &received_ops))
		return -ENOMEM;
	return register_qdisc(&nic_ops);
}
late_initcall(begin);
