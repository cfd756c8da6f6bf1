// SPDX-License-Identifier: GPL-2.0-only
/* A switch's forwarding: what arrives at a port goes to the next port, past the IP stack.
 *
 * The first packet of a flow is routed by the kernel, by its routes and its multipath hash
 * (net/ipv4/route.c), so a flow takes the path that it takes without this file. The answer is kept
 * until a route of the switch changes. A switch that balances its load asks paths.c for each packet.
 */
#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/jhash.h>
#include <linux/slab.h>
#include <net/arp.h>
#include <net/inet_dscp.h>
#include <net/ip.h>
#include <net/netns/generic.h>
#include <net/route.h>
#include "buffer.h"
#include "flow_table.h"
#include "forward.h"
#include "pairs.h"
#include "paths.h"
#include "port.h"
#include "port_qdisc.h"
#include "wire.h"

#define FIRST_BITS 6 /* of a switch's table of flows, which grows with them */

struct flow {
	struct flow *next; /* in the same place of the table */
	const struct switch_flows *of;
	void *onward; /* the same flow as the next switch knows it, NULL: not known */
	u32 hash;
	__be32 saddr, daddr;
	u32 ports; /* both, as they are in the packet */
	int generation; /* of the routes that the answer is from */
	u8 protocol;
	bool paired; /* `pair` is known */
	struct cl_way way;
	u64 *pair; /* where its bytes are counted, NULL if nowhere: see pairs.c */
	struct cl_path_flow paths; /* of a switch that balances its load */
};

/* Once a switch has gone, what others know of its flows leads nowhere. */
static bool forgotten;

/* Of one switch, made with its first port. */
struct switch_flows {
	struct flow **flow; /* by the first bits of their hashes */
	u32 bits, count;
	struct cl_flow_table *table; /* NULL unless user space asks for it */
	struct cl_paths *paths;      /* likewise */
};

static unsigned int flows_id __read_mostly;
static struct kmem_cache *flow_cache;

/* Let the kernel route a packet of `flow`. False: it is for this device, or no usable route. */
static bool route(struct flow *flow, struct sk_buff *skb, struct net *net, struct cl_paths *paths)
{
	const struct iphdr *ip = ip_hdr(skb);
	struct neighbour *neighbour;
	struct rtable *rt;
	bool is_v6 = false, found = false;

	flow->generation = rt_genid_ipv4(net);
	flow->way.out = NULL;
	if (ip_route_input_noref(skb, ip->daddr, ip->saddr, ip4h_dscp(ip), skb->dev))
		return true; /* dropped: there is no route now */
	rt = skb_rtable(skb);
	if (rt->rt_type == RTN_UNICAST && !rt->dst.error) {
		neighbour = ip_neigh_for_gw(rt, skb, &is_v6);
		if (!IS_ERR(neighbour) && !is_v6 && (READ_ONCE(neighbour->nud_state) & NUD_VALID)) {
			struct cl_way *way = &flow->way;

			memcpy(way->addresses, neighbour->ha, ETH_ALEN);
			memcpy(way->addresses + ETH_ALEN, rt->dst.dev->dev_addr, ETH_ALEN);
			way->out = rt->dst.dev;
			way->queue = netdev_get_tx_queue(way->out, 0);
			way->ifindex = way->out->ifindex;
			way->watched = rcu_access_pointer(way->out->tcx_egress);
			if (paths)
				cl_paths_route(paths, &flow->paths, way, skb, net, flow->generation);
			found = true;
		}
	} else if (rt->dst.error) {
		found = true;
	}
	skb_dst_drop(skb);
	return found;
}

/* Twice as many places: a small table stays in the caches. Without memory it stays as it is. */
static void grow(struct switch_flows *flows)
{
	u32 bits = flows->bits + 1;
	struct flow **grown = kcalloc(1 << bits, sizeof(*grown), GFP_ATOMIC | __GFP_NOWARN);

	if (!grown)
		return;
	for (u32 i = 0; i < 1 << flows->bits; i++)
		while (flows->flow[i]) {
			struct flow *flow = flows->flow[i];

			flows->flow[i] = flow->next;
			flow->next = grown[flow->hash >> (32 - bits)];
			grown[flow->hash >> (32 - bits)] = flow;
		}
	kfree(flows->flow);
	flows->flow = grown;
	flows->bits = bits;
}

