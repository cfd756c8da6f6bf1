// SPDX-License-Identifier: GPL-2.0-only
/* DCQCN's reaction point: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments",
 * SIGCOMM 2015, section 5.1, with the parameters of mlx5 NICs under their names
 * (orchestration/core/roce.py), and what those add to the paper: a CNP reduces the rate at
 * the beginning of the next rate_reduce_monitor_period, and the target stays at a reduction unless
 * clamp_tgt_rate says otherwise or the rate has been raised since the last one: by the byte counter,
 * or by the timer if clamp_tgt_rate_after_time_inc says so (Mellanox, "DCQCN Parameters").
 *
 * A flow has no timers. What they would have done is worked out, in the order of their times, when
 * a packet is sent or a CNP arrives: in between nobody needs the rate.
 */
#include "policy.h"

enum parameter {
	TIME_RESET_US,
	BYTE_RESET,
	THRESHOLD,
	AI_RATE_MBPS,
	HAI_RATE_MBPS,
	GD,
	MIN_DEC_FAC,
	MIN_RATE_MBPS,
	MAX_RATE_MBPS,
	FIRST_CNP_RATE_MBPS,
	DCE_TCP_G,
	DCE_TCP_RTT_US,
	RATE_REDUCE_PERIOD_US,
	INITIAL_ALPHA,
	CLAMP_TGT_RATE,
	CLAMP_TGT_RATE_AFTER_TIME_INC,
	PARAMETERS,
};

#define MBPS 1000000ULL
#define NS_PER_US 1000ULL
#define ALPHA_BITS 10 /* of a parameter; alpha itself has 20 more */
#define ALPHA_ONE (1ULL << (ALPHA_BITS + 20))
#define NEVER (~0ULL)

enum raised { NOT_RAISED, BY_TIME, BY_BYTES };

struct dcqcn {
	u64 target_bps;
	u64 alpha_ns;    /* the next update of alpha */
	u64 increase_ns; /* the next increase by time */
	u64 first_ns;    /* the first CNP, from which the periods of reductions count */
	u64 reduce_ns;   /* the next reduction, NEVER without a CNP since the last */
	u64 alpha;
	u32 by_time, by_bytes;
	u32 sent_bytes;
	u8 limited;   /* a CNP has come */
	u8 marked;    /* a CNP has come since the last update of alpha */
	u8 raised;    /* since the last reduction, last by what: enum raised */
	u8 unused;
};

_Static_assert(sizeof(struct dcqcn) <= CL_OWN_WORDS * sizeof(u64), "too much memory");

CL_INLINE u64 most_bps(const struct cl_flow_state *flow, const u32 *p)
{
	u64 most = p[MAX_RATE_MBPS] * MBPS;

	return most && most < flow->line_bps ? most : flow->line_bps;
}

CL_INLINE void update_alpha(struct dcqcn *d, const u32 *p)
{
	d->alpha = (d->alpha * p[DCE_TCP_G]) >> ALPHA_BITS;
	if (d->marked)
		d->alpha += (ALPHA_ONE >> ALPHA_BITS) * ((1U << ALPHA_BITS) - p[DCE_TCP_G]);
	d->marked = 0;
	d->alpha_ns += p[DCE_TCP_RTT_US] * NS_PER_US;
}

CL_INLINE void reduce(struct cl_flow_state *flow, struct dcqcn *d, const u32 *p, u64 at_ns)
{
	u64 least = p[MIN_RATE_MBPS] * MBPS, cut, lowest;

	if (p[CLAMP_TGT_RATE] || d->raised == BY_BYTES ||
	    (d->raised == BY_TIME && p[CLAMP_TGT_RATE_AFTER_TIME_INC]))
		d->target_bps = flow->rate_bps;
	/* alpha / 2^gd, alpha as the parameter initial_alpha_value has it: 1023 / 2^11 is a half */
	cut = (flow->rate_bps >> 10) * (d->alpha >> 20) >> p[GD] << 10;
	lowest = flow->rate_bps / 100 * p[MIN_DEC_FAC];
	flow->rate_bps -= cut < flow->rate_bps ? cut : flow->rate_bps;
	if (flow->rate_bps < lowest)
		flow->rate_bps = lowest;
	if (flow->rate_bps < least)
		flow->rate_bps = least;
	d->by_time = d->by_bytes = d->sent_bytes = 0;
	d->raised = NOT_RAISED;
	d->increase_ns = at_ns + p[TIME_RESET_US] * NS_PER_US;
	d->reduce_ns = NEVER;
}

