/* SPDX-License-Identifier: GPL-2.0-only */
/* What the files of load balancing share: ports of a switch, and what it knows of their load. The
 * rules are those of docs/load-balancing.md.
 */
#ifndef CLOSLOOP_LOAD_BALANCING_H
#define CLOSLOOP_LOAD_BALANCING_H

#include <linux/etherdevice.h>
#include <linux/netdevice.h>

#define CL_MOST_WAYS 128 /* equal-cost ports of one route */
#define CL_DRE_SHIFT 3
#define CL_MOST_METRIC 7

/* A port of a switch by which packets can leave. */
struct cl_way {
	struct net_device *out; /* NULL: there is no route */
	struct netdev_queue *queue; /* of `out` */
	const struct Qdisc *port; /* as it was last; it may be gone */
	u32 ifindex;
	bool watched; /* a program looks at what leaves there */
	u8 addresses[2 * ETH_ALEN];
};

/* The same of a switch that balances its load. */
struct cl_exit {
	struct cl_way way;
	bool down; /* its link is */
	bool fabric, up; /* it goes to a switch; to one of a higher tier */
	u8 tag; /* its place among the ports that go up */
	u64 dre_bytes, dre_next_ns; /* CONGA's register, and when it next forgets */
	u64 dre_unit_bytes; /* of its metric */
};

/* The equal-cost ports of a route. */
struct cl_group {
	struct cl_group *next;
	const void *route;
	int generation; /* of the routes that it is from */
	u32 count;
	struct cl_exit *best; /* DRILL's memory */
	struct cl_exit *exit[] __counted_by(count);
};

/* What a switch that chooses keeps of a flow. */
struct cl_path_flow {
	struct cl_group *group; /* NULL: there is no choice */
	struct cl_exit *ecmp; /* by the routes and their hash */
	struct cl_exit *last; /* under spray */
	u64 key;
	u32 place; /* 1 + that of its entry, if that is still its own */
};

/* What CONGA knows of one of its partner's ports: Alizadeh et al., SIGCOMM 2014, section 3. */
struct cl_metric {
	u64 at_ns;
	u8 value;
	bool known, news;
};

#define CL_TAGS 16 /* the last one says that there is none */
#define CL_NO_PARTNER 0xffff

struct cl_entry {
	const struct cl_path_flow *flow; /* NULL: free */
	struct cl_exit *exit;
	u64 last_ns;
	int generation;
};

/* Of one switch. */
struct cl_paths {
	u64 stream, timeout_ns;
	u64 flowlets, reroutes, overflows;
	struct cl_entry *entry; /* NULL under spray */
	u32 *used, used_count; /* numbers of entries that are not free */
	u32 turn; /* of round robin */
	struct cl_group *groups;
	/* CONGA's, NULL without: by partner and tag */
	struct cl_metric *to, *from;
	u8 *cursor; /* by partner: whose news was sent last */
	u32 tier, partners;
	u16 partner_of[256]; /* by the second byte of hosts' addresses */
};

/* Of all switches. By their numbers in paths.py. */
enum cl_route_by { CL_RANDOM, CL_ROUND_ROBIN, CL_DRILL, CL_CONGA };

struct cl_paths_settings {
	u64 dre_period_ns, metric_age_ns;
	u32 switches, route_by, entries; /* entries 0: spray */
	u32 framing_bytes;
};

extern struct cl_paths_settings cl_paths_all;
extern u64 cl_paths_origin_ns; /* time 0 of the trial */

/* The port with an index of its interface; NULL of any other. */
struct cl_exit *cl_paths_exit(u32 ifindex);
/* Let the port with that index be `exit`. */
int cl_paths_add_exit(u32 ifindex, struct cl_exit *exit);

#endif
