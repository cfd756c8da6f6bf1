// SPDX-License-Identifier: GPL-2.0-only
/* Swift: Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the
 * Datacenter", SIGCOMM 2020: algorithm 1, with the target of section 3.5 (scaled by the path's
 * switches and by the window) and pacing below one packet (section 3.4). A NIC's delay is that of
 * the fabric; the host's, which the paper controls by a second window, is none here.
 *
 * A window below a packet is one packet and a rate. Acknowledgements between two timed ones count
 * at the next timed one.
 */
#include "policy.h"

enum parameter {
	AI,       /* thousandths of a packet */
	BETA,     /* thousandths */
	MAX_MDF,  /* thousandths */
	BASE_TARGET_NS,
	HOP_SCALE_NS,
	FS_RANGE_NS,
	FS_MIN_CWND, /* thousandths of a packet, as the next three */
	FS_MAX_CWND,
	MIN_CWND,
	MAX_CWND,
	INIT_CWND,
	RETX_RESET_THRESHOLD,
	PARAMETERS,
};

#define ONE_BITS 20 /* of a packet, and of shares */
#define ONE (1ULL << ONE_BITS)

struct swift {
	u64 cwnd;        /* packets, in 2^-20 */
	u64 acked;       /* packets since the last timed acknowledgement */
	u64 decrease_ns; /* when it was last reduced */
	u64 rtt_ns;      /* the last one, 0 before */
	u64 root_min, root_max; /* inverse_root() of fs_min_cwnd and fs_max_cwnd */
	u32 timeouts;    /* in a row */
	u32 packet_bytes; /* with its headers */
};

_Static_assert(sizeof(struct swift) <= CL_OWN_WORDS * sizeof(u64), "too much memory");

CL_INLINE u64 scaled(u32 thousandths)
{
	return (u64)thousandths * ONE / 1000;
}

/* 1 / sqrt(cwnd), in 2^-20. */
CL_INLINE u64 inverse_root(u64 cwnd)
{
	u64 root = 0;

	/* the root of cwnd * 2^20, so that it has 20 bits behind the point as well */
	for (u32 bit = 32; bit-- > 0;) {
		u64 wider = root | 1ULL << bit;

		if (cwnd >> 43 == 0 && wider * wider <= cwnd << ONE_BITS)
			root = wider;
	}
	return root ? (1ULL << 2 * ONE_BITS) / root : ~0U;
}

CL_INLINE u64 target_ns(const struct cl_flow_state *flow, const struct swift *s, const u32 *p)
{
	u64 target = p[BASE_TARGET_NS] + (u64)flow->switches * p[HOP_SCALE_NS];
	u64 root = inverse_root(s->cwnd);

	if (s->root_min <= s->root_max || root <= s->root_max)
		return target;
	if (root >= s->root_min)
		return target + p[FS_RANGE_NS];
	return target + p[FS_RANGE_NS] * (root - s->root_max) / (s->root_min - s->root_max);
}

CL_INLINE void reduce(struct cl_flow_state *flow, struct swift *s, u64 share)
{
	/* not more than once a round trip */
	if (s->decrease_ns && flow->now_ns - s->decrease_ns < s->rtt_ns)
		return;
	s->cwnd -= s->cwnd * share >> ONE_BITS;
	s->decrease_ns = flow->now_ns;
}

CL_INLINE void timed(struct cl_flow_state *flow, struct swift *s, const u32 *p)
{
	u64 delay_ns = flow->rtt_ns, target = target_ns(flow, s, p);

	s->rtt_ns = delay_ns;
	s->timeouts = 0;
	if (delay_ns < target) {
		u64 more = scaled(p[AI]);

		if (s->cwnd >= ONE)
			more = (more << ONE_BITS) / s->cwnd;
		s->cwnd += more * s->acked;
	} else {
		u64 share = scaled(p[BETA]) * (delay_ns - target) / delay_ns;

		reduce(flow, s, share < scaled(p[MAX_MDF]) ? share : scaled(p[MAX_MDF]));
	}
	s->acked = 0;
}

CL_INLINE void answer(struct cl_flow_state *flow, struct swift *s, const u32 *p)
{
	u64 one_bps;

	if (s->cwnd > scaled(p[MAX_CWND]))
		s->cwnd = scaled(p[MAX_CWND]);
	if (s->cwnd < scaled(p[MIN_CWND]))
		s->cwnd = scaled(p[MIN_CWND]);
	flow->rate_bps = flow->line_bps;
	flow->window_bytes = flow->payload_bytes;
	if (s->cwnd >= ONE) {
		flow->window_bytes *= s->cwnd >> ONE_BITS;
	} else if (s->rtt_ns) {
		/* one packet in rtt / cwnd */
		one_bps = s->packet_bytes * 8000000000ULL / s->rtt_ns;
		if (one_bps < flow->line_bps)
			flow->rate_bps = one_bps * s->cwnd >> ONE_BITS;
		else
			flow->rate_bps = (flow->line_bps >> ONE_BITS) * s->cwnd;
	}
}

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	struct swift *s = (struct swift *)flow->own;

	switch (flow->event) {
	case CL_START:
		s->cwnd = scaled(p[INIT_CWND]);
		s->root_min = inverse_root(scaled(p[FS_MIN_CWND]));
		s->root_max = inverse_root(scaled(p[FS_MAX_CWND]));
		break;
	case CL_TX:
		if (flow->bytes > s->packet_bytes)
			s->packet_bytes = flow->bytes;
		return;
	case CL_ACK:
		if (flow->payload_bytes)
			s->acked += flow->bytes / flow->payload_bytes;
		if (flow->rtt_ns)
			timed(flow, s, p);
		break;
	case CL_RTT:
		if (flow->rtt_ns)
			timed(flow, s, p);
		break;
	case CL_NACK:
		s->timeouts = 0;
		reduce(flow, s, scaled(p[MAX_MDF]));
		break;
	case CL_TIMEOUT:
		if (++s->timeouts >= p[RETX_RESET_THRESHOLD])
			s->cwnd = 0; /* raised to min_cwnd */
		else
			reduce(flow, s, scaled(p[MAX_MDF]));
		break;
	default:
		return;
	}
	answer(flow, s, p);
}

CL_POLICY(swift, PARAMETERS, 0);
