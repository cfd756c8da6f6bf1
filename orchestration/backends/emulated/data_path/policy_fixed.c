// SPDX-License-Identifier: GPL-2.0-only
/* A policy that does not react: a fixed rate in Mbit/s, 0 for the line's. */
#include "policy.h"

static void happen(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	u64 wanted_bps = parameters[0] * 1000000ULL;

	if (flow->event == CL_START && wanted_bps && wanted_bps < flow->line_bps)
		flow->rate_bps = wanted_bps;
}

const struct cl_policy cl_policy_fixed = { "fixed", happen, 1, 0 };
