// SPDX-License-Identifier: GPL-2.0-only
/* Load balancing: a switch chooses among the equal-cost ports of its routes, for each flowlet
 * (Vanini et al., "Let It Flow", NSDI 2017) or for each packet.
 *
 * docs/load-balancing.md has the rules. The routes themselves stay the kernel's: a flow's first
 * packet, and the first after a change of routes, asks them for the ports.
 *
 * /proc/closloop/paths begins it, and then tells time 0. /proc/closloop/timeouts sets timeouts, and
 * gives them back. /proc/closloop/links_down says which ports have no link.
 */
#include <linux/ip.h>
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <net/arp.h>
#include <net/inet_dscp.h>
#include <net/ip.h>
#include <net/ip_fib.h>
#include <net/nexthop.h>
#include <net/route.h>
#include "data_path.h"
#include "paths.h"

#define PLACES 4 /* that an entry of a flow may have */
#define MOST_SWITCHES 1024
#define MOST_IFINDEX 65536

/* What user space says of a switch, followed by its ports. */
struct switch_settings {
	u64 stream, timeout_ns;
	s32 namespace;
	u32 tier, partners, ports;
	u16 partner_of[256];
};

struct port_settings {
	u64 dre_unit_bytes;
	u32 ifindex;
	u8 fabric, up, tag, unused;
};

struct timeout {
	u64 timeout_ns;
	u32 number, unused;
};

struct cl_paths_settings cl_paths_all;
u64 cl_paths_origin_ns;
static struct cl_paths *switches[MOST_SWITCHES];
static struct cl_exit *exits[MOST_IFINDEX];

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

struct cl_exit *cl_paths_exit(u32 ifindex)
{
	return ifindex < MOST_IFINDEX ? exits[ifindex] : NULL;
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

u32 cl_paths_count(void)
{
	return cl_paths_all.switches;
}

void cl_paths_state(u32 number, struct cl_paths_state *state)
{
	const struct cl_paths *paths = switches[number];
	u64 now_ns = cl_now_ns();

	*state = (struct cl_paths_state){
		.flowlets = paths->flowlets,
		.reroutes = paths->reroutes,
		.overflows = paths->overflows,
	};
	for (u32 i = 0; i < paths->used_count; i++)
		state->entries +=
			now_ns - paths->entry[paths->used[i]].last_ns <= paths->timeout_ns;
}

/* What begins happens once, and what fails ends the guest: nothing is freed. */
static int add_ports(const struct port_settings *port, u32 count, struct net *net)
{
	for (u32 i = 0; i < count; i++, port++) {
		struct net_device *dev = dev_get_by_index_rcu(net, port->ifindex);
		struct cl_exit *exit = kzalloc(sizeof(*exit), GFP_ATOMIC);

		if (!dev || !exit || port->ifindex >= MOST_IFINDEX || !port->dre_unit_bytes)
			return -ENODEV;
		exit->way.out = dev;
		exit->way.queue = netdev_get_tx_queue(dev, 0);
		exit->way.ifindex = port->ifindex;
		exit->fabric = port->fabric;
		exit->up = port->up;
		exit->tag = port->tag;
		exit->dre_unit_bytes = port->dre_unit_bytes;
		exits[port->ifindex] = exit;
	}
	return 0;
}

static struct cl_paths *add_switch(const struct switch_settings *one)
{
	struct cl_paths *paths = kzalloc(sizeof(*paths), GFP_KERNEL);
	u32 metrics = max(1U, one->partners) * CL_TAGS, entries = cl_paths_all.entries;

