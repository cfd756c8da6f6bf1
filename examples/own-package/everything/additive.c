/* Halve the rate at a CNP, and raise it by so many Mbit/s at an acknowledgement. */
#include "policy.h"

enum parameter { INCREASE_MBPS, PARAMETERS };

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	if (flow->event == CL_START)
		flow->rate_bps = flow->line_bps;
	else if (flow->event == CL_CNP)
		flow->rate_bps /= 2;
	else if (flow->event == CL_ACK)
		flow->rate_bps += parameters[INCREASE_MBPS] * 1000000ULL;
}

CL_POLICY(additive, PARAMETERS, 0);
