// SPDX-License-Identifier: GPL-2.0-only
/* Queue pairs: what the sender and the receiver of a flow do with its packets.
 *
 * The receiver acknowledges every so many packets, asks for what is missing (go-back-N), and
 * answers marked packets with CNPs. The policy hears of each event and gives the rate.
 */
#include <net/inet_ecn.h>
#include "roce.h"

static void tell(struct flow *flow, u32 event, u64 now_ns, u32 bytes)
{
	struct cl_flow_state *state = &flow->state;

	state->now_ns = now_ns;
	state->event = event;
	state->bytes = bytes;
	cl_roce.policy->happen(state, cl_roce.parameters);
	state->rate_bps = clamp(state->rate_bps, 1000000ULL, state->line_bps);
}

static void answer(struct nic *nic, struct flow *flow, enum opcode opcode, u32 psn, u8 syndrome,
		   u64 now_ns)
{
	struct sk_buff *skb = cl_answer_packet(flow, opcode, psn, syndrome);

	if (skb)
		cl_nic_control(nic, skb, now_ns);
}

bool cl_flow_may_send(const struct flow *flow)
{
	return flow->next < flow->packets &&
	       (!cl_roce.window_bytes ||
		(u64)(flow->next - flow->acked) * cl_roce.payload_bytes < cl_roce.window_bytes);
}

void cl_flow_begin(struct flow *flow)
{
	tell(flow, CL_START, flow->posted.start_ns, 0);
}

/* Return the flow's next packet, of which the first bit is sent at `at_ns`. */
struct sk_buff *cl_flow_send(struct flow *flow, u64 at_ns)
{
	u32 psn = flow->next;
	bool ask = psn == flow->packets - 1 || (psn + 1) % cl_roce.ack_every == 0;
	struct sk_buff *skb = cl_data_packet(flow, psn, ask);

	if (!skb)
		return NULL;
	if (ask && !flow->timed_ns) {
		flow->timed_ns = at_ns;
		flow->timed_packet = psn;
	}
	if (!flow->result.sent_ns)
		flow->result.sent_ns = at_ns;
	flow->result.packets++;
	flow->next++;
	tell(flow, CL_TX, at_ns, skb->len);
	return skb;
}

/* Without progress for the timeout, go back to what is not acknowledged. */
void cl_flow_time_out(struct flow *flow, u64 now_ns)
{
	if (flow->next == flow->acked || flow->sending)
		return;
	flow->result.timeouts++;
	flow->result.resent += flow->next - flow->acked;
	flow->next = flow->acked;
	flow->timed_ns = 0;
	tell(flow, CL_TIMEOUT, now_ns, 0);
	cl_nic_wait(flow->nic, flow, now_ns * CL_PS_PER_NS);
}

/* The whole number of a packet of which the header has 24 bits, near `about`. */
static u32 whole_psn(u32 about, u32 psn)
{
	s32 ahead = (s32)((psn - about) << 8) >> 8;

	return about + ahead;
}

static void acknowledged(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	u32 psn = whole_psn(flow->acked, ntohl(h->bth.psn) & PSN_MASK);
	bool again = ntohl(h->aeth) >> 24 == AETH_NAK_SEQUENCE;
	u32 up_to = again ? psn : psn + 1, newly = up_to - flow->acked;

	if (flow->result.done_ns || up_to > flow->packets)
		return;
	if (up_to > flow->acked) {
		flow->acked = up_to;
		cl_nic_progress(nic, flow, now_ns);
	} else {
		newly = 0;
	}
	flow->state.rtt_ns = 0;
	if (again) {
		flow->result.naks++;
		if (flow->next > psn) {
			flow->result.resent += flow->next - psn;
			flow->next = max(psn, flow->acked);
		}
		flow->timed_ns = 0;
		tell(flow, CL_NACK, now_ns, newly * cl_roce.payload_bytes);
	} else {
		if (flow->timed_ns && psn >= flow->timed_packet) {
			if (psn == flow->timed_packet)
				flow->state.rtt_ns = now_ns - flow->timed_ns;
			flow->timed_ns = 0;
		}
		if (flow->next < flow->acked)
			flow->next = flow->acked;
		tell(flow, CL_ACK, now_ns, newly * cl_roce.payload_bytes);
	}
	if (flow->acked == flow->packets) {
		flow->result.done_ns = now_ns;
		list_del(&flow->unfinished);
	} else {
		cl_nic_wait(nic, flow, now_ns * CL_PS_PER_NS);
	}
}

static void received(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	u32 psn = whole_psn(flow->expected, ntohl(h->bth.psn) & PSN_MASK);
	bool ask = ntohl(h->bth.psn) >> 31;

	if (INET_ECN_is_ce(h->ip.tos)) {
		flow->result.marked++;
		if (!flow->cnp_ns || now_ns - flow->cnp_ns >= cl_roce.cnp_interval_ns) {
			flow->cnp_ns = now_ns;
			answer(nic, flow, CNP, 0, 0, now_ns);
		}
	}
	if (psn == flow->expected) {
		flow->expected++;
		flow->asked_again = false;
		if (flow->expected == flow->packets) {
			/* its last bit comes as long after its first as the line takes for it */
			flow->result.received_ns = now_ns;
			cl_roce.received++;
		}
		if (ask)
			answer(nic, flow, ACKNOWLEDGE, psn, AETH_ACK, now_ns);
	} else if ((s32)(psn - flow->expected) > 0) {
		if (!flow->asked_again)
			answer(nic, flow, ACKNOWLEDGE, flow->expected, AETH_NAK_SEQUENCE, now_ns);
		flow->asked_again = true;
	} else if (ask) {
		answer(nic, flow, ACKNOWLEDGE, flow->expected - 1, AETH_ACK, now_ns);
	}
}

void cl_flow_receive(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	if (h->bth.opcode == CNP) {
		flow->result.cnps++;
		tell(flow, CL_CNP, now_ns, 0);
	} else if (h->bth.opcode == ACKNOWLEDGE) {
		acknowledged(nic, flow, h, now_ns);
	} else {
		received(nic, flow, h, now_ns);
	}
}
