/* SPDX-License-Identifier: GPL-2.0-only */
/* A line with its cable, lists of packets, and their delivery: what ports and NICs have in common. */
#ifndef CLOSLOOP_WIRE_H
#define CLOSLOOP_WIRE_H

#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/math64.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/netlink.h>
#include <net/sch_generic.h>
#include "engine.h"

/* The attribute of a port's and a NIC's options. */
#define CL_OPTIONS 1

#define CL_PS_PER_NS 1000ULL
#define CL_PS_PER_S 1000000000000ULL

/* A list of packets, first in first out. */
struct cl_fifo {
	struct sk_buff *first, *last;
};

static inline void cl_append(struct cl_fifo *list, struct sk_buff *skb)
{
	skb->next = NULL;
	if (list->first)
		list->last->next = skb;
	else
		list->first = skb;
	list->last = skb;
}

static inline struct sk_buff *cl_take(struct cl_fifo *list)
{
	struct sk_buff *skb = list->first;

	list->first = skb->next;
	skb_mark_not_on_list(skb);
	return skb;
}

static inline void cl_empty(struct cl_fifo *list)
{
	while (list->first)
		kfree_skb(cl_take(list));
}

/* Of a packet in a list: when it came, and, on the wire, when it arrives at the other end. In a
 * queue of a switch: by which port it came, see buffer.c.
 */
struct cl_on_wire {
	u64 at_ns;
	u32 from;
};

static inline struct cl_on_wire *cl_on_wire(struct sk_buff *skb)
{
	qdisc_cb_private_validate(skb, sizeof(struct cl_on_wire));
	return (struct cl_on_wire *)qdisc_skb_cb(skb)->data;
}

/* The wire's time is kept in picoseconds: in nanoseconds, a flow at 25 Gbit/s would be 0.26 % too
 * fast.
 */
struct cl_line {
	u64 free_ps; /* when the wire is free for the next packet */
	u64 rate_bps, delay_ns;
	u64 ps_per_byte; /* 0 if that is no whole number */
	u32 framing_bytes;
};

static inline void cl_line_init(struct cl_line *line, u64 rate_bps, u64 delay_ns, u32 framing_bytes)
{
	line->rate_bps = rate_bps;
	line->delay_ns = delay_ns;
	line->framing_bytes = framing_bytes;
	if (8 * CL_PS_PER_S % rate_bps == 0)
		line->ps_per_byte = div64_u64(8 * CL_PS_PER_S, rate_bps);
}

static inline u64 cl_sending_ps(const struct cl_line *line, u32 bytes)
{
	u64 total = bytes + line->framing_bytes;

	if (likely(line->ps_per_byte))
		return total * line->ps_per_byte;
	return div64_u64(total * 8 * CL_PS_PER_S, line->rate_bps);
}

/* Whether nobody but the handler of packets at `dev` would see this one: no capture, no classifier
 * (a cut cable is one), nothing of the sender's left in it.
 */
static inline bool cl_direct(const struct sk_buff *skb, const struct net_device *dev)
{
	return rcu_access_pointer(dev->rx_handler) && dev->flags & IFF_UP &&
	       !rcu_access_pointer(dev->tcx_ingress) && list_empty(&dev->ptype_all) &&
	       list_empty(&dev_net(dev)->ptype_all) && !skb->_skb_refdst && !skb->sk &&
	       !skb->tstamp;
}

/* Hand a packet to the other end of a pair of veth, here and now. */
static inline void cl_deliver(struct sk_buff *skb, struct net_device *dev, struct net_device *peer)
{
	u32 bytes = skb->len;

	if (likely(cl_direct(skb, peer))) {
		/* what __dev_forward_skb and netif_receive_skb would do is done: the headers' places
		 * are known, and a fabric has one MTU
		 */
		dev_sw_netstats_tx_add(dev, 1, bytes);
		skb->dev = peer;
		__skb_pull(skb, ETH_HLEN);
		if (likely(rcu_dereference_bh(peer->rx_handler)(&skb) == RX_HANDLER_CONSUMED))
			return;
		__skb_push(skb, ETH_HLEN);
		if (likely(__dev_forward_skb(peer, skb) == 0))
			netif_receive_skb(skb);
	} else if (likely(__dev_forward_skb(peer, skb) == 0)) {
		dev_sw_netstats_tx_add(dev, 1, bytes);
		netif_receive_skb(skb);
	}
}

/* What a switch tells the next one of a packet's flow, so that it need not be looked for. */
struct cl_known {
	void *flow;   /* as the next switch knows it, NULL: not known */
	void **learn; /* where it is to be written then, NULL: nowhere */
};

/* Of the packet that is being handed over; empty at any other time. */
extern struct cl_known cl_known;

static inline struct cl_known *cl_known_of(struct sk_buff *skb)
{
	BUILD_BUG_ON(sizeof(struct qdisc_skb_cb) % sizeof(void *) ||
		     sizeof(struct qdisc_skb_cb) + sizeof(struct cl_known) > sizeof(skb->cb));
	return (struct cl_known *)(skb->cb + sizeof(struct qdisc_skb_cb));
}

/* What a switch does with what comes over a wire. forward.c, which stands above ports and NICs, writes
 * it before there are any.
 */
struct cl_forwarding {
	rx_handler_func_t *receive;
	/* Let what arrives at a device be received so, until it ends. */
	int (*begin)(struct net_device *dev);
	void (*end)(struct net_device *dev);
	/* Ask for where a packet of a flow that the switch knows will leave, once the flow is there. */
	void (*prefetch_next_hop)(const void *flow);
};

extern struct cl_forwarding cl_forwarding;

/* Whether what arrives at a device is forwarded: whether it is a switch's port. */
static inline bool cl_forwards(const struct net_device *dev)
{
	return rcu_access_pointer(dev->rx_handler) == cl_forwarding.receive;
}

/* Ask for what handing a wire's first packet over touches: see struct cl_event for `away`. First the
 * packet and both ends, then what those lead to, then where its flow leads.
 */
static inline void cl_warm_wire(const struct cl_fifo *wire, const struct net_device *dev,
				const struct net_device *peer, u32 away)
{
	struct sk_buff *skb = wire->first;

	if (away == 3) {
		cl_warm_lines(skb, 4);
		prefetch(&dev->tstats);
		prefetch(&peer->flags);
		prefetch(&peer->rx_handler);
		prefetch(&peer->tcx_ingress);
		prefetch(&peer->ptype_all);
	} else if (away == 2) {
		prefetch(dev->tstats);
		if (!skb)
			return;
		prefetch(skb->data);
		cl_warm_lines(cl_known_of(skb)->flow, 2);
	} else if (skb) {
		cl_forwarding.prefetch_next_hop(cl_known_of(skb)->flow);
	}
}

/* Read what user space says when it makes a port or a NIC, attribute CL_OPTIONS of `bytes`, and
 * find the other end of its cable.
 */
int cl_read_options(struct Qdisc *sch, struct nlattr *opt, void *options, u32 bytes,
		    struct net_device **peer, struct netlink_ext_ack *extack);

#endif
