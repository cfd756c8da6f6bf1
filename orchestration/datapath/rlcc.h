/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* RL-CC: Fuhrer et al., "Implementing Reinforcement Learning Datacenter Congestion Control in
 * NVIDIA NICs", HPSR 2023, section III: what a flow observes, and how an action becomes its rate.
 *
 * The same for all who include it: policy_rlcc.h, and algorithms for DOCA PCC. They bring the types
 * u32, s32, u64 and s64, and CL_INLINE.
 *
 * Deltas (equation 4), actions and roots of rates are fractions of 2^16: RLCC_ONE is 1. A rate is a
 * share of the line, a fraction of 2^30, so that small actions of slow flows are not lost; NICs
 * count in fractions of 2^20.
 */
#ifndef CLOSLOOP_RLCC_H
#define CLOSLOOP_RLCC_H

#define RLCC_ONE 65536
#define RLCC_SHARE_BITS 30
#define RLCC_LINE (1U << RLCC_SHARE_BITS)
/* The least rate: 64 of the 2^20 by which ConnectX and BlueField NICs count, as in DOCA PCC's
 * template; and what the emulated NIC has.
 */
#define RLCC_LEAST_SHARE (64U << (RLCC_SHARE_BITS - 20))
#define RLCC_LEAST_BPS 1000000ULL
#define RLCC_LEAST_DELTA (-32 * RLCC_ONE)

/* 1: the model looks at the present too: RTT / base RTT, at most 256, and the rate before the action */
#ifndef RLCC_PRESENT
#define RLCC_PRESENT 0
#endif
#define RLCC_WORDS (2 * RLCC_HISTORY + 2 * RLCC_PRESENT)
#define RLCC_MOST_INFLATION (256 * RLCC_ONE - 1)

#ifndef RLCC_MEMORY_WORDS
#define RLCC_MEMORY_WORDS 0
#endif

enum rlcc_parameter {
	RLCC_TARGET,      /* thousandths */
	RLCC_BETA,        /* thousandths */
	RLCC_BASE_RTT_NS, /* 0: the least that the flow has measured */
	RLCC_NEW_FLOW_RATE, /* thousandths of the line; 0: the line */
	RLCC_PARAMETERS,
};

struct rlcc {
	u64 decided_ns;   /* when it last decided */
	u32 share;        /* its rate */
	u32 least_share;
	u32 least_rtt_ns; /* that it has measured, 0 before */
	u32 decisions;
	s32 action;       /* the last one */
	/* delta[0], action[0], delta[1], action[1], ...: the newest first, action[0] being the one
	 * before delta[0]; then the present
	 */
	s32 window[RLCC_WORDS];
	s32 memory[RLCC_MEMORY_WORDS];
};

/* The action for a window. */
#if RLCC_MEMORY_WORDS
CL_INLINE s32 rlcc_infer(const s32 *window, s32 *memory);
#else
CL_INLINE s32 rlcc_infer(const s32 *window);
#endif

/* The root of a share, in 2^-16, rounded down: Newton's method from above. */
CL_INLINE u32 rlcc_root(u32 share)
{
	u64 value = (u64)share << (32 - RLCC_SHARE_BITS), root = 1, rest = value;

	if (!share)
		return 0;
	for (u32 bits = 16; bits; bits /= 2)
		if (rest >> bits) {
			rest >>= bits;
			root <<= bits / 2;
		}
	root *= 2; /* above the true one, and at most twice that */
	for (u32 round = 0; round < 6; round++) {
		u64 next = (root + value / root) / 2;

		if (next >= root)
			break;
		root = next;
	}
	return root;
}

/* Equation 4: target - max(RTT / base RTT - beta, 0) * sqrt(rate). */
CL_INLINE s32 rlcc_delta(u64 rtt_ns, u64 base_ns, u32 share, const u32 *p)
{
	s64 target = (u64)p[RLCC_TARGET] * RLCC_ONE / 1000, delta;
	u64 beta = (u64)p[RLCC_BETA] * RLCC_ONE / 1000;
	u64 inflation = rtt_ns * RLCC_ONE / base_ns;

	if (inflation <= beta)
		return target;
	inflation -= beta;
	if (inflation > 1ULL << 40)
		inflation = 1ULL << 40;
	delta = target - (s64)(inflation * rlcc_root(share) / RLCC_ONE);
	return delta < RLCC_LEAST_DELTA ? RLCC_LEAST_DELTA : delta;
}