CL_INLINE void increase(struct cl_flow_state *flow, struct dcqcn *d, const u32 *p)
{
	u32 most = d->by_time > d->by_bytes ? d->by_time : d->by_bytes;
	u32 least = d->by_time > d->by_bytes ? d->by_bytes : d->by_time;

	/* without a byte counter, the stage is that of the time alone */
	if (!p[BYTE_RESET])
		least = most;
	if (least > p[THRESHOLD])
		d->target_bps += p[HAI_RATE_MBPS] * MBPS;
	else if (most >= p[THRESHOLD])
		d->target_bps += p[AI_RATE_MBPS] * MBPS;
	if (d->target_bps > most_bps(flow, p))
		d->target_bps = most_bps(flow, p);
	flow->rate_bps = (flow->rate_bps + d->target_bps) / 2;
}

/* Let the time pass until the flow's now. */
CL_INLINE void catch_up(struct cl_flow_state *flow, struct dcqcn *d, const u32 *p)
{
	for (;;) {
		CL_ROUND_OR(late);
		/* once alpha is 0, its updates change nothing until the next CNP */
		u64 alpha_ns = d->alpha || d->marked ? d->alpha_ns : NEVER;
		u64 increase_ns = d->limited ? d->increase_ns : NEVER;

		if (alpha_ns <= flow->now_ns && alpha_ns <= d->reduce_ns && alpha_ns <= increase_ns) {
			update_alpha(d, p);
		} else if (d->reduce_ns <= flow->now_ns && d->reduce_ns <= increase_ns) {
			reduce(flow, d, p, d->reduce_ns);
		} else if (increase_ns <= flow->now_ns) {
			d->increase_ns += p[TIME_RESET_US] * NS_PER_US;
			increase(flow, d, p);
			d->by_time++;
			d->raised = BY_TIME;
		} else {
			return;
		}
	}
late:
	return;
}

CL_INLINE void arrived(struct cl_flow_state *flow, struct dcqcn *d, const u32 *p)
{
	u64 first_bps = p[FIRST_CNP_RATE_MBPS] * MBPS;
	u64 period_ns = p[RATE_REDUCE_PERIOD_US] * NS_PER_US;

	if (!d->limited) {
		d->limited = 1;
		d->alpha = (u64)p[INITIAL_ALPHA] << 20;
		d->alpha_ns = flow->now_ns + p[DCE_TCP_RTT_US] * NS_PER_US;
		d->increase_ns = NEVER;
		d->first_ns = flow->now_ns;
		d->reduce_ns = flow->now_ns + period_ns;
		d->target_bps = flow->rate_bps;
		if (first_bps && first_bps < flow->rate_bps)
			flow->rate_bps = d->target_bps = first_bps;
		return;
	}
	if (!d->alpha && !d->marked)
		d->alpha_ns = flow->now_ns + p[DCE_TCP_RTT_US] * NS_PER_US;
	d->marked = 1;
	/* at the beginning of the next period */
	if (d->reduce_ns == NEVER)
		d->reduce_ns = flow->now_ns + period_ns - (flow->now_ns - d->first_ns) % period_ns;
}

/* New parameters hold. What was to happen at a time happens then, and after that as they say. */
CL_INLINE void changed(struct cl_flow_state *flow, struct dcqcn *d, const u32 *p)
{
	u64 least = p[MIN_RATE_MBPS] * MBPS, most = most_bps(flow, p);

	if (p[BYTE_RESET])
		d->sent_bytes %= p[BYTE_RESET];
	if (!d->limited || flow->rate_bps > most)
		flow->rate_bps = most;
	else if (flow->rate_bps < least)
		flow->rate_bps = least < most ? least : most;
	if (!d->limited || d->target_bps > most)
		d->target_bps = most;
}

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	struct dcqcn *d = (struct dcqcn *)flow->own;

	switch (flow->event) {
	case CL_START:
		flow->rate_bps = d->target_bps = most_bps(flow, p);
		break;
	case CL_TX:
		if (!d->limited)
			break;
		catch_up(flow, d, p);
		d->sent_bytes += flow->bytes;
		while (p[BYTE_RESET] && d->limited && d->sent_bytes >= p[BYTE_RESET]) {
			CL_ROUND_OR(late);
			d->sent_bytes -= p[BYTE_RESET];
			increase(flow, d, p);
			d->by_bytes++;
			d->raised = BY_BYTES;
		}
		break;
	case CL_CNP:
		if (d->limited)
			catch_up(flow, d, p);
		arrived(flow, d, p);
		break;
	case CL_SETTLE:
		if (d->limited)
			catch_up(flow, d, p);
		break;
	case CL_CHANGED:
		changed(flow, d, p);
		break;
	}
late:
	return;
}

CL_POLICY(dcqcn, PARAMETERS, 0);
