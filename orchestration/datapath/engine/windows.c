/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The whole fabric, window by window, without an event queue.
 *
 * A packet that begins to be sent in a window of time arrives a cable's delay later: in a later
 * window, if windows are as long as the shortest delay. So within a window nothing that one device
 * does matters to another one, and each takes what arrives at it, in the order of time, and works
 * out what it sends. Times are exact to the nanosecond; only the order in which devices are looked
 * at is ours. There is nothing to sort but what arrives at one device in one window, and the caches
 * see one device at a time. A window may end early, where somebody reads or the watchdog looks.
 */
#include "engine.h"
#include "lists.h"

static u64 first_due_ns(const struct cl_engine *e)
{
	u64 first_ns = CL_NEVER;

	for (u32 i = 0; i < e->nic_count + e->switches; i++)
		first_ns = min64(first_ns, e->due_ns[i]);
	return first_ns;
}

#ifdef CL_CHECK
/* What was sent has been received, has been dropped, or is in a list. */
static void add_list(const struct cl_engine *e, u32 slot, u64 *packets, u64 *bytes)
{
	for (; !cl_is_empty(e, slot); slot = cl_after(e, slot)) {
		*packets += cl_kind(&e->arena[slot]) == DATA;
		*bytes += cl_kind(&e->arena[slot]) == PAUSE ? 0 : cl_bytes(&e->arena[slot]);
	}
}

static void check_conservation(struct cl_engine *e)
{
	const struct cl_counts *c = &e->counts;
	u64 packets = 0, bytes = 0;

	for (u32 i = 0; i < e->ports; i++)
		add_list(e, e->heads[i], &packets, &bytes);
	for (u32 i = 0; i < e->ports * e->fabric.classes; i++) {
		u64 waiting = 0, unused = 0, before = bytes;

		if (e->external_queue[i] == UINT32_MAX)
			continue;
		add_list(e, cl_queue_at(e, i)->head, &packets, &bytes);
		if (!(i % e->fabric.classes)) /* what has its time is counted on the wire */
			add_list(e, e->out[i / e->fabric.classes].left, &unused, &waiting);
		if (bytes - before + waiting != cl_queue_at(e, i)->state.backlog_bytes)
			fail(e, "a queue counts other bytes than it has");
	}
	if (c->data_sent != c->data_received + c->data_dropped + packets)
		fail(e, "packets were lost or made on their way");
	if (c->bytes_sent != c->bytes_received + c->bytes_dropped + bytes)
		fail(e, "bytes were lost or made on their way");
	for (u32 i = 0; e->share && i < e->switches; i++) {
		const struct fabric_switch *s = &e->fabric_switch[i];
		u64 held = 0, waiting = 0;

		for (u32 port = s->first; port < s->first + s->ports; port++)
			for (u32 k = 0; k < e->fabric.classes; k++) {
				held += e->share[port].headroom_used[k];
				waiting += cl_queue(e, &e->out[port], k)->state.backlog_bytes;
			}
		if (held != s->headroom_used || waiting != s->used_bytes + s->headroom_used)
			fail(e, "a shared buffer counts other bytes than its queues have");
	}
}
#else
static void check_conservation(struct cl_engine *e)
{
	(void)e;
}
#endif

static int run_windows(struct cl_engine *e, u64 until_ns, u64 hops)
{
	u32 nodes = e->nic_count + e->switches;
	u64 enough = e->counts.hops + hops;

	while (e->now_ns <= until_ns && !e->error[0]) {
		u64 end_ns = min64(e->now_ns + e->window_ns, until_ns + 1);
		u32 visited = 0;

		if (e->counts.hops >= enough)
			return 0;
		/* to look at 32 nodes costs what a hop does, also where hardly anything happens */
		enough -= min64(enough, 1 + nodes / 32);
		end_ns = min64(end_ns, e->watch_ns + 1 ? e->watch_ns + 1 : CL_NEVER);
		for (u32 i = 0; i < e->nic_count; i++)
			if (e->due_ns[i] < end_ns) {
				if (e->nic_count > FEW_NICS)
					warm_nic(e, i);
				nic_window(e, i, end_ns);
				visited++;
			}
		for (u32 i = 0; i < e->switches; i++)
			if (e->due_ns[e->nic_count + i] < end_ns) {
				switch_window(e, i, end_ns);
				visited++;
			}
		check_conservation(e);
		if (unlikely(e->watch_ns < end_ns))
			look_at_all(e, e->watch_ns);
		e->now_ns = end_ns;
		if (!visited) /* nothing happens until somebody is due, or the watchdog is */
			e->now_ns = max64(end_ns, min64(until_ns + 1,
							min64(first_due_ns(e), e->watch_ns)));
	}
	return e->error[0] ? -1 : 1;
}

int cl_engine_run(struct cl_engine *e, uint64_t until_ns, uint64_t hops)
{
	int outcome = -1;

	e->is_running = true;
	if (!setjmp(e->stop))
		outcome = run_windows(e, until_ns, hops);
	e->is_running = false;
	return outcome;
}