/* Take an action: rate = action * rate. */
CL_INLINE void rlcc_act(struct rlcc *r, s32 action)
{
	u64 share;

#ifdef __BPF__
	/* the verifier must forget which leaves it has seen, or it follows every sum of them */
	r->action = action;
	action = *(volatile s32 *)&r->action;
#endif
	if (action < RLCC_LEAST_ACTION)
		action = RLCC_LEAST_ACTION;
	if (action > RLCC_MOST_ACTION)
		action = RLCC_MOST_ACTION;
	share = (u64)r->share * (u32)action / RLCC_ONE;
	if (share < r->least_share)
		share = r->least_share;
	if (share > RLCC_LINE)
		share = RLCC_LINE;
	r->share = share;
	r->action = action;
	r->decisions++;
}

CL_INLINE void rlcc_decide(struct rlcc *r, u64 now_ns, s32 delta)
{
	for (u32 i = 2 * RLCC_HISTORY - 1; i > 1; i--)
		r->window[i] = r->window[i - 2];
	r->window[0] = delta;
	r->window[1] = r->action;
#if RLCC_PRESENT
	r->window[2 * RLCC_HISTORY + 1] = r->share >> (RLCC_SHARE_BITS - 16);
#endif
	r->decided_ns = now_ns;
#if RLCC_MEMORY_WORDS
	rlcc_act(r, rlcc_infer(r->window, r->memory));
#else
	rlcc_act(r, rlcc_infer(r->window));
#endif
}

/* A packet's round trip took `rtt_ns`, and the answer is here: return whether there is something to
 * decide by `delta`. At most one decision a round trip: the packet left after the last one.
 */
CL_INLINE u32 rlcc_observe(struct rlcc *r, u64 now_ns, u64 rtt_ns, const u32 *p, s32 *delta)
{
	u64 base_ns = p[RLCC_BASE_RTT_NS];

	if (!rtt_ns)
		return 0;
	if (rtt_ns > ~0U)
		rtt_ns = ~0U;
	if (!r->least_rtt_ns || rtt_ns < r->least_rtt_ns)
		r->least_rtt_ns = rtt_ns;
	if (now_ns - rtt_ns < r->decided_ns || now_ns < rtt_ns)
		return 0;
	if (!base_ns)
		base_ns = r->least_rtt_ns;
	*delta = rlcc_delta(rtt_ns, base_ns, r->share, p);
#if RLCC_PRESENT
	rtt_ns = rtt_ns * RLCC_ONE / base_ns;
	r->window[2 * RLCC_HISTORY] = rtt_ns < RLCC_MOST_INFLATION ? rtt_ns : RLCC_MOST_INFLATION;
#endif
	return 1;
}

/* A packet was lost, or nobody answers: its round trip is longer than any. Return its delta. */
CL_INLINE s32 rlcc_loss(struct rlcc *r)
{
#if RLCC_PRESENT
	r->window[2 * RLCC_HISTORY] = RLCC_MOST_INFLATION;
#else
	(void)r;
#endif
	return RLCC_LEAST_DELTA;
}

CL_INLINE void rlcc_start(struct rlcc *r, u64 now_ns, u64 line_bps, const u32 *p)
{
	u64 least = line_bps ? ((RLCC_LEAST_BPS << RLCC_SHARE_BITS) + line_bps - 1) / line_bps : 0;

	r->decided_ns = now_ns;
	r->share = p[RLCC_NEW_FLOW_RATE] && p[RLCC_NEW_FLOW_RATE] < 1000 ?
			   (u64)RLCC_LINE * p[RLCC_NEW_FLOW_RATE] / 1000 : RLCC_LINE;
	r->least_share = least < RLCC_LEAST_SHARE ? RLCC_LEAST_SHARE :
			 least < RLCC_LINE ? least : RLCC_LINE;
	r->action = RLCC_ONE;
	for (u32 i = 0; i < RLCC_HISTORY; i++) {
		r->window[2 * i] = 0;
		r->window[2 * i + 1] = RLCC_ONE;
	}
}

#endif
