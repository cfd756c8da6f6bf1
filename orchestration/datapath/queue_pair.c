// SPDX-License-Identifier: GPL-2.0-only
/* Queue pairs: what the sender and the receiver of a flow do with its packets.
 *
 * The receiver acknowledges every so many packets, asks for what is missing, and answers marked
 * packets with CNPs. It drops what comes out of order (go-back-N) or holds it (selective repeat).
 * The policy hears of each event and gives the rate.
 */
#include <linux/bitmap.h>
#include <net/inet_ecn.h>
#include "decisions.h"
#include "nic_queues.h"
#include "queue_pair.h"

void cl_flow_tell(struct flow *flow, u32 event, u64 now_ns, u32 bytes)
{
	struct cl_flow_state *state = &flow->state;
	u64 rate_bps = state->rate_bps;
	u32 window_bytes = state->window_bytes;

	if (!cl_decisions_hear(flow, event, now_ns))
		return;
	state->now_ns = now_ns;
	state->event = event;
	state->bytes = bytes;
	state->sent_bytes = (u64)flow->next * cl_roce.payload_bytes;
	state->acked_bytes = (u64)flow->acked * cl_roce.payload_bytes;
	cl_roce.policy->happen(state, flow->nic->parameters, cl_roce.hop);
	if (cl_roce.window_bytes &&
	    (!state->window_bytes || state->window_bytes > cl_roce.window_bytes))
		state->window_bytes = cl_roce.window_bytes;
	state->rate_bps = clamp(state->rate_bps, 1000000ULL, state->line_bps);
	cl_decisions_take(flow, rate_bps, window_bytes);
}

static void count_resent(struct flow *flow, u32 packets)
{
	flow->result.resent += packets;
	flow->nic->resent += packets;
}

static void measured(struct flow *flow, u64 rtt_ns)
{
	flow->result.rtt_ns = flow->state.rtt_ns = flow->nic->rtt_ns = rtt_ns;
	flow->result.rtt_sum_ns += rtt_ns;
	flow->result.rtts++;
}

static void answer(struct nic *nic, struct sk_buff *skb, u64 now_ns)
{
	if (skb)
		cl_nic_control(nic, skb, now_ns);
}

void cl_flow_begin(struct flow *flow)
{
	flow->probe_ns = flow->posted.start_ns;
	cl_flow_tell(flow, CL_START, flow->posted.start_ns, 0);
}

/* Let `resend` be the first from `first` on that is lost. */
static void find_lost(struct flow *flow, u32 first)
{
	flow->resend = find_next_zero_bit(flow->known, flow->lost_end, max(first, flow->acked));
}

/* Return the flow's next packet, of which the first bit is sent at `at_ns`. */
struct sk_buff *cl_flow_send(struct flow *flow, u64 at_ns)
{
	bool again = cl_flow_has_lost(flow), ask;
	u32 psn = again ? flow->resend : flow->next;
	struct sk_buff *skb;

	/* at a low rate, data goes between two probes */
	if (cl_roce.probe_interval_ns && !flow->probed &&
	    at_ns - flow->probe_ns >= cl_roce.probe_interval_ns) {
		flow->probed = true;
		flow->probe_ns = at_ns;
		flow->result.probes++;
		return cl_probe_packet(flow, at_ns);
	}
	ask = psn == flow->packets - 1 || (psn + 1) % cl_roce.ack_every == 0;
	if (again) {
		find_lost(flow, psn + 1);
		ask |= !cl_flow_has_lost(flow);
	}
	/* a window that closes before anybody was asked would never open */
	flow->asked = min(flow->asked, psn);
	if (flow->window_bytes && flow->asked <= flow->acked &&
	    (u64)(psn + 1 - flow->acked) * cl_roce.payload_bytes >= flow->window_bytes)
		ask = true;
	skb = cl_data_packet(flow, psn, ask);
	if (!skb)
		return NULL;
	if (ask) {
		if (flow->asked <= flow->acked)
			flow->asked_ns = at_ns;
		flow->asked = psn + 1;
	}
	flow->probed = false;
	if (again) {
		count_resent(flow, 1);
	} else {
		flow->next++;
		if (ask && flow->timed_end - flow->timed_first < MOST_TIMED) {
			u32 place = flow->timed_end++ % MOST_TIMED;

			flow->timed[place].at_ns = at_ns;
			flow->timed[place].psn = psn;
		}
	}
	if (!flow->result.sent_ns)
		flow->result.sent_ns = at_ns;
	flow->result.packets++;
	cl_flow_tell(flow, CL_TX, at_ns, skb->len);
	return skb;
}

