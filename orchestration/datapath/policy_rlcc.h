/* SPDX-License-Identifier: GPL-2.0-only */
/* RL-CC as a policy: rlcc.h on the events of a NIC.
 *
 * The model is the including file's. It says before the #include how many observations it looks at
 * and which actions it may take,
 *
 *   #define RLCC_HISTORY 3
 *   #define RLCC_LEAST_ACTION 52429
 *   #define RLCC_MOST_ACTION 78643
 *
 * and behind it has `rlcc_infer`. A model that remembers something (an LSTM) says in
 * RLCC_MEMORY_WORDS how many words, which are 0 at a flow's start, and gets them as well.
 */
#ifndef CLOSLOOP_POLICY_RLCC_H
#define CLOSLOOP_POLICY_RLCC_H

#include "policy.h"
#include "rlcc.h"

_Static_assert(sizeof(struct rlcc) <= CL_OWN_WORDS * sizeof(u64), "too much memory");

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	struct rlcc *r = (struct rlcc *)flow->own;
	u64 line_bps = flow->line_bps;
	s32 delta;

	if (flow->event == CL_START) {
		rlcc_start(r, flow->now_ns, line_bps, p);
	} else {
		if (flow->event == CL_ACK || flow->event == CL_RTT) {
			if (!rlcc_observe(r, flow->now_ns, flow->rtt_ns, p, &delta))
				return; /* without a round trip a flow keeps its rate */
		} else if (flow->event == CL_NACK || flow->event == CL_TIMEOUT) {
			delta = rlcc_loss(r); /* of which the receiver tells once a round trip */
		} else {
			return;
		}
		rlcc_decide(r, flow->now_ns, delta);
	}
	flow->rate_bps = (line_bps >> RLCC_SHARE_BITS) * r->share +
			 ((line_bps & (RLCC_LINE - 1)) * r->share >> RLCC_SHARE_BITS);
}

#ifdef RLCC_LIBRARY /* what tests and benchmarks of a shared library call */
void rlcc_happen_all(struct cl_context *contexts, u64 count);
void rlcc_happen_all(struct cl_context *contexts, u64 count)
{
	for (u64 i = 0; i < count; i++)
		happen(&contexts[i].flow, contexts[i].parameters, contexts[i].hop);
}

#if !RLCC_MEMORY_WORDS
void rlcc_infer_all(const s32 *windows, s32 *sums, u64 count);
void rlcc_infer_all(const s32 *windows, s32 *sums, u64 count)
{
	for (u64 i = 0; i < count; i++)
		sums[i] = rlcc_infer(windows + i * RLCC_WORDS);
}
#endif
#endif

#endif
