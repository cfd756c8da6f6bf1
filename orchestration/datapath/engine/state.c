/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is read and set between two windows. All ports are settled then. */
#include "engine.h"

/* The last nanosecond of which everything has happened. */
static u64 last_ns(const struct cl_engine *e)
{
	return e->now_ns ? e->now_ns - 1 : 0;
}

uint32_t cl_api_version(void)
{
	return CL_API_VERSION;
}

const struct cl_policy *cl_policy_named(const char *name)
{
	const struct cl_policy *const all[] = { &cl_policy_fixed, &cl_policy_dcqcn };

	for (u32 i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(all[i]->name, name))
			return all[i];
	return NULL;
}

const char *cl_engine_error(const struct cl_engine *e)
{
	return e->error;
}

uint64_t cl_engine_now(const struct cl_engine *e)
{
	return last_ns(e);
}

void cl_engine_queues(struct cl_engine *e, struct cl_queue_state *state)
{
	memset(state, 0, e->fabric.queues * sizeof(*state));
	for (u32 i = 0; i < e->ports * e->fabric.classes; i++)
		if (e->external_queue[i] != UINT32_MAX)
			state[e->external_queue[i]] = cl_queue_at(e, i)->state;
}

void cl_engine_pauses(struct cl_engine *e, struct cl_pause_state *state)
{
	u64 now_ns = last_ns(e);

	memset(state, 0, e->fabric.queues * sizeof(*state));
	for (u32 port = 0; e->share && port < e->ports; port++) {
		const struct share *share = &e->share[port];

		for (u32 i = 0; is_switch(e, port) && i < e->fabric.classes; i++) {
			u32 priority = cl_priority(e, i);
			bool stopping = share->stopping >> i & 1;

			state[e->first_queue[port] + i] = (struct cl_pause_state){
				.frames_received = share->pause.frames[priority],
				.paused_ns = paused_ns(&share->pause, priority, now_ns),
				.frames_sent = share->frames[i],
				.stopping_ns = share->stopping_ns[i] +
					       (stopping ? now_ns - share->since_ns[i] : 0),
				.held_bytes = *cl_held(e, port, i) + share->headroom_used[i],
				.headroom_bytes = share->headroom_used[i],
			};
		}
	}
}

void cl_engine_buffers(struct cl_engine *e, struct cl_buffer_state *state)
{
	for (u32 i = 0; i < e->switches; i++) {
		const struct fabric_switch *s = &e->fabric_switch[i];

		state[s->number] = (struct cl_buffer_state){
			.lossless_drops = s->lossless_drops,
			.used_bytes = s->used_bytes + s->headroom_used,
			.headroom_bytes = s->headroom_used,
		};
	}
}

void cl_engine_nics(struct cl_engine *e, struct cl_nic_state *state)
{
	for (u32 i = 0; i < e->nic_count; i++) {
		const struct nic *n = &e->nic[i];

		state[i] = (struct cl_nic_state){
			.cnps = n->cnps, .resent = n->resent, .rtt_ns = n->rtt_ns,
			.received_packets = n->received_packets,
			.out_of_order_packets = n->out_of_order_packets,
			.timeouts = n->timeouts, .port = n->external_port, .flows = n->flows,
		};
		for (u32 flow = n->unfinished; flow; flow = e->sender[flow - 1].after)
			state[i].rate_bps += e->sender[flow - 1].state.rate_bps;
	}
}

void cl_engine_flows(const struct cl_engine *e, struct cl_flow_result *result)
{
	for (u32 i = 0; i < e->flows; i++) {
		const struct sender *s = &e->sender[i];

		result[i] = s->result;
		result[i].received_ns = e->receiver[i].received_ns;
		result[i].marked = e->receiver[i].marked;
		result[i].packets = s->sent_packets;
		result[i].rate_bps = s->state.rate_bps;
		result[i].acked_bytes = min64((u64)s->acked * e->nics.payload_bytes, s->bytes);
	}
}

void cl_engine_counts(const struct cl_engine *e, struct cl_counts *counts)
{
	*counts = e->counts;
}

