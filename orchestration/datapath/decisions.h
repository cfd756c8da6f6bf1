/* SPDX-License-Identifier: GPL-2.0-only */
/* When what policies decide takes effect: see decisions.c. */
#ifndef CLOSLOOP_DECISIONS_H
#define CLOSLOOP_DECISIONS_H

#include "roce.h"

struct decision {
	struct decision *next;
	struct flow *flow;
	u64 at_ns, rate_bps;
	u32 window_bytes;
};

/* Whether the policy hears of an event, or is busy with another one. */
bool cl_decisions_hear(struct flow *flow, u32 event, u64 now_ns);
/* Take what the policy has answered to an event; before, it was at `rate_bps` and `window_bytes`. */
void cl_decisions_take(struct flow *flow, u64 rate_bps, u32 window_bytes);
/* Let the first decision take effect if its time is not after `at_ps`; return whether it did. */
bool cl_decision_takes_effect(struct nic *nic, u64 at_ps);
void cl_decisions_end(struct nic *nic);

#endif