	if (!paths)
		return NULL;
	paths->stream = one->stream;
	paths->timeout_ns = one->timeout_ns;
	paths->tier = one->tier;
	paths->partners = one->partners;
	memcpy(paths->partner_of, one->partner_of, sizeof(paths->partner_of));
	if (entries) {
		paths->entry = vzalloc(array_size(entries, sizeof(*paths->entry)));
		paths->used = vzalloc(array_size(entries, sizeof(*paths->used)));
		if (!paths->entry || !paths->used)
			return NULL;
	}
	if (cl_paths_all.route_by == CL_CONGA) {
		paths->to = vzalloc(array_size(metrics, sizeof(*paths->to)));
		paths->from = vzalloc(array_size(metrics, sizeof(*paths->from)));
		paths->cursor = vzalloc(max(1U, one->partners));
		if (!paths->to || !paths->from || !paths->cursor)
			return NULL;
	}
	return paths;
}

static int begin_switch(const void **at, const void *end, u32 number)
{
	const struct switch_settings *one = *at;
	const struct port_settings *ports = (const void *)(one + 1);
	struct net *net;
	int error;

	if ((void *)ports > end || one->ports > CL_MOST_PORTS || (void *)(ports + one->ports) > end)
		return -EINVAL;
	*at = ports + one->ports;
	switches[number] = add_switch(one);
	if (!switches[number])
		return -ENOMEM;
	net = get_net_ns_by_fd(one->namespace);
	if (IS_ERR(net))
		return PTR_ERR(net);
	rcu_read_lock();
	error = add_ports(ports, one->ports, net);
	rcu_read_unlock();
	return error ?: cl_forward_balance(net, switches[number]);
}

static ssize_t paths_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	const struct cl_paths_settings *settings;
	const void *at, *end;
	int error = 0;
	void *said;

	if (size == sizeof(cl_paths_origin_ns))
		return copy_from_user(&cl_paths_origin_ns, from, size) ? -EFAULT : size;
	if (cl_paths_all.switches || size < sizeof(*settings))
		return -EINVAL;
	said = vmemdup_user(from, size);
	if (IS_ERR(said))
		return PTR_ERR(said);
	settings = said;
	at = settings + 1;
	end = said + size;
	if (!settings->switches || settings->switches > MOST_SWITCHES || !settings->dre_period_ns ||
	    settings->entries & (settings->entries - 1)) {
		kvfree(said);
		return -EINVAL;
	}
	cl_paths_all = *settings;
	for (u32 i = 0; i < settings->switches && !error; i++)
		error = begin_switch(&at, end, i);
	kvfree(said);
	return error ?: size;
}

static const struct proc_ops paths_ops = {
	.proc_write = paths_write,
	.proc_lseek = noop_llseek,
};

static ssize_t timeouts_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	size_t count = size / sizeof(struct timeout);
	struct timeout *wanted;

	if (!count || size % sizeof(*wanted) || count > MOST_SWITCHES)
		return -EINVAL;
	wanted = vmemdup_user(from, size);
	if (IS_ERR(wanted))
		return PTR_ERR(wanted);
	for (size_t i = 0; i < count; i++)
		if (wanted[i].number >= cl_paths_all.switches) {
			kvfree(wanted);
			return -EINVAL;
		}
	local_bh_disable();
	for (size_t i = 0; i < count; i++)
		switches[wanted[i].number]->timeout_ns = wanted[i].timeout_ns;
	local_bh_enable();
	kvfree(wanted);
	return size;
}

/* One number of 64 bits a switch. */
static ssize_t timeouts_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	u32 count = cl_paths_all.switches;

	if (size < count * sizeof(u64))
		return -EINVAL;
	for (u32 i = 0; i < count; i++)
		if (copy_to_user(to + i * sizeof(u64), &switches[i]->timeout_ns, sizeof(u64)))
			return -EFAULT;
	return count * sizeof(u64);
}

static const struct proc_ops timeouts_ops = {
	.proc_read = timeouts_read,
	.proc_write = timeouts_write,
	.proc_lseek = noop_llseek,
};

/* Writing 32 bits a port, which are down, and a 0 in front; all others are up. */
static ssize_t links_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	size_t count = size / sizeof(u32);
	u32 *down;

	if (!count || size % sizeof(u32) || count > MOST_IFINDEX)
		return -EINVAL;
	down = vmemdup_user(from, size);
	if (IS_ERR(down))
		return PTR_ERR(down);
	local_bh_disable();
	for (u32 i = 0; i < MOST_IFINDEX; i++)
		if (exits[i])
			exits[i]->down = false;
	for (size_t i = 1; i < count; i++)
		if (cl_paths_exit(down[i]))
			cl_paths_exit(down[i])->down = true;
	local_bh_enable();
	kvfree(down);
	return size;
}

static const struct proc_ops links_ops = {
	.proc_write = links_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	if (!proc_create("closloop/paths", 0600, NULL, &paths_ops) ||
	    !proc_create("closloop/timeouts", 0600, NULL, &timeouts_ops) ||
	    !proc_create("closloop/links_down", 0600, NULL, &links_ops))
		return -ENOMEM;
	return 0;
}
late_initcall(begin);
