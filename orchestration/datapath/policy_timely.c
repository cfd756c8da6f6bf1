// SPDX-License-Identifier: GPL-2.0-only
/* TIMELY: Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015,
 * algorithm 1, with the mode of hyperactive increase of its section 4.3. Each timed acknowledgement
 * is a completion; with one every 16 packets of 1 KB, that is the paper's segment of 16 KB.
 */
#include "policy.h"

enum parameter {
	DELTA_MBPS, /* 0: a thousandth of the line, as the paper has it at 10 Gbit/s */
	BETA,  /* thousandths */
	ALPHA, /* thousandths */
	T_LOW_NS,
	T_HIGH_NS,
	MIN_RTT_NS,
	HAI_AFTER, /* completions with a gradient that is not positive; the increase is then 5-fold */
	MIN_RATE_MBPS, /* 0: a hundredth of the line */
	PARAMETERS,
};

#define MBPS 1000000ULL
#define ONE (1U << 20) /* of shares */
#define HAI_TIMES 5

struct timely {
	u64 previous_ns; /* round trip, 0 before the first */
	s64 difference;  /* of round trips, smoothed, in 1/1024 ns */
	u32 falling;     /* completions since the gradient was positive */
	u32 unused;
};

_Static_assert(sizeof(struct timely) <= CL_OWN_WORDS * sizeof(u64), "too much memory");

/* Reduce the rate by a share of it. */
CL_INLINE void reduce(struct cl_flow_state *flow, u64 share)
{
	if (share > ONE)
		share = ONE;
	flow->rate_bps -= (flow->rate_bps >> 10) * share >> 10;
}

CL_INLINE void completed(struct cl_flow_state *flow, struct timely *t, const u32 *p)
{
	u64 rtt_ns = flow->rtt_ns, before_ns = t->previous_ns ? t->previous_ns : rtt_ns;
	u64 beta = (u64)p[BETA] * ONE / 1000, steps = 1;
	u64 delta_bps = p[DELTA_MBPS] ? p[DELTA_MBPS] * MBPS : flow->line_bps / 1000;
	s64 alpha = (u64)p[ALPHA] * 65536 / 1000;

	t->previous_ns = rtt_ns;
	t->difference = ((65536 - alpha) * t->difference +
			 alpha * (((s64)rtt_ns - (s64)before_ns) * 1024)) >> 16;
	if (t->difference > 0)
		t->falling = 0;
	else if (t->falling < p[HAI_AFTER])
		t->falling++;
	if (rtt_ns < p[T_LOW_NS]) {
		flow->rate_bps += delta_bps;
	} else if (rtt_ns > p[T_HIGH_NS]) {
		reduce(flow, beta * (rtt_ns - p[T_HIGH_NS]) / rtt_ns);
	} else if (t->difference <= 0) {
		if (t->falling >= p[HAI_AFTER])
			steps = HAI_TIMES;
		flow->rate_bps += steps * delta_bps;
	} else {
		u64 rise_ns = (u64)t->difference >> 10, least_ns = p[MIN_RTT_NS];

		/* a gradient of 2^10 or more is a cut to the floor anyway */
		if (!least_ns || rise_ns >> 10 >= least_ns)
			reduce(flow, ONE);
		else
			reduce(flow, (beta * (u64)t->difference / least_ns) >> 10);
	}
}

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	struct timely *t = (struct timely *)flow->own;
	u64 least_bps = p[MIN_RATE_MBPS] ? p[MIN_RATE_MBPS] * MBPS : flow->line_bps / 100;

	if (flow->event == CL_START)
		flow->rate_bps = flow->line_bps;
	else if ((flow->event == CL_ACK || flow->event == CL_RTT) && flow->rtt_ns)
		completed(flow, t, p);
	else
		return;
	if (flow->rate_bps < least_bps)
		flow->rate_bps = least_bps;
	if (flow->rate_bps > flow->line_bps)
		flow->rate_bps = flow->line_bps;
}

CL_POLICY(timely, PARAMETERS, 0);