/* Whether what a flow is about to send may yet bring an acknowledgement. With go-back-N it does not
 * if one that was asked for the timeout ago has not come: a receiver asks once for what is lost, and
 * that may have been lost again. Selective repeat knows what it has sent again.
 */
static bool may_be_answered(const struct flow *flow, u64 now_ns)
{
	if (!flow->sending)
		return false;
	if (cl_roce.selective)
		return cl_flow_has_lost(flow) || flow->acked >= flow->lost_end;
	return flow->asked <= flow->acked || flow->asked_ns + cl_roce.timeout_ns > now_ns;
}

/* Without progress for the timeout, all that the receiver is not known to have is lost. */
void cl_flow_time_out(struct flow *flow, u64 now_ns)
{
	if (flow->next == flow->acked || may_be_answered(flow, now_ns))
		return;
	flow->result.timeouts++;
	flow->nic->timeouts++;
	if (cl_roce.selective) {
		flow->lost_end = flow->next;
		find_lost(flow, flow->acked);
	} else {
		count_resent(flow, flow->next - flow->acked);
		flow->next = flow->acked;
	}
	flow->timed_first = flow->timed_end;
	cl_flow_tell(flow, CL_TIMEOUT, now_ns, 0);
	cl_nic_wait(flow->nic, flow, now_ns * CL_PS_PER_NS);
}

/* The whole number of a packet of which the header has 24 bits, near `about`. */
static u32 whole_psn(u32 about, u32 psn)
{
	s32 ahead = (s32)((psn - about) << 8) >> 8;

	return about + ahead;
}

/* Take what a NAK says of the packet that made it; return whether that tells of a new loss. A packet
 * is missing if a later one arrived (Mittal et al., section 3.1), and sent again once: if that is lost
 * too, the timeout sends it again.
 */
static bool take_selective(struct flow *flow, u32 arrived)
{
	u32 before = max(flow->lost_end, flow->acked);
	bool news = false;

	if (arrived >= flow->acked && arrived < flow->next) {
		__set_bit(arrived, flow->known);
		if (arrived > before) {
			news = find_next_zero_bit(flow->known, arrived, before) < arrived;
			flow->lost_end = arrived;
		}
	}
	find_lost(flow, flow->resend);
	return news;
}

/* Let the flow's round trip be that of packet `psn`, if that was timed. */
static void time_round_trip(struct flow *flow, u32 psn, u64 now_ns)
{
	for (; flow->timed_first != flow->timed_end; flow->timed_first++) {
		u32 place = flow->timed_first % MOST_TIMED;

		if (flow->timed[place].psn > psn)
			return;
		if (flow->timed[place].psn == psn)
			measured(flow, now_ns - flow->timed[place].at_ns);
	}
}

