/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Queue pairs: what the sender and the receiver of a flow do with its packets.
 *
 * The receiver acknowledges every so many packets, asks for what is missing, and answers marked
 * packets with CNPs. It drops what comes out of order (go-back-N). The policy hears of each event and
 * gives the rate.
 */
#include "engine.h"
#include "lists.h"

#define MIN_RATE_BPS 1000000ULL

static void tell(struct cl_engine *e, struct sender *s, u32 event, u64 now_ns, u32 bytes)
{
	struct cl_flow_state *state = &s->state;

	state->now_ns = now_ns;
	state->event = event;
	state->bytes = bytes;
	state->sent_bytes = (u64)s->next * e->nics.payload_bytes;
	state->acked_bytes = (u64)s->acked * e->nics.payload_bytes;
	e->policy->happen(state, e->nic[s->nic].parameters, NULL);
	if (e->nics.window_bytes &&
	    (!state->window_bytes || state->window_bytes > e->nics.window_bytes))
		state->window_bytes = e->nics.window_bytes;
	if (state->rate_bps > state->line_bps)
		state->rate_bps = state->line_bps;
	if (state->rate_bps < MIN_RATE_BPS)
		state->rate_bps = MIN_RATE_BPS;
}

static inline bool may_send(const struct cl_engine *e, const struct sender *s)
{
	return s->next < s->packets &&
	       (!s->state.window_bytes ||
		(u64)(s->next - s->acked) * e->nics.payload_bytes < s->state.window_bytes);
}

static u32 data_bytes(const struct cl_engine *e, const struct sender *s, u32 psn)
{
	u32 bytes = e->nics.payload_bytes;

	if (psn == s->packets - 1)
		bytes = s->bytes - (u64)psn * bytes;
	return CL_DATA_BYTES + ((bytes + 3) & ~3U);
}

/* Write the flow's next packet, of which the first bit is sent at `at_ns`. */
static void next_data(struct cl_engine *e, u32 flow, u64 at_ns, struct packet *p)
{
	struct sender *s = &e->sender[flow];
	u32 psn = s->next, bytes = data_bytes(e, s, psn);
	bool ask = psn == s->packets - 1 || (psn + 1) % e->nics.ack_every == 0;

	/* a window that closes before anybody was asked would never open */
	s->asked = min32(s->asked, psn);
	if (s->state.window_bytes && s->asked <= s->acked &&
	    (u64)(psn + 1 - s->acked) * e->nics.payload_bytes >= s->state.window_bytes)
		ask = true;
	*p = (struct packet){ .flow = flow, .psn = psn, .bytes = bytes, .kind = DATA, .asks = ask,
		.ect = s->ecn, .klass = s->klass };
	s->next++;
	if (ask) {
		if (s->asked <= s->acked)
			s->asked_ns = at_ns;
		s->asked = psn + 1;
		if (s->timed_end - s->timed_first < MAX_TIMED) {
			u32 place = s->timed_end++ % MAX_TIMED;

			s->timed[place].at_ns = at_ns;
			s->timed[place].psn = psn;
		}
	}
	if (unlikely(!s->has_sent)) {
		s->has_sent = true;
		s->result.sent_ns = at_ns;
	}
	s->sent_packets++;
	e->counts.data_sent++;
	tell(e, s, CL_TX, at_ns, bytes);
}

static void count_resent(struct cl_engine *e, struct sender *s, u32 packets)
{
	s->result.resent += packets;
	e->nic[s->nic].resent += packets;
}

/* Whether what a flow is about to send may yet bring an acknowledgement. It does not if one that was
 * asked for the timeout ago has not come: a receiver asks once for what is lost, and that may have
 * been lost again.
 */
static bool may_be_answered(const struct cl_engine *e, const struct sender *s, u64 now_ns)
{
	return s->waiting && (s->asked <= s->acked || s->asked_ns + e->nics.timeout_ns > now_ns);
}

/* Without progress for the timeout, all that the receiver is not known to have is lost. */
static void time_out(struct cl_engine *e, u32 flow, u64 now_ns)
{
	struct sender *s = &e->sender[flow];

	if (s->next == s->acked || may_be_answered(e, s, now_ns))
		return;
	s->result.timeouts++;
	e->nic[s->nic].timeouts++;
	count_resent(e, s, s->next - s->acked);
	s->next = s->acked;
	s->timed_first = s->timed_end;
	tell(e, s, CL_TIMEOUT, now_ns, 0);
	wait_for_turn(e, flow, now_ns * CL_PS_PER_NS);
}

