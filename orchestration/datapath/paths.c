// SPDX-License-Identifier: GPL-2.0-only
/* Load balancing: a switch chooses among the equal-cost ports of its routes, for each flowlet
 * (Vanini et al., "Let It Flow", NSDI 2017) or for each packet.
 *
 * docs/load-balancing.md has the rules. The routes themselves stay the kernel's: a flow's first
 * packet, and the first after a change of routes, asks them for the ports.
 */
#include <linux/ip.h>
#include <linux/slab.h>
#include <net/arp.h>
#include <net/inet_dscp.h>
#include <net/ip.h>
#include <net/ip_fib.h>
#include <net/nexthop.h>
#include <net/route.h>
#include "conga.h"
#include "paths.h"
#include "port.h"
#include "port_qdisc.h"

#define PLACES 4 /* that an entry of a flow may have */

/* SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
static u64 mix(u64 z)
{
	z += 0x9e3779b97f4a7c15ULL;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/* One of `count` numbers from 0 on; of one there is no choice, and no draw. */
static u32 choice(struct cl_paths *paths, u32 count)
{
	u64 draw;

	if (count == 1)
		return 0;
	draw = mix(paths->stream);
	paths->stream += 0x9e3779b97f4a7c15ULL;
	return (draw >> 32) * count >> 32;
}

static u64 queued_bytes(const struct cl_exit *exit)
{
	struct Qdisc *sch = rcu_dereference_bh(exit->way.queue->qdisc);

	if (sch->ops != &cl_port_ops)
		return 0;
	cl_port_settle(sch);
	return sch->qstats.backlog;
}

/* DRILL(2, 1): Ghorbani et al., SIGCOMM 2017, section 3. */
static struct cl_exit *by_drill(struct cl_paths *paths, struct cl_group *group,
			       struct cl_exit **exit, u32 count)
{
	struct cl_exit *seen[] = { exit[choice(paths, count)], exit[choice(paths, count)], group->best };
	struct cl_exit *best = seen[0];
	u64 least = queued_bytes(best);

	for (u32 i = 1; i < ARRAY_SIZE(seen); i++) {
		u64 queued;

		if (!seen[i] || seen[i]->down)
			continue;
		queued = queued_bytes(seen[i]);
		if (queued < least) {
			least = queued;
			best = seen[i];
		}
	}
	group->best = best;
	return best;
}

static struct cl_exit *by_conga(struct cl_paths *paths, struct cl_exit **exit, u32 count,
			       const struct cl_exit *former, u32 partner, u64 now_ns)
{
	u32 least = U32_MAX, equal = 0;
	struct cl_exit *best[CL_MOST_WAYS];

	for (u32 i = 0; i < count; i++) {
		u32 metric = cl_conga_metric(paths, exit[i], partner, now_ns);

		if (metric < least) {
			least = metric;
			equal = 0;
		}
		if (metric == least)
			best[equal++] = exit[i];
	}
	for (u32 i = 0; i < equal; i++)
		if (best[i] == former)
			return best[i];
	return best[choice(paths, equal)];
}

/* Route a flowlet; NULL if all of its ports are down. */
static struct cl_exit *pick(struct cl_paths *paths, struct cl_group *group,
			   const struct cl_exit *former, const struct iphdr *ip, u64 now_ns)
{
	struct cl_exit *exit[CL_MOST_WAYS];
	u32 count = 0;

	for (u32 i = 0; i < group->count; i++)
		if (!group->exit[i]->down)
			exit[count++] = group->exit[i];
	if (!count)
		return NULL;
	switch (cl_paths_all.route_by) {
	case CL_ROUND_ROBIN:
		return exit[paths->turn++ % count];
	case CL_DRILL:
		return by_drill(paths, group, exit, count);
	case CL_CONGA:
		return by_conga(paths, exit, count, former, cl_conga_partner(paths, ip->daddr),
				now_ns);
	default:
		return exit[choice(paths, count)];
	}
}

/* The entry of a flow, a new one if it has none; NULL if there is no room. */
static struct cl_entry *entry_of(struct cl_paths *paths, struct cl_path_flow *flow, u64 now_ns)
{
	u32 mask = cl_paths_all.entries - 1;

	if (flow->place && paths->entry[flow->place - 1].flow == flow)
		return &paths->entry[flow->place - 1];
	for (u32 i = 0; i < PLACES; i++) {
		u32 place = (flow->key ^ i) & mask;
		struct cl_entry *entry = &paths->entry[place];

		if (!entry->flow)
			paths->used[paths->used_count++] = place;
		else if (now_ns - entry->last_ns <= paths->timeout_ns)
			continue;
		*entry = (struct cl_entry){ .flow = flow };
		flow->place = place + 1;
		return entry;
	}
	return NULL;
}

static bool has(const struct cl_group *group, const struct cl_exit *exit)
{
	for (u32 i = 0; i < group->count; i++)
		if (group->exit[i] == exit)
			return true;
	return false;
}