static bool is_of(const struct flow *flow, const struct iphdr *ip, u32 ports)
{
	return flow->ports == ports && flow->saddr == ip->saddr && flow->daddr == ip->daddr &&
	       flow->protocol == ip->protocol;
}

static struct flow *find(struct switch_flows *flows, struct sk_buff *skb, struct net *net,
			 struct flow *known)
{
	const struct iphdr *ip = ip_hdr(skb);
	u32 ports = get_unaligned((const u32 *)(skb->data + ip->ihl * 4));
	struct flow *flow;
	u32 hash;

	if (likely(known && known->of == flows && is_of(known, ip, ports) &&
		   known->generation == rt_genid_ipv4(net)))
		return known;
	hash = jhash_3words((__force u32)ip->saddr, (__force u32)ip->daddr, ports, ip->protocol);
	for (flow = flows->flow[hash >> (32 - flows->bits)]; flow; flow = flow->next)
		if (flow->hash == hash && is_of(flow, ip, ports))
			break;
	if (likely(flow && flow->generation == rt_genid_ipv4(net)))
		return flow;
	if (!flow) {
		struct flow **head;

		flow = kmem_cache_zalloc(flow_cache, GFP_ATOMIC);
		if (!flow)
			return NULL;
		if (flows->count++ >> flows->bits)
			grow(flows);
		head = &flows->flow[hash >> (32 - flows->bits)];
		flow->hash = hash;
		flow->of = flows;
		flow->saddr = ip->saddr;
		flow->daddr = ip->daddr;
		flow->ports = ports;
		flow->protocol = ip->protocol;
		flow->next = *head;
		*head = flow;
	}
	if (route(flow, skb, net, flows->paths))
		return flow;
	flow->generation--; /* ask again next time */
	return NULL;
}

static void send(struct sk_buff *skb, struct flow *flow, struct cl_way *way)
{
	struct Qdisc *sch = rcu_dereference_bh(way->queue->qdisc);
	struct sk_buff *dropped = NULL;

	way->port = sch;
	/* the port is down, or a program is to see the packet first */
	if (unlikely(sch->ops != &cl_port_ops || way->watched)) {
		dev_queue_xmit(skb);
		return;
	}
	qdisc_skb_cb(skb)->pkt_len = skb->len;
	qdisc_skb_cb(skb)->pkt_segs = 1; /* else the port counts no packets */
	cl_known = (struct cl_known){ flow->onward, &flow->onward };
	sch->ops->enqueue(skb, sch, &dropped);
	cl_known = (struct cl_known){};
	if (unlikely(dropped))
		kfree_skb_list(dropped);
}

static void count_pair(struct flow *flow, const struct sk_buff *skb, const struct net *net)
{
	if (!flow->paired) {
		flow->pair = cl_pair_of(net, flow->saddr, flow->daddr);
		flow->paired = true;
	}
	if (flow->pair)
		*flow->pair += skb->len;
}

