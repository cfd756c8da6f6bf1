/* Whether the algorithm "mine" leaves flows as the policy does, of the same model, for tests. */
#include <doca_pcc_dev.h>
#include "mine.h"
#include "mine_ctxt.h"
#include "policy.h"

#define RLCC_HISTORY (sizeof(((mine_ctxt_t *)0)->actions) / sizeof(((mine_ctxt_t *)0)->actions[0]))
#define WINDOW 7 /* words of 32 bits before it in struct rlcc */

u64 disagreements(const struct cl_context *given, const struct cl_context *made, u64 count,
		  s32 least_action);

static mine_ctxt_t packed(const u64 *own, s32 least_action)
{
	const u32 *words = (const u32 *)own;
	mine_ctxt_t ctxt = { .share = words[2], .least_rtt_ns = words[4] };

	ctxt.actions[0] = (s32)words[6] - least_action;
	for (u32 i = 0; i + 1 < RLCC_HISTORY; i++) {
		ctxt.deltas_low[i] = words[WINDOW + 2 * i];
		ctxt.deltas_high[i] = (s32)words[WINDOW + 2 * i] >> 16;
		ctxt.actions[i + 1] = (s32)words[WINDOW + 2 * i + 1] - least_action;
	}
	return ctxt;
}

static int same(const mine_ctxt_t *one, const mine_ctxt_t *other)
{
	int equal = one->share == other->share && one->least_rtt_ns == other->least_rtt_ns;

	for (u32 i = 0; i < RLCC_HISTORY; i++)
		equal &= one->actions[i] == other->actions[i];
	for (u32 i = 0; i + 1 < RLCC_HISTORY; i++)
		equal &= one->deltas_low[i] == other->deltas_low[i] &&
			 one->deltas_high[i] == other->deltas_high[i];
	return equal;
}

/* Return how many of the flows `given` the algorithm does not leave as the policy has `made` them. */
u64 disagreements(const struct cl_context *given, const struct cl_context *made, u64 count,
		  s32 least_action)
{
	static const u32 kinds[] = {
		[CL_TX] = DOCA_PCC_DEV_EVNT_ROCE_TX,
		[CL_ACK] = DOCA_PCC_DEV_EVNT_RTT,
		[CL_NACK] = DOCA_PCC_DEV_EVNT_ROCE_NACK,
		[CL_CNP] = DOCA_PCC_DEV_EVNT_ROCE_CNP,
		[CL_RTT] = DOCA_PCC_DEV_EVNT_RTT,
	};
	u64 found = 0;

	for (u64 i = 0; i < count; i++) {
		const struct cl_flow_state *flow = &given[i].flow;
		mine_ctxt_t ctxt = packed(flow->own, least_action);
		mine_ctxt_t wanted = packed(made[i].flow.own, least_action);
		doca_pcc_dev_event_t event = {
			.attr = { .ev_type = kinds[flow->event],
				  .ev_subtype = DOCA_PCC_DEV_NACK_EVNT_OOS },
			.timestamp = flow->now_ns,
			.rtt_req_send_timestamp = flow->now_ns - flow->rtt_ns,
		};
		doca_pcc_dev_results_t results = { 0 };

		ctxt.probing = 1;
		ctxt.probe_sent_ns = event.rtt_req_send_timestamp;
		mine_algo(&event, (u32 *)given[i].parameters, 0, (doca_pcc_dev_algo_ctxt_t *)&ctxt,
			  &results);
		found += !same(&ctxt, &wanted) || results.rate != wanted.share >> 10;
	}
	return found;
}
