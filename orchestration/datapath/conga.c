// SPDX-License-Identifier: GPL-2.0-only
/* CONGA: Alizadeh et al., "CONGA: Distributed Congestion-Aware Load Balancing for Datacenters",
 * SIGCOMM 2014, sections 3.2 to 3.5, with what docs/load-balancing.md adds for fat trees.
 *
 * What its packets carry in an overlay's header, packets here carry in the hash that Linux keeps
 * beside a packet: no switch uses that (see docs/decisions/0066-flowlets-in-the-data-path.md).
 */
#include <linux/ip.h>
#include <linux/skbuff.h>
#include "conga.h"

#define NO_TAG (CL_TAGS - 1)
#define LEVELS 2 /* tiers that have partners: edges, and aggregation switches */
#define FADE_NS NSEC_PER_MSEC

/* What a packet carries for one tier, 16 bits of the hash. */
struct carried {
	u8 tag, extent; /* of its own path: which, and its highest metric so far */
	u8 back_tag, back; /* of a path in the other direction */
};

static struct carried read(const struct sk_buff *skb, u32 level)
{
	u32 bits = skb->hash >> 16 * level;

	return (struct carried){
		.tag = bits & 15,
		.extent = bits >> 4 & 7,
		.back_tag = bits >> 8 & 15,
		.back = bits >> 12 & 7,
	};
}

static void write(struct sk_buff *skb, u32 level, struct carried carried)
{
	u32 bits = carried.tag | carried.extent << 4 | carried.back_tag << 8 | carried.back << 12;

	skb->hash = (skb->hash & ~(0xffffU << 16 * level)) | bits << 16 * level;
}

/* Let the discounting rate estimator of a port's line forget what it should have by now. */
static void discount(struct cl_exit *exit, u64 now_ns)
{
	u64 period_ns = cl_paths_all.dre_period_ns;

	if (now_ns < exit->dre_next_ns)
		return;
	if (!exit->dre_next_ns)
		exit->dre_next_ns = cl_paths_origin_ns + period_ns;
	while (exit->dre_next_ns <= now_ns && exit->dre_bytes >> CL_DRE_SHIFT) {
		exit->dre_bytes -= exit->dre_bytes >> CL_DRE_SHIFT;
		exit->dre_next_ns += period_ns;
	}
	if (exit->dre_next_ns <= now_ns)
		exit->dre_next_ns += (div64_u64(now_ns - exit->dre_next_ns, period_ns) + 1) * period_ns;
}

static u32 own_metric(struct cl_exit *exit, u64 now_ns)
{
	discount(exit, now_ns);
	return min(div64_u64(exit->dre_bytes, exit->dre_unit_bytes), (u64)CL_MOST_METRIC);
}

u32 cl_conga_partner(const struct cl_paths *paths, __be32 address)
{
	return paths->partner_of[((const u8 *)&address)[1]];
}

static struct cl_metric *metric_of(struct cl_metric *table, u32 partner, u32 tag)
{
	return &table[partner * CL_TAGS + tag];
}

/* What arrives from above ends here its way between switches of this tier. */
void cl_conga_arrive(struct cl_paths *paths, const struct sk_buff *skb, u64 now_ns)
{
	const struct iphdr *ip = (const struct iphdr *)skb->data;
	const struct cl_exit *in = cl_paths_exit(skb->dev->ifindex);
	u32 level = paths->tier - 1, partner = cl_conga_partner(paths, ip->saddr);
	struct carried carried;
	struct cl_metric *metric;

	if (!in || !in->up || level >= LEVELS || partner == CL_NO_PARTNER)
		return;
	carried = read(skb, level);
	if (carried.tag != NO_TAG) {
		metric = metric_of(paths->from, partner, carried.tag);
		metric->news |= !metric->known || metric->value != carried.extent;
		metric->known = true;
		metric->value = carried.extent;
	}
	if (carried.back_tag != NO_TAG) {
		metric = metric_of(paths->to, partner, carried.back_tag);
		metric->value = carried.back;
		metric->at_ns = now_ns;
		metric->known = true;
	}
}

/* What is believed of a path, which fades if nothing more is heard of it. */
static u32 remote_metric(const struct cl_metric *metric, u64 now_ns)
{
	u64 age_ns = now_ns - metric->at_ns, lost;

	if (age_ns <= cl_paths_all.metric_age_ns)
		return metric->value;
	lost = 1 + div64_u64(age_ns - cl_paths_all.metric_age_ns, FADE_NS);
	return lost < metric->value ? metric->value - lost : 0;
}

/* How congested the way by a port is to a partner. */
u32 cl_conga_metric(const struct cl_paths *paths, struct cl_exit *exit, u32 partner, u64 now_ns)
{
	u32 own = own_metric(exit, now_ns);

	if (!exit->up || partner == CL_NO_PARTNER)
		return own;
	return max(own, remote_metric(metric_of(paths->to, partner, exit->tag), now_ns));
}

/* The next of a partner's paths of which there is news, or else that is known. */
static u32 next_tag(struct cl_paths *paths, u32 partner)
{
	u32 found = NO_TAG;

	for (u32 i = 1; i <= NO_TAG; i++) {
		u32 tag = (paths->cursor[partner] + i) % NO_TAG;
		const struct cl_metric *metric = metric_of(paths->from, partner, tag);

		if (metric->news) {
			found = tag;
			break;
		}
		if (metric->known && found == NO_TAG)
			found = tag;
	}
	if (found != NO_TAG)
		paths->cursor[partner] = found;
	return found;
}

/* What goes up begins here its way between switches of this tier. */
static void begin(struct cl_paths *paths, const struct cl_exit *exit, struct sk_buff *skb)
{
	const struct iphdr *ip = (const struct iphdr *)skb->data;
	u32 level = paths->tier - 1, partner = cl_conga_partner(paths, ip->daddr);
	struct carried carried = { .tag = NO_TAG, .back_tag = NO_TAG };

	if (level >= LEVELS)
		return;
	if (partner != CL_NO_PARTNER) {
		carried.tag = exit->tag;
		carried.back_tag = next_tag(paths, partner);
		if (carried.back_tag != NO_TAG) {
			struct cl_metric *back = metric_of(paths->from, partner, carried.back_tag);

			carried.back = back->value;
			back->news = false;
		}
	}
	write(skb, level, carried);
}

void cl_conga_leave(struct cl_paths *paths, struct cl_exit *exit, struct sk_buff *skb, u64 now_ns)
{
	u32 metric;

	if (!exit->fabric)
		return;
	if (exit->up)
		begin(paths, exit, skb);
	discount(exit, now_ns);
	exit->dre_bytes += skb->len + ETH_HLEN + cl_paths_all.framing_bytes;
	metric = own_metric(exit, now_ns);
	for (u32 level = 0; level < LEVELS; level++) {
		struct carried carried = read(skb, level);

		carried.extent = max_t(u32, carried.extent, metric);
		write(skb, level, carried);
	}
}