/* Let the flow's round trip be that of packet `psn`, if that was timed. */
static void time_round_trip(struct cl_engine *e, struct sender *s, u32 psn, u64 now_ns)
{
	for (; s->timed_first != s->timed_end; s->timed_first++) {
		u32 place = s->timed_first % MAX_TIMED;
		u64 rtt_ns;

		if (s->timed[place].psn > psn)
			return;
		if (s->timed[place].psn != psn)
			continue;
		rtt_ns = now_ns - s->timed[place].at_ns;
		s->result.rtt_ns = s->state.rtt_ns = e->nic[s->nic].rtt_ns = rtt_ns;
		s->result.rtt_sum_ns += rtt_ns;
		s->result.rtts++;
	}
}

static void take_answer(struct cl_engine *e, struct nic *n, const struct packet *p, u64 now_ns)
{
	struct sender *s = &e->sender[p->flow];
	bool nak = cl_kind(p) == NAK;
	u32 psn = cl_psn(p, s->acked), up_to = nak ? psn : psn + 1, newly = up_to - s->acked;

	if (s->result.done_ns != CL_NEVER)
		return;
	if (up_to > s->acked) {
		s->acked = up_to;
		s->progress_ns = now_ns;
	} else {
		newly = 0;
	}
	s->state.rtt_ns = 0;
	s->state.switches = cl_switches(p);
	if (nak) {
		s->result.naks++;
		if (s->next > psn) {
			count_resent(e, s, s->next - psn);
			s->next = psn > s->acked ? psn : s->acked;
		}
		s->timed_first = s->timed_end;
	} else {
		time_round_trip(e, s, psn, now_ns);
	}
	/* a NAK that comes after a timeout may acknowledge more than has been sent again */
	if (s->next < s->acked)
		s->next = s->acked;
	tell(e, s, nak ? CL_NACK : CL_ACK, now_ns, newly * e->nics.payload_bytes);
	if (s->acked == s->packets) {
		s->result.done_ns = now_ns;
		leave_unfinished(e, n, p->flow);
		e->counts.flows_done++;
	} else {
		wait_for_turn(e, p->flow, now_ns * CL_PS_PER_NS);
	}
}

static void answer(struct cl_engine *e, struct nic *n, const struct receiver *r, u32 flow, u32 psn,
		   u32 bytes, enum kind kind, u64 now_ns)
{
	add_control(e, n, &(struct packet){ .at_ns = now_ns, .flow = flow, .psn = psn,
		.bytes = bytes, .kind = kind, .klass = r->klass });
}

static void take_data(struct cl_engine *e, struct nic *n, const struct packet *p, u64 now_ns)
{
	struct receiver *r = &e->receiver[p->flow];
	u32 psn = cl_psn(p, r->expected);
	bool ask = cl_asks(p);

	e->counts.data_received++;
	n->received_packets++;
	n->out_of_order_packets += psn > r->expected;
	if (cl_is_marked(p)) {
		r->marked++;
		if (r->cnp_ns == CL_NEVER || now_ns - r->cnp_ns >= n->cnp_interval_ns) {
			r->cnp_ns = now_ns;
			answer(e, n, r, p->flow, 0, CL_CNP_BYTES, CNP, now_ns);
		}
	}
	if (psn > r->expected) {
		if (!r->asked_again)
			answer(e, n, r, p->flow, r->expected, CL_ACK_BYTES, NAK, now_ns);
		r->asked_again = true;
		return;
	}
	if (psn == r->expected) {
		r->asked_again = false;
		if (++r->expected == r->packets) {
			r->received_ns = now_ns;
			e->counts.flows_received++;
		}
	}
	if (ask)
		answer(e, n, r, p->flow, r->expected - 1, CL_ACK_BYTES, ACK, now_ns);
}

static void take_packet(struct cl_engine *e, struct nic *n, const struct packet *p, u64 now_ns)
{
	e->counts.bytes_received += cl_bytes(p);
	switch (cl_kind(p)) {
	case DATA:
		take_data(e, n, p, now_ns);
		break;
	case CNP:
		e->sender[p->flow].result.cnps++;
		n->cnps++;
		tell(e, &e->sender[p->flow], CL_CNP, now_ns, 0);
		break;
	default:
		take_answer(e, n, p, now_ns);
	}
}