static rx_handler_result_t forward(struct sk_buff **pskb)
{
	struct sk_buff *skb = *pskb;
	struct switch_flows *flows = rcu_dereference(skb->dev->rx_handler_data);
	struct net *net = dev_net(skb->dev);
	struct cl_known known = likely(!forgotten) ? cl_known : (struct cl_known){};
	struct cl_way *way;
	struct flow *flow;
	struct iphdr *ip;

	cl_known = (struct cl_known){};
	if (unlikely(skb->protocol == htons(ETH_P_PAUSE))) {
		struct cl_share *share = cl_buffer_share(skb->dev);

		/* without flow control, a control frame of the MAC says nothing to a port */
		if (share)
			cl_pause_receive(&share->pause, skb);
		consume_skb(skb);
		return RX_HANDLER_CONSUMED;
	}
	if (skb->protocol != htons(ETH_P_IP) || !pskb_may_pull(skb, sizeof(struct iphdr) + 4))
		return RX_HANDLER_PASS;
	ip = ip_hdr(skb);
	if (ip->ttl <= 1 || ip_is_fragment(ip) || !pskb_may_pull(skb, ip->ihl * 4 + 4))
		return RX_HANDLER_PASS;
	flow = find(flows, skb, net, known.flow);
	if (unlikely(!flow))
		return RX_HANDLER_PASS;
	if (known.learn && flow != known.flow)
		*known.learn = flow;
	if (unlikely(!flow->way.out)) {
		kfree_skb(skb);
		return RX_HANDLER_CONSUMED;
	}
	/* as ip_rcv does: else a switch's queue counts against what TCP may have below it */
	skb_orphan(skb);
	if (skb_cow_head(skb, ETH_HLEN)) {
		kfree_skb(skb);
		return RX_HANDLER_CONSUMED;
	}
	if (cl_pairs_counted)
		count_pair(flow, skb, net);
	way = flows->paths ? cl_paths_take(flows->paths, &flow->paths, skb) : &flow->way;
	if (flows->table)
		cl_flow_table_count(flows->table, skb, way->ifindex);
	ip_decrease_ttl(ip_hdr(skb));
	skb->skb_iif = skb->dev->ifindex; /* what came in here is counted for its port */
	skb->dev = way->out;
	memcpy(skb_push(skb, ETH_HLEN), way->addresses, sizeof(way->addresses));
	skb_reset_mac_header(skb);
	send(skb, flow, way);
	return RX_HANDLER_CONSUMED;
}

static void prefetch_next_hop(const void *known)
{
	const struct flow *flow = known;

	if (flow && !forgotten) {
		prefetch(flow->way.queue);
		cl_port_warm(flow->way.port);
	}
}

static int begin_forwarding(struct net_device *dev)
{
	struct switch_flows *flows = net_generic(dev_net(dev), flows_id);

	if (!flows->flow) {
		int error = cl_flow_table_add(&flows->table);

		if (error)
			return error;
		flows->bits = FIRST_BITS;
		flows->flow = kcalloc(1 << FIRST_BITS, sizeof(*flows->flow), GFP_KERNEL);
	}
	if (!flows->flow)
		return -ENOMEM;
	return netdev_rx_handler_register(dev, forward, flows);
}

/* What has been routed asks again. */
int cl_forward_balance(struct net *net, struct cl_paths *paths)
{
	struct switch_flows *flows = net_generic(net, flows_id);

	if (!flows->flow)
		return -ENODEV;
	local_bh_disable();
	flows->paths = paths;
	rt_cache_flush(net);
	local_bh_enable();
	return 0;
}

static void end_forwarding(struct net_device *dev)
{
	netdev_rx_handler_unregister(dev);
}

static void __net_exit forget(struct net *net)
{
	struct switch_flows *flows = net_generic(net, flows_id);

	forgotten |= !!flows->flow;
	for (u32 i = 0; flows->flow && i < 1 << flows->bits; i++)
		while (flows->flow[i]) {
			struct flow *flow = flows->flow[i];

			flows->flow[i] = flow->next;
			kmem_cache_free(flow_cache, flow);
		}
	kfree(flows->flow);
	cl_flow_table_remove(&flows->table);
}

static struct pernet_operations switches = {
	.exit = forget,
	.id = &flows_id,
	.size = sizeof(struct switch_flows),
};

static int __init begin(void)
{
	cl_forwarding = (struct cl_forwarding){
		.receive = forward,
		.begin = begin_forwarding,
		.end = end_forwarding,
		.prefetch_next_hop = prefetch_next_hop,
	};
	flow_cache = KMEM_CACHE(flow, SLAB_HWCACHE_ALIGN);
	return flow_cache ? register_pernet_subsys(&switches) : -ENOMEM;
}
subsys_initcall(begin);
