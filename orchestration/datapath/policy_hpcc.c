// SPDX-License-Identifier: GPL-2.0-only
/* HPCC: Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019, algorithm 1, on
 * telemetry of the switches' ports. A hop of which no time has passed since the last record tells
 * nothing; on another path, what is known of the old one is thrown away (section 4.1).
 */
#include "policy.h"

enum parameter {
	ETA,       /* thousandths */
	MAX_STAGE,
	W_AI_BYTES,
	T_NS,      /* the base round trip */
	PARAMETERS,
};

#define ONE_BITS 20 /* of utilizations */
#define ONE (1ULL << ONE_BITS)
#define BYTE_BITS 8 /* of windows */
#define MOST_U (1ULL << 32)

struct hpcc {
	u64 reference;  /* the window W^c, bytes in 2^-8 */
	u64 updated_at; /* what was sent when the reference was last updated */
	u64 u;          /* utilization, in 2^-20 */
	u32 stage, hops, path;
	struct {
		u32 at_ns, tx_bytes, queue_bytes;
	} last[CL_MOST_HOPS];
};

_Static_assert(sizeof(struct hpcc) <= CL_OWN_WORDS * sizeof(u64), "too much memory");

CL_INLINE u64 most(const struct cl_flow_state *flow, const u32 *p)
{
	return ((flow->line_bps / 1000000 * p[T_NS] / 8000) << BYTE_BITS) | 1;
}

/* Remember what the ports said. */
CL_INLINE void remember(struct cl_flow_state *flow, struct hpcc *h, const struct cl_hop *hop)
{
	for (u32 i = 0; i < CL_MOST_HOPS; i++) {
		if (i >= flow->hops)
			break;
		h->last[i].at_ns = hop[i].at_ns;
		h->last[i].tx_bytes = hop[i].tx_bytes;
		h->last[i].queue_bytes = hop[i].queue_bytes;
	}
	h->hops = flow->hops;
	h->path = hop[0].path;
}

/* MeasureInflight */
CL_INLINE void measure(struct cl_flow_state *flow, struct hpcc *h, const u32 *p,
		       const struct cl_hop *hop)
{
	u64 base_ns = p[T_NS], highest = 0, over_ns = 0;

	for (u32 i = 0; i < CL_MOST_HOPS; i++) {
		u64 tau_ns, sent, queue, u;

		if (i >= flow->hops)
			break;
		tau_ns = (hop[i].at_ns - h->last[i].at_ns) & CL_HOP_NS_MASK;
		sent = (hop[i].tx_bytes - h->last[i].tx_bytes) & CL_HOP_BYTES_MASK;
		queue = hop[i].queue_bytes;
		if (h->last[i].queue_bytes < queue)
			queue = h->last[i].queue_bytes;
		if (!tau_ns || !hop[i].rate_mbps || !base_ns)
			continue;
		/* a byte is 8000 times what 1 Mbit/s sends in 1 ns */
		u = (queue * 8000 << ONE_BITS) / (base_ns * hop[i].rate_mbps) +
		    (sent * 8000 << ONE_BITS) / (tau_ns * hop[i].rate_mbps);
		if (u > highest) {
			highest = u;
			over_ns = tau_ns;
		}
	}
	if (!base_ns)
		return;
	if (over_ns > base_ns)
		over_ns = base_ns;
	if (highest > MOST_U)
		highest = MOST_U;
	h->u = (h->u * (base_ns - over_ns) + highest * over_ns) / base_ns;
}

/* ComputeWind */
CL_INLINE u64 window(struct cl_flow_state *flow, struct hpcc *h, const u32 *p, u32 update)
{
	u64 eta = p[ETA] * ONE / 1000, highest = most(flow, p), wide;
	u32 cuts = h->u >= eta || h->stage >= p[MAX_STAGE];

	wide = h->reference;
	if (cuts)
		wide = h->u ? h->reference * eta / h->u : highest;
	wide += (u64)p[W_AI_BYTES] << BYTE_BITS;
	if (wide > highest)
		wide = highest;
	if (update) {
		h->stage = cuts ? 0 : h->stage + 1;
		h->reference = wide;
	}
	return wide;
}

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	struct hpcc *h = (struct hpcc *)flow->own;
	u64 wide = most(flow, p);

	if (flow->event == CL_START) {
		h->reference = wide;
	} else if (flow->event == CL_ACK && flow->hops) {
		u32 update = flow->acked_bytes > h->updated_at;
		u32 known = h->hops == flow->hops && h->path == hop[0].path;

		if (known) {
			measure(flow, h, p, hop);
			wide = window(flow, h, p, update);
		}
		remember(flow, h, hop);
		if (update)
			h->updated_at = flow->sent_bytes;
		if (!known)
			return;
	} else if (flow->event == CL_NACK || flow->event == CL_TIMEOUT) {
		/* what has been sent since must be sent again: it will not be acknowledged */
		if (h->updated_at > flow->sent_bytes)
			h->updated_at = flow->sent_bytes;
		return;
	} else {
		return;
	}
	flow->window_bytes = (wide >> BYTE_BITS) ? wide >> BYTE_BITS : 1;
	/* R = W / T */
	flow->rate_bps = p[T_NS] ? (wide >> BYTE_BITS) * 8000000000ULL / p[T_NS] : flow->line_bps;
	if (flow->rate_bps > flow->line_bps)
		flow->rate_bps = flow->line_bps;
}

CL_POLICY(hpcc, PARAMETERS, 1);
