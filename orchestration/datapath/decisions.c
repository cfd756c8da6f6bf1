// SPDX-License-Identifier: GPL-2.0-only
/* Decisions that take time: a change of a flow's rate or window takes effect later than the event
 * that it answers. Meanwhile further events are heard (pipelined), or those of the flow (blocking)
 * or of all flows of the NIC (serial) are ignored. What a flow starts with it has at once.
 */
#include <linux/slab.h>
#include "decisions.h"
#include "nic_queues.h"

static void put_into_effect(struct flow *flow, u64 rate_bps, u32 window_bytes)
{
	flow->rate_bps = rate_bps;
	flow->window_bytes = window_bytes;
}

static u64 *busy_until_ns(struct flow *flow)
{
	return cl_roce.decisions == SERIAL ? &flow->nic->busy_until_ns : &flow->busy_until_ns;
}

bool cl_decisions_hear(struct flow *flow, u32 event, u64 now_ns)
{
	return !cl_roce.decision_latency_ns || cl_roce.decisions == PIPELINED || event == CL_START ||
	       event == CL_SETTLE || event == CL_CHANGED || now_ns >= *busy_until_ns(flow);
}

void cl_decisions_take(struct flow *flow, u64 rate_bps, u32 window_bytes)
{
	const struct cl_flow_state *state = &flow->state;
	struct nic *nic = flow->nic;
	struct decision *made;

	if (!cl_roce.decision_latency_ns || state->event == CL_START) {
		put_into_effect(flow, state->rate_bps, state->window_bytes);
		return;
	}
	if (state->rate_bps == rate_bps && state->window_bytes == window_bytes)
		return;
	made = kmalloc(sizeof(*made), GFP_ATOMIC);
	if (WARN_ON_ONCE(!made)) {
		put_into_effect(flow, state->rate_bps, state->window_bytes);
		return;
	}
	made->next = NULL;
	made->flow = flow;
	made->at_ns = state->now_ns + cl_roce.decision_latency_ns;
	made->rate_bps = state->rate_bps;
	made->window_bytes = state->window_bytes;
	*busy_until_ns(flow) = made->at_ns;
	if (nic->last_decision) {
		nic->last_decision->next = made;
	} else {
		nic->first_decision = made;
		cl_schedule(&nic->decided, max(made->at_ns, cl_now_ns()));
	}
	nic->last_decision = made;
}

bool cl_decision_takes_effect(struct nic *nic, u64 at_ps)
{
	struct decision *made = nic->first_decision;

	if (!made || made->at_ns * CL_PS_PER_NS > at_ps)
		return false;
	nic->first_decision = made->next;
	if (!made->next)
		nic->last_decision = NULL;
	put_into_effect(made->flow, made->rate_bps, made->window_bytes);
	cl_nic_wait(nic, made->flow, made->at_ns * CL_PS_PER_NS);
	kfree(made);
	return true;
}

void cl_decisions_end(struct nic *nic)
{
	cl_cancel(&nic->decided);
	while (cl_decision_takes_effect(nic, U64_MAX))
		;
}