uint32_t cl_engine_incidents(const struct cl_engine *e, struct cl_incident *incident, uint32_t room)
{
	memcpy(incident, e->incidents.incident,
	       min32(room, e->incidents.count) * sizeof(*incident));
	return e->incidents.count;
}

static u64 fold(u64 digest, u64 value)
{
	return (digest ^ value) * 0x100000001b3ULL; /* FNV-1a, by words */
}

uint64_t cl_engine_digest(const struct cl_engine *e)
{
	u64 digest = 0xcbf29ce484222325ULL;

	for (u32 i = 0; i < e->ports * e->fabric.classes; i++) {
		const struct cl_queue_state *state = &cl_queue_at(e, i)->state;

		digest = fold(fold(digest, state->tx_bytes), state->tx_packets);
		digest = fold(fold(digest, state->marked_packets), state->dropped_packets);
		digest = fold(digest, state->backlog_bytes);
	}
	for (u32 i = 0; i < e->ports; i++)
		digest = fold(digest, e->out[i].stream);
	for (u32 i = 0; i < e->flows; i++) {
		digest = fold(fold(digest, e->receiver[i].received_ns), e->sender[i].result.done_ns);
		digest = fold(fold(digest, e->sender[i].state.rate_bps), e->sender[i].next);
	}
	return digest;
}

int cl_engine_set_thresholds(struct cl_engine *e, uint32_t count, const uint32_t *queue,
			     const uint32_t *kmin_bytes, const uint32_t *kmax_bytes,
			     const uint32_t *max_p)
{
	for (u32 i = 0; i < count; i++)
		if (queue[i] >= e->fabric.queues || e->internal_queue[queue[i]] == UINT32_MAX ||
		    kmin_bytes[i] > kmax_bytes[i])
			return -1;
	for (u32 i = 0; i < count; i++) {
		struct cl_queue_state *state = &cl_queue_at(e, e->internal_queue[queue[i]])->state;

		state->kmin_bytes = kmin_bytes[i];
		state->kmax_bytes = kmax_bytes[i];
		state->max_p = max_p[i];
	}
	return 0;
}

static struct nic *nic_at(const struct cl_engine *e, u32 external_port)
{
	u32 port = external_port < e->ports ? e->internal[external_port] : 0;

	return external_port < e->ports && e->nic_of[port] != UINT32_MAX ?
		&e->nic[e->nic_of[port]] : NULL;
}

static void tell_unfinished(struct cl_engine *e, const struct nic *n, u32 event, u64 now_ns)
{
	for (u32 flow = n->unfinished; flow; flow = e->sender[flow - 1].after)
		tell(e, &e->sender[flow - 1], event, now_ns, 0);
}

int cl_engine_set_parameters(struct cl_engine *e, uint32_t count, const uint32_t *port,
			     const uint32_t *parameters, const uint64_t *cnp_interval_ns)
{
	for (u32 i = 0; i < count; i++)
		if (!nic_at(e, port[i]))
			return -1;
	for (u32 i = 0; i < count; i++) {
		struct nic *n = nic_at(e, port[i]);

		if (e->policy)
			tell_unfinished(e, n, CL_SETTLE, last_ns(e));
		memcpy(n->parameters, &parameters[i * CL_PARAMETERS], sizeof(n->parameters));
		n->cnp_interval_ns = cnp_interval_ns[i];
		n->has_own = true;
		if (e->policy)
			tell_unfinished(e, n, CL_CHANGED, last_ns(e));
	}
	return 0;
}

int cl_engine_get_parameters(const struct cl_engine *e, uint32_t count, const uint32_t *port,
			     uint32_t *parameters, uint64_t *cnp_interval_ns)
{
	for (u32 i = 0; i < count; i++) {
		const struct nic *n = nic_at(e, port[i]);

		if (!n)
			return -1;
		memcpy(&parameters[i * CL_PARAMETERS], n->parameters, sizeof(n->parameters));
		cnp_interval_ns[i] = n->cnp_interval_ns;
	}
	return 0;
}