static void acknowledged(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	u32 psn = whole_psn(flow->acked, ntohl(h->bth.psn) & PSN_MASK);
	bool nak = ntohl(h->aeth) >> 24 == AETH_NAK_SEQUENCE, loss = nak;
	u32 up_to = nak ? psn : psn + 1, newly = up_to - flow->acked;

	if (flow->result.done_ns || up_to > flow->packets)
		return;
	if (up_to > flow->acked) {
		flow->acked = up_to;
		cl_nic_progress(nic, flow, now_ns);
	} else {
		newly = 0;
	}
	flow->state.rtt_ns = 0;
	flow->state.switches = 64 - h->ip.ttl;
	flow->state.hops = 0;
	if (cl_telemetry && !nak)
		flow->state.hops = cl_telemetry_read((const void *)h + ACK_HEADER_BYTES, cl_roce.hop);
	if (nak) {
		flow->result.naks++;
		if (cl_roce.selective) {
			loss = take_selective(flow, whole_psn(psn, ntohl(h->arrived)));
		} else if (flow->next > psn) {
			count_resent(flow, flow->next - psn);
			flow->next = max(psn, flow->acked);
		}
		flow->timed_first = flow->timed_end;
	} else {
		time_round_trip(flow, psn, now_ns);
		if (flow->next < flow->acked)
			flow->next = flow->acked;
		if (cl_flow_has_lost(flow))
			find_lost(flow, flow->resend);
	}
	cl_flow_tell(flow, loss ? CL_NACK : CL_ACK, now_ns, newly * cl_roce.payload_bytes);
	if (flow->acked == flow->packets) {
		flow->result.done_ns = now_ns;
		list_del(&flow->unfinished);
		if (++cl_roce.done == cl_roce.count)
			cl_roce.ended = true;
	} else {
		cl_nic_wait(nic, flow, now_ns * CL_PS_PER_NS);
	}
}

/* Take the packet that is expected, and with it what is held behind it. */
static void take_expected(struct flow *flow, u64 now_ns)
{
	flow->expected++;
	flow->asked_again = false;
	if (flow->expected < flow->held_end)
		flow->expected = find_next_zero_bit(flow->held, flow->held_end, flow->expected);
	if (flow->expected == flow->packets) {
		/* its last bit comes as long after its first as the line takes for it */
		flow->result.received_ns = now_ns;
		cl_roce.received++;
	}
}

static void received(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	u32 psn = whole_psn(flow->expected, ntohl(h->bth.psn) & PSN_MASK);
	bool ask = ntohl(h->bth.psn) >> 31;

	if (psn >= flow->packets)
		return;
	nic->received_packets++;
	nic->out_of_order_packets += psn > flow->expected;
	if (INET_ECN_is_ce(h->ip.tos)) {
		flow->result.marked++;
		if (!flow->cnp_ns || now_ns - flow->cnp_ns >= nic->cnp_interval_ns) {
			flow->cnp_ns = now_ns;
			answer(nic, cl_cnp_packet(flow), now_ns);
		}
	}
	if (psn > flow->expected) {
		if (cl_roce.selective) {
			__set_bit(psn, flow->held);
			flow->held_end = max(flow->held_end, psn + 1);
		}
		if (cl_roce.selective || !flow->asked_again)
			answer(nic, cl_nak_packet(flow, psn), now_ns);
		flow->asked_again = true;
		return;
	}
	/* the sender waits for news of what it sent again */
	ask |= flow->held_end > flow->expected;
	if (psn == flow->expected)
		take_expected(flow, now_ns);
	if (ask)
		answer(nic, cl_ack_packet(flow, cl_telemetry ? (const void *)h + DATA_HEADER_BYTES :
						   NULL), now_ns);
}

void cl_flow_receive(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns)
{
	switch (h->bth.opcode) {
	case CNP:
		flow->result.cnps++;
		flow->nic->cnps++;
		cl_flow_tell(flow, CL_CNP, now_ns, 0);
		break;
	case ACKNOWLEDGE:
		acknowledged(nic, flow, h, now_ns);
		break;
	case PROBE:
		answer(nic, cl_probe_answer_packet(flow, h->probe_ns), now_ns);
		break;
	case PROBE_ANSWER:
		measured(flow, now_ns - be64_to_cpu(h->probe_ns));
		cl_flow_tell(flow, CL_RTT, now_ns, 0);
		break;
	default:
		received(nic, flow, h, now_ns);
	}
}
