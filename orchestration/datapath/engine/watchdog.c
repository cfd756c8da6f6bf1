/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The watchdog of pauses: finds queues that were stopped for too long, and says who stops them.
 *
 * As SONiC's (sonic-net/SONiC, wiki "PFC Watchdog Design"): a queue that has packets, has been
 * stopped for the whole detection time and has sent nothing is stuck. Depending on the action, its
 * packets and those that come are dropped, or sent in spite of the pause, or it is only reported.
 * When no pause has come for the restoration time, it is as before.
 *
 * The reason is found from who waits for whom: the queue waits for the peer's ingress port, that
 * for the stopped queues in which its packets are, and so on. This ends in a circle, which is a
 * deadlock; at a host, whose NIC never has a reason, which is a storm of pauses; or at a queue that
 * sends. This needs the queues of other switches at one time, so a window ends where somebody is to
 * look: then all that happens by then has happened everywhere.
 */
#include "engine.h"

enum incident_kind { DEADLOCK, STORM, CONGESTION, RESTORED };
enum action { ALERT, DROP, FORWARD };

static bool holds(struct cl_engine *e, u32 port, u32 klass, u32 in);
static void discard(struct cl_engine *e, struct fabric_switch *s, u32 port, u32 klass, u64 now_ns);
static void settle(struct cl_engine *e, struct fabric_switch *s, struct out *o, u64 now_ns);

/* Follow who waits for whom from a stopped queue. `incident` has the queues so far. */
static enum incident_kind follow(struct cl_engine *e, u32 port, u32 klass,
				 struct cl_incident *incident)
{
	u32 in = e->peer[port], number = e->first_queue[port] + klass, count;
	struct share *share = &e->share[port];
	const struct fabric_switch *s;
	enum incident_kind kind = CONGESTION;

	for (u32 i = 0; i < incident->count; i++)
		if (incident->queue[i] == number) {
			incident->begin = i;
			return DEADLOCK;
		}
	/* seen already from elsewhere, and no circle found */
	if (share->trace[klass] == e->incidents.traces || incident->count == CL_INCIDENT_QUEUES)
		return CONGESTION;
	share->trace[klass] = e->incidents.traces;
	incident->queue[incident->count++] = number;
	if (e->node[e->owner[in]] == UINT32_MAX)
		return STORM;
	if (!(e->share[in].stopping >> klass & 1))
		return CONGESTION; /* what lets it go is on its way */
	count = incident->count;
	s = cl_switch_of(e, in);
	for (u32 out = s->first; out < s->first + s->ports && kind == CONGESTION; out++) {
		if (!(e->out[out].stopped >> klass & 1) || !holds(e, out, klass, in))
			continue;
		incident->count = count;
		kind = follow(e, out, klass, incident);
	}
	if (kind == CONGESTION)
		incident->count = count;
	return kind;
}

static void report(struct cl_engine *e, u32 port, u32 klass, bool restored, u64 now_ns)
{
	struct cl_incident *incident = &e->incidents.incident[e->incidents.count];

	if (e->incidents.count == MAX_INCIDENTS)
		return;
	incident->at_ns = now_ns;
	if (restored) {
		incident->kind = RESTORED;
		incident->queue[0] = e->first_queue[port] + klass;
		incident->count = 1;
	} else {
		e->incidents.traces++;
		incident->kind = follow(e, port, klass, incident);
	}
	e->incidents.count++;
}

/* When a queue is next to be looked at, CL_NEVER for never. */
static u64 look_ns(const struct cl_engine *e, const struct share *share, u32 klass, u64 now_ns)
{
	u32 priority = cl_priority(e, klass);

	if (share->stuck >> klass & 1)
		return max64(now_ns + 1, share->pause.last_ns[priority] + e->fabric.restore_ns);
	if (!(share->pause.paused >> priority & 1))
		return CL_NEVER;
	/* nothing was in the queue when it was last looked at: not before that time has passed again */
	return max64(share->pause.since_ns[priority], share->looked_ns[klass]) + e->fabric.detect_ns;
}

static void watch(struct cl_engine *e, u32 port, u64 now_ns)
{
	struct share *share = &e->share[port];

	share->watch_ns = CL_NEVER;
	if (!e->fabric.detect_ns)
		return;
	for (u32 i = 0; i < e->fabric.classes; i++)
		share->watch_ns = min64(share->watch_ns, look_ns(e, share, i, now_ns));
	e->watch_ns = min64(e->watch_ns, share->watch_ns);
}

static void begin_of(struct cl_engine *e, struct fabric_switch *s, u32 port, u32 klass, u64 now_ns)
{
	struct share *share = &e->share[port];

	report(e, port, klass, false, now_ns);
	share->stuck |= 1 << klass;
	if (e->fabric.action == ALERT)
		return;
	if (e->fabric.action == DROP) {
		e->out[port].discards |= 1 << klass;
		discard(e, s, port, klass, now_ns);
	}
	share->pause.ignored |= e->class_bit[klass];
}

static void end_of(struct cl_engine *e, u32 port, u32 klass, u64 now_ns)
{
	struct share *share = &e->share[port];

	report(e, port, klass, true, now_ns);
	share->looked_ns[klass] = now_ns;
	share->stuck &= ~(1 << klass);
	e->out[port].discards &= ~(1 << klass);
	share->pause.ignored &= ~e->class_bit[klass];
}

static void look(struct cl_engine *e, struct fabric_switch *s, u32 port, u64 now_ns)
{
	struct share *share = &e->share[port];

	settle(e, s, &e->out[port], now_ns);
	for (u32 i = 0; i < e->fabric.classes; i++) {
		if (share->stuck >> i & 1) {
			if (now_ns >= share->pause.last_ns[cl_priority(e, i)] + e->fabric.restore_ns)
				end_of(e, port, i, now_ns);
		} else if (look_ns(e, share, i, now_ns) <= now_ns) {
			if (holds(e, port, i, UINT32_MAX))
				begin_of(e, s, port, i, now_ns);
			else
				share->looked_ns[i] = now_ns;
		}
	}
	obey(e, s, port, now_ns);
}

/* All ports whose time it is, once all else of this nanosecond has happened. */
static void look_at_all(struct cl_engine *e, u64 now_ns)
{
	u64 first_ns = CL_NEVER;

	for (u32 i = 0; i < e->switches; i++) {
		struct fabric_switch *s = &e->fabric_switch[i];

		for (u32 port = s->first; port < s->first + s->ports; port++)
			if (e->share[port].watch_ns <= now_ns) {
				look(e, s, port, now_ns);
				e->due_ns[e->nic_count + i] = 0;
			}
		for (u32 port = s->first; port < s->first + s->ports; port++)
			first_ns = min64(first_ns, e->share[port].watch_ns);
	}
	e->watch_ns = first_ns;
}
