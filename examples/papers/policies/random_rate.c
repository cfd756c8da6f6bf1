/* The placebo of the RL-CC campaigns: the loop of a learned rate control with random actions.
 *
 * Once a round trip the rate is multiplied by a number that is drawn, whatever was measured.
 */
#include "policy.h"

enum parameter { MOST_CHANGE /* thousandths: 120 draws from 0.88 to 1.12 */ };

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	u64 draw, *state = &flow->own[0], *decided_ns = &flow->own[1];

	if (flow->event == CL_START) {
		flow->rate_bps = flow->line_bps;
		*state = flow->now_ns;
		return;
	}
	if ((flow->event != CL_ACK && flow->event != CL_RTT) || !flow->rtt_ns ||
	    flow->now_ns - *decided_ns < flow->rtt_ns)
		return;
	*decided_ns = flow->now_ns;
	/* Knuth's multiplier, The Art of Computer Programming 2, 3.3.4; time tells flows apart */
	*state = (*state ^ flow->now_ns) * 6364136223846793005ULL + 1442695040888963407ULL;
	draw = (*state >> 33) % (2 * (u64)p[MOST_CHANGE] + 1);
	flow->rate_bps = flow->rate_bps / 1000 * (1000 - p[MOST_CHANGE] + draw);
}

CL_POLICY(random_rate, 1, 0);