static struct cl_exit *by_flowlet(struct cl_paths *paths, struct cl_path_flow *flow,
				 const struct iphdr *ip, u64 now_ns)
{
	struct cl_entry *entry = entry_of(paths, flow, now_ns);
	struct cl_exit *former, *exit = NULL;

	if (!entry) {
		paths->overflows++;
		return flow->ecmp;
	}
	former = entry->exit;
	if (former && now_ns - entry->last_ns <= paths->timeout_ns && !former->down &&
	    (entry->generation == flow->group->generation || has(flow->group, former))) {
		exit = former;
	} else {
		/* that is a draw of the trial's seed too, and the same as without flowlets */
		if (!former && cl_paths_all.route_by == CL_RANDOM && !flow->ecmp->down)
			exit = flow->ecmp;
		else
			exit = pick(paths, flow->group, former, ip, now_ns) ?: flow->ecmp;
		paths->flowlets++;
		paths->reroutes += former && former != exit;
	}
	entry->last_ns = now_ns;
	entry->exit = exit;
	entry->generation = flow->group->generation;
	return exit;
}

static struct cl_exit *by_packet(struct cl_paths *paths, struct cl_path_flow *flow,
				const struct iphdr *ip, u64 now_ns)
{
	struct cl_exit *exit = pick(paths, flow->group, flow->last, ip, now_ns) ?: flow->ecmp;

	paths->flowlets++;
	paths->reroutes += flow->last && flow->last != exit;
	flow->last = exit;
	return exit;
}

struct cl_way *cl_paths_take(struct cl_paths *paths, struct cl_path_flow *flow,
				   struct sk_buff *skb)
{
	const struct iphdr *ip = (const struct iphdr *)skb->data;
	struct cl_exit *exit = flow->ecmp;
	u64 now_ns = cl_now_ns();

	if (paths->to)
		cl_conga_arrive(paths, skb, now_ns);
	if (flow->group)
		exit = paths->entry ? by_flowlet(paths, flow, ip, now_ns) :
				     by_packet(paths, flow, ip, now_ns);
	if (paths->to)
		cl_conga_leave(paths, exit, skb, now_ns);
	return &exit->way;
}

/* The ports of a route, NULL if it has one. They are in the order of the route. */
static struct cl_group *group_of(struct cl_paths *paths, struct fib_info *route, int generation)
{
	u32 count = fib_info_num_path(route);
	struct cl_group *group;

	/* what is of earlier routes is not used any more */
	while (paths->groups && paths->groups->generation != generation) {
		group = paths->groups;
		paths->groups = group->next;
		kfree(group);
	}
	for (group = paths->groups; group; group = group->next)
		if (group->route == route)
			return group;
	if (count < 2 || count > CL_MOST_WAYS)
		return NULL;
	group = kzalloc(struct_size(group, exit, count), GFP_ATOMIC);
	if (!group)
		return NULL;
	group->count = count;
	group->route = route;
	group->generation = generation;
	for (u32 i = 0; i < count; i++) {
		const struct fib_nh_common *hop = fib_info_nhc(route, i);
		struct neighbour *neighbour = ip_neigh_gw4(hop->nhc_dev, hop->nhc_gw.ipv4);
		struct cl_exit *exit = cl_paths_exit(hop->nhc_dev->ifindex);

		if (!exit || IS_ERR(neighbour) || !(READ_ONCE(neighbour->nud_state) & NUD_VALID)) {
			kfree(group);
			return NULL;
		}
		memcpy(exit->way.addresses, neighbour->ha, ETH_ALEN);
		memcpy(exit->way.addresses + ETH_ALEN, hop->nhc_dev->dev_addr, ETH_ALEN);
		exit->way.watched = rcu_access_pointer(hop->nhc_dev->tcx_egress);
		group->exit[i] = exit;
	}
	group->next = paths->groups;
	paths->groups = group;
	return group;
}

void cl_paths_route(struct cl_paths *paths, struct cl_path_flow *flow, const struct cl_way *way,
		    const struct sk_buff *skb, struct net *net, int generation)
{
	const struct iphdr *ip = ip_hdr(skb);
	u32 ports = get_unaligned_be32((const u8 *)ip + ip->ihl * 4);
	u64 ends = (u64)ntohl(ip->saddr) << 32 | ntohl(ip->daddr);
	struct flowi4 wanted = {
		.daddr = ip->daddr,
		.saddr = ip->saddr,
		.flowi4_dscp = ip4h_dscp(ip),
		.flowi4_iif = skb->dev->ifindex,
		.flowi4_scope = RT_SCOPE_UNIVERSE,
	};
	struct fib_result found;
	struct cl_exit *own = cl_paths_exit(way->ifindex);

	own->way.watched = way->watched;
	memcpy(own->way.addresses, way->addresses, sizeof(own->way.addresses));
	flow->ecmp = own;
	flow->group = NULL;
	flow->key = mix(mix(ends) ^ ((u64)(ports >> 16) << 24) ^ ((ports & 0xffff) << 8) ^
			ip->protocol);
	if (!fib_lookup(net, &wanted, &found, FIB_LOOKUP_NOREF) && found.type == RTN_UNICAST)
		flow->group = group_of(paths, found.fi, generation);
}
