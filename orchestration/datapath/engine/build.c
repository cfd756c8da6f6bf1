/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* How an engine is made of arrays, given its flows, and taken away. */
#include <sys/mman.h>
#include "engine.h"
#include "lists.h"

#define MAX_SLOTS (1ULL << 28)
#define MIN_SLOTS (1ULL << 18)
#define LARGE_PAGE (2UL << 20)
#define MAX_DELAY_NS (1ULL << 30)

/* Large pages, where the system has them: what is touched is all over the memory. */
static void ask_large_pages(void *at, size_t bytes)
{
#ifdef MADV_HUGEPAGE
	madvise(at, bytes, MADV_HUGEPAGE);
#endif
	(void)at, (void)bytes;
}

/* Memory in whole cache lines, all 0. */
static void *zeros(size_t count, size_t bytes)
{
	size_t unit = count * bytes < LARGE_PAGE ? 2 * CL_LINE : LARGE_PAGE;
	size_t whole = (count * bytes / unit + 1) * unit;
	void *at = aligned_alloc(unit, whole);

	if (at && unit == LARGE_PAGE)
		ask_large_pages(at, whole);
	return at ? memset(at, 0, whole) : NULL;
}

/* Address space only: memory comes when it is touched. Where little is allowed, less is asked for. */
static bool reserve_arena(struct cl_engine *e)
{
	u64 slots = MAX_SLOTS;
	void *at;

	do {
		at = mmap(NULL, slots * sizeof(*e->arena), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	} while (at == MAP_FAILED && (slots /= 2) >= MIN_SLOTS);
	if (at == MAP_FAILED)
		return false;
	ask_large_pages(at, slots * sizeof(*e->arena));
	e->arena = at;
	e->arena_room = slots;
	e->arena_end = CHUNK; /* slot 0 is none */
	return true;
}

static const char *wrong_in_fabric(const struct cl_fabric *f)
{
	if (!f->devices || !f->ports || f->ports % 2 || f->ports > 1U << 26)
		return "a fabric needs devices, and cables with two ports";
	if (!f->classes || f->classes > CL_CLASSES)
		return "a port has 1 to 8 classes";
	for (u32 i = 0; i < f->classes; i++)
		if (f->classes > 1 && !f->quantum_bytes[i])
			return "a class needs a quantum of at least a byte";
	for (u32 i = 0; i < f->classes; i++)
		if (f->priority[i] > 7)
			return "a priority is a number up to 7";
	if (f->action > FORWARD)
		return "the watchdog says so, drops or forwards";
	return NULL;
}

static const char *wrong_in_ports(const struct cl_fabric *f, const struct cl_device *devices,
				  const struct cl_port *ports)
{
	for (u32 i = 0; i < f->ports; i++) {
		const struct cl_port *p = &ports[i];

		if (p->device >= f->devices || p->peer >= f->ports || p->peer == i ||
		    ports[p->peer].peer != i || ports[p->peer].device == p->device)
			return "a port needs a device, and a peer at another one";
		if (!p->rate_bps || p->rate_bps > CL_PS_PER_S * 8)
			return "a port needs a rate of up to 8 Tbit/s";
		if (!p->delay_ns || p->delay_ns > MAX_DELAY_NS)
			return "a cable has a delay of 1 ns to 1 s";
		if (devices[p->device].is_switch &&
		    (p->first_queue > f->queues || f->queues - p->first_queue < f->classes))
			return "a port's queues are not among the fabric's";
		if (!devices[p->device].is_switch && !devices[ports[p->peer].device].is_switch)
			return "a host needs a switch at the other end of its cable";
	}
	return NULL;
}

/* Number the ports device by device. */
static bool number_ports(struct cl_engine *e, const struct cl_device *devices,
			 const struct cl_port *ports)
{
	u32 *first = calloc(e->fabric.devices + 1, sizeof(u32)), most = 1;

	if (!first)
		return false;
	for (u32 i = 0; i < e->ports; i++)
		first[ports[i].device + 1]++;
	for (u32 i = 0; i < e->fabric.devices; i++) {
		if (devices[i].is_switch && first[i + 1] > most)
			most = first[i + 1];
		e->node[i] = devices[i].is_switch ? e->switches++ : UINT32_MAX;
		first[i + 1] += first[i];
	}
	if (most > CL_MAX_PORTS)
		fail(e, "a switch has at most 1,024 ports");
	while (1U << e->route_bits < most)
		e->route_bits++;
	e->words = (most + 63) / 64;
	for (u32 i = 0; i < e->ports; i++) {
		u32 port = first[ports[i].device]++;

		e->internal[i] = port;
		e->external[port] = i;
		e->owner[port] = ports[i].device;
		e->rate_bps[port] = ports[i].rate_bps;
		e->address[port] = ports[i].address;
		e->nic_of[port] = devices[ports[i].device].is_switch ? UINT32_MAX : e->nic_count++;
	}
	/* NICs are in the order of api.h's ports */
	e->nic_count = 0;
	for (u32 i = 0; i < e->ports; i++) {
		u32 port = e->internal[i];

		e->peer[port] = e->internal[ports[i].peer];
		if (e->nic_of[port] != UINT32_MAX)
			e->nic_of[port] = e->nic_count++;
	}
	free(first);
	return !e->error[0];
}

static void make_port(struct cl_engine *e, const struct cl_port *made, u32 port)
{
	struct out *o = &e->out[port];
	u32 there = e->peer[port], node = e->node[e->owner[there]];

	o->stream = made->seed;
	o->delay_ns = made->delay_ns;
	e->first_queue[port] = made->first_queue;
	o->peer_node = node == UINT32_MAX ? e->nic_of[there] : e->nic_count + node;
	if (8 * CL_PS_PER_S % made->rate_bps == 0 && 8 * CL_PS_PER_S / made->rate_bps <= UINT32_MAX)
		o->ps_per_byte = 8 * CL_PS_PER_S / made->rate_bps;
	o->tail = o->left = e->heads[there] = new_chunk(e);
	e->window_ns = min64(e->window_ns, made->delay_ns);
	if (e->share) {
		struct share *share = &e->share[port];
		u64 half_ns = quanta_ns(e->fabric.quanta, made->rate_bps) / 2;

		share->headroom_bytes = made->headroom_bytes;
		share->refresh_ns = half_ns ? half_ns : 1;
		share->refresh_at_ns = share->watch_ns = share->pause.run_out_ns = CL_NEVER;
	}
}

static void make_queues(struct cl_engine *e, u32 port, const u32 *limit_bytes)
{
	for (u32 i = 0; i < e->fabric.classes; i++) {
		u32 number = e->first_queue[port] + i;
		struct queue *q = cl_queue(e, &e->out[port], i);

		e->external_queue[port * e->fabric.classes + i] = number;
		e->internal_queue[number] = port * e->fabric.classes + i;
		q->head = q->tail = new_chunk(e);
		q->limit_bytes = limit_bytes[number];
		/* until a tuner sets thresholds, nothing is marked */
		q->state.kmin_bytes = q->state.kmax_bytes = UINT32_MAX;
	}
}

static void make_nic(struct cl_engine *e, u32 port)
{
	struct nic *n = &e->nic[e->nic_of[port]];

	n->port = port;
	n->external_port = e->external[port];
	n->line_bps = e->rate_bps[port];
	n->start_ps = n->timer_ns = n->patience_ns = n->pause.run_out_ns = CL_NEVER;
}

static void make_all(struct cl_engine *e, const struct cl_device *devices,
		     const struct cl_port *ports, const u32 *limit_bytes)
{
	for (u32 i = 0; i < e->fabric.devices; i++)
		if (devices[i].is_switch) {
			struct fabric_switch *s = &e->fabric_switch[e->node[i]];

			s->ecmp_seed = devices[i].ecmp_seed;
			s->number = devices[i].number;
			s->pool_bytes = devices[i].pool_bytes;
			s->timer_ns = CL_NEVER;
		}
	memset(e->external_queue, 0xff, (size_t)e->ports * e->fabric.classes * sizeof(u32));
	memset(e->internal_queue, 0xff, (size_t)e->fabric.queues * sizeof(u32));
	for (u32 port = 0; port < e->ports; port++) {
		make_port(e, &ports[e->external[port]], port);
		if (is_switch(e, port)) {
			struct fabric_switch *s = cl_switch_of(e, port);

			if (!s->ports++)
				s->first = port;
			make_queues(e, port, limit_bytes);
		} else {
			make_nic(e, port);
		}
	}
	for (u32 port = 0; port < e->ports; port++) {
		u32 there = e->peer[port];

		e->out[port].peer_bit = e->out[port].peer_node * e->words * 64 +
			(is_switch(e, there) ? there - cl_switch_of(e, there)->first : 0);
	}
	while ((e->window_ns - 1) >> e->wheel.shift >= WHEEL_SLOTS)
		e->wheel.shift++;
	for (u32 i = 0; i < CL_CLASSES; i++)
		e->class_bit[i] = 1 << (e->fabric.priority[i] & 7);
}

static bool give_memory(struct cl_engine *e)
{
	u32 ports = e->ports, devices = e->fabric.devices, *numbers;

	/* one piece for what is read when the fabric is made, and in cold paths */
	numbers = e->internal = zeros(7 * (size_t)ports + devices, sizeof(u32));
	e->rate_bps = zeros(ports, sizeof(u64));
	if (!numbers || !e->rate_bps || !reserve_arena(e))
		return false;
	e->external = numbers + ports;
	e->owner = numbers + 2 * (size_t)ports;
	e->peer = numbers + 3 * (size_t)ports;
	e->nic_of = numbers + 4 * (size_t)ports;
	e->address = numbers + 5 * (size_t)ports;
	e->first_queue = numbers + 6 * (size_t)ports;
	e->node = numbers + 7 * (size_t)ports;
	return true;
}

static bool give_more_memory(struct cl_engine *e)
{
	e->heads = zeros(e->ports, sizeof(u32));
	e->due_ns = zeros(e->nic_count + e->switches, sizeof(u64));
	e->coming = zeros((size_t)(e->nic_count + e->switches) * e->words, sizeof(u64));
	e->out = zeros(e->ports, sizeof(*e->out));
	e->more_queues = zeros((size_t)e->ports * (e->fabric.classes - 1), sizeof(*e->more_queues));
	e->external_queue = zeros((size_t)e->ports * e->fabric.classes, sizeof(u32));
	e->internal_queue = zeros(e->fabric.queues, sizeof(u32));
	e->fabric_switch = zeros(e->switches, sizeof(*e->fabric_switch));
	e->nic = zeros(e->nic_count, sizeof(*e->nic));
	if (e->fabric.shared_buffer) {
		e->share = zeros(e->ports, sizeof(*e->share));
		e->held_bytes = zeros((size_t)e->ports * e->fabric.classes, sizeof(u32));
	}
	return e->external_queue && e->internal_queue && e->heads && e->due_ns && e->coming &&
	       e->out && e->more_queues && e->fabric_switch && e->nic &&
	       ((e->share && e->held_bytes) || !e->fabric.shared_buffer) && grow_wheel(e);
}

struct cl_engine *cl_engine_new(const struct cl_fabric *fabric, const struct cl_device *devices,
				const struct cl_port *ports, const uint32_t *limit_bytes,
				char *error)
{
	const char *wrong = wrong_in_fabric(fabric);
	struct cl_engine *e;

	if (!wrong)
		wrong = wrong_in_ports(fabric, devices, ports);
	if (wrong) {
		snprintf(error, CL_ERROR_BYTES, "%s", wrong);
		return NULL;
	}
	e = zeros(1, sizeof(*e));
	if (!e) {
		snprintf(error, CL_ERROR_BYTES, "no memory for an engine");
		return NULL;
	}
	e->fabric = *fabric;
	e->ports = fabric->ports;
	e->route_bits = 1;
	e->window_ns = MAX_DELAY_NS;
	e->watch_ns = CL_NEVER;
	e->times_ahead = fabric->classes == 1 && !fabric->marks_departures;
	if (!give_memory(e) || !number_ports(e, devices, ports) || !give_more_memory(e))
		fail(e, "no memory for so large a fabric");
	else
		make_all(e, devices, ports, limit_bytes);
	if (!e->error[0] && fabric->detect_ns &&
	    (fabric->detect_ns < e->window_ns || fabric->restore_ns < e->window_ns))
		fail(e, "the watchdog's times must be longer than the shortest delay");
	if (e->error[0]) {
		snprintf(error, CL_ERROR_BYTES, "%s", e->error);
		cl_engine_free(e);
		return NULL;
	}
	return e;
}

void cl_engine_free(struct cl_engine *e)
{
	if (!e)
		return;
	if (e->arena)
		munmap(e->arena, e->arena_room * sizeof(*e->arena));
	for (u32 i = 0; e->nic && i < e->nic_count; i++)
		for (u32 j = 0; j < CL_CLASSES; j++)
			free(e->nic[i].lane[j].heap.at);
	free(e->internal);
	free(e->rate_bps);
	free(e->external_queue);
	free(e->internal_queue);
	free(e->heads);
	free(e->due_ns);
	free(e->coming);
	free(e->out);
	free(e->more_queues);
	free(e->fabric_switch);
	free(e->share);
	free(e->held_bytes);
	free(e->nic);
	free(e->sender);
	free(e->receiver);
	free(e->posted);
	free(e->route);
	free(e->wheel.arrival);
	free(e->wheel.order);
	free(e);
}

static bool add_flow(struct cl_engine *e, const struct cl_flow *flow, u32 number)
{
	struct sender *s = &e->sender[number];
	struct receiver *r = &e->receiver[number];
	struct nic *from = nic_at(e, flow->src_port), *to = nic_at(e, flow->dst_port);

	if (!from || !to || from == to) {
		fail(e, "a flow goes from one host's port to another's");
		return false;
	}
	if (flow->klass >= e->fabric.classes ||
	    flow->bytes / e->nics.payload_bytes >= UINT32_MAX / 2) {
		fail(e, "a flow is too long, or of a class that the fabric does not have");
		return false;
	}
	s->bytes = flow->bytes;
	s->start_ns = flow->start_ns;
	s->packets = r->packets = flow->bytes ? (flow->bytes - 1) / e->nics.payload_bytes + 1 : 1;
	s->klass = r->klass = flow->klass;
	s->ecn = !!flow->is_ecn_capable;
	s->nic = from - e->nic;
	r->nic = to - e->nic;
	s->state.line_bps = s->state.rate_bps = from->line_bps;
	s->state.payload_bytes = e->nics.payload_bytes;
	s->result.sent_ns = s->result.done_ns = r->cnp_ns = r->received_ns = CL_NEVER;
	from->end++;
	return true;
}

int cl_engine_post(struct cl_engine *e, const struct cl_policy *policy, const struct cl_nics *nics,
		   const struct cl_flow *flows, uint32_t count)
{
	struct distances distances;
	u32 end = 0;

	if (e->policy || !policy || !nics->payload_bytes || nics->payload_bytes > 4096 ||
	    !nics->ack_every || !nics->timeout_ns) {
		fail(e, "flows are posted once, with a policy, a payload of up to 4,096 bytes, "
			"acknowledgements and a timeout");
		return -1;
	}
	e->policy = policy;
	e->nics = *nics;
	e->flows = count;
	e->sender = zeros(count, sizeof(*e->sender));
	e->receiver = zeros(count, sizeof(*e->receiver));
	e->posted = zeros(count, sizeof(u32));
	e->route = zeros(2 * (size_t)count, sizeof(u64));
	if (!e->sender || !e->receiver || !e->posted || !e->route || !measure_all(e, &distances)) {
		fail(e, "no memory for so many flows");
		return -1;
	}
	for (u32 i = 0; i < count && !e->error[0]; i++) {
		const struct cl_flow *flow = &flows[i];
		u32 src, dst;

		if (i && flow->start_ns < flows[i - 1].start_ns)
			fail(e, "flows are not ordered by their starts");
		if (!add_flow(e, flow, i))
			break;
		src = e->internal[flow->src_port];
		dst = e->internal[flow->dst_port];
		if (!find_route(e, &distances, src, dst, flow->udp_source, &e->route[2 * (size_t)i]) ||
		    !find_route(e, &distances, dst, src, flow->udp_source, &e->route[2 * (size_t)i + 1]))
			break;
	}
	forget_distances(&distances);
	for (u32 i = 0; i < e->nic_count; i++) {
		struct nic *n = &e->nic[i];

		n->begun = end;
		end += n->end;
		n->end = n->begun;
		e->due_ns[i] = 0;
		if (n->has_own)
			continue;
		memcpy(n->parameters, nics->parameters, sizeof(n->parameters));
		n->cnp_interval_ns = nics->cnp_interval_ns;
	}
	if (e->error[0])
		return -1;
	for (u32 i = 0; i < count; i++)
		e->posted[e->nic[e->sender[i].nic].end++] = i;
	for (u32 i = 0; i < e->nic_count; i++)
		look_ahead(e, &e->nic[i]);
	return 0;
}
