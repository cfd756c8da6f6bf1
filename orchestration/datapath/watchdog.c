// SPDX-License-Identifier: GPL-2.0-only
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
 * sends.
 */
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "watchdog.h"

#define MOST_INCIDENTS 256
#define MOST_STEPS 24

enum kind { DEADLOCK, STORM, CONGESTION, RESTORED };
enum action { ALERT, DROP, FORWARD };

/* What user space reads: the queues from the one that is stuck, each waiting for the next. */
struct incident {
	u64 at_ns;
	u32 kind;
	u32 count;
	u32 begin; /* of the circle, of a deadlock */
	u32 queue[MOST_STEPS];
	u32 unused;
};

static struct incident incidents[MOST_INCIDENTS];
static u32 found, traces;

/* Follow who waits for whom from a stopped queue. `incident` has the queues so far. */
static enum kind follow(struct cl_share *share, u32 klass, struct incident *incident)
{
	struct cl_share *in = cl_buffer_share(share->peer);
	u32 number = share->first_queue + klass, count;
	enum kind kind = CONGESTION;

	for (u32 i = 0; i < incident->count; i++)
		if (incident->queue[i] == number) {
			incident->begin = i;
			return DEADLOCK;
		}
	/* seen already from elsewhere, and no circle found */
	if (share->trace[klass] == traces || incident->count == MOST_STEPS)
		return CONGESTION;
	share->trace[klass] = traces;
	incident->queue[incident->count++] = number;
	if (!in)
		return STORM;
	if (!(in->stopping & BIT(klass)))
		return CONGESTION; /* what lets it go is on its way */
	count = incident->count;
	for (u32 i = 0; i < in->buffer->ports && kind == CONGESTION; i++) {
		struct cl_share *out = in->buffer->share[i];

		if (!out || !cl_class_stopped(out, klass) || !out->ops->holds(out, klass, in))
			continue;
		incident->count = count;
		kind = follow(out, klass, incident);
	}
	if (kind == CONGESTION)
		incident->count = count;
	return kind;
}

static void report(struct cl_share *share, u32 klass, bool restored, u64 now_ns)
{
	struct incident *incident = &incidents[found];

	if (found == MOST_INCIDENTS)
		return;
	incident->at_ns = now_ns;
	if (restored) {
		incident->kind = RESTORED;
		incident->queue[0] = share->first_queue + klass;
		incident->count = 1;
	} else {
		traces++;
		incident->kind = follow(share, klass, incident);
	}
	found++;
}

/* When a queue is next to be looked at, U64_MAX for never. */
static u64 look_ns(const struct cl_share *share, u32 klass, u64 now_ns)
{
	const struct cl_buffer_options *options = &share->buffer->options;
	u32 priority = options->priority[klass];

	if (share->stuck & BIT(klass))
		return max(now_ns + 1, share->pause.last_ns[priority] + options->restore_ns);
	if (!(share->pause.told & BIT(priority)))
		return U64_MAX;
	/* nothing was in the queue when it was last looked at: not before that time has passed again */
	return max(share->pause.since_ns[priority], share->looked_ns[klass]) + options->detect_ns;
}

void cl_watch(struct cl_share *share, u64 now_ns)
{
	u64 first_ns = U64_MAX;

	if (!share->buffer->options.detect_ns)
		return;
	for (u32 i = 0; i < share->classes; i++)
		first_ns = min(first_ns, look_ns(share, i, now_ns));
	if (first_ns == U64_MAX)
		cl_cancel(&share->watch);
	else
		cl_schedule(&share->watch, first_ns);
}

static void begin_of(struct cl_share *share, u32 klass, u64 now_ns)
{
	u32 action = share->buffer->options.action;

	report(share, klass, false, now_ns);
	share->stuck |= BIT(klass);
	if (action == ALERT)
		return;
	if (action == DROP) {
		share->discards |= BIT(klass);
		share->ops->discard(share, klass, now_ns);
	}
	share->pause.ignored |= cl_class_bit(share, klass);
}

static void end_of(struct cl_share *share, u32 klass, u64 now_ns)
{
	report(share, klass, true, now_ns);
	share->looked_ns[klass] = now_ns;
	share->stuck &= ~BIT(klass);
	share->discards &= ~BIT(klass);
	share->pause.ignored &= ~cl_class_bit(share, klass);
}

static void look(struct cl_event *event)
{
	struct cl_share *share = container_of(event, struct cl_share, watch);
	const struct cl_buffer_options *options = &share->buffer->options;
	u64 now_ns = cl_now_ns();

	share->pause.settle(&share->pause, now_ns);
	for (u32 i = 0; i < share->classes; i++) {
		u32 priority = options->priority[i];

		if (share->stuck & BIT(i)) {
			if (now_ns >= share->pause.last_ns[priority] + options->restore_ns)
				end_of(share, i, now_ns);
		} else if (look_ns(share, i, now_ns) <= now_ns) {
			if (share->ops->holds(share, i, NULL))
				begin_of(share, i, now_ns);
			else
				share->looked_ns[i] = now_ns;
		}
	}
	share->pause.obey(&share->pause, now_ns);
}

void cl_watch_init(struct cl_share *share)
{
	share->watch.happen = look;
}

/* /proc/closloop/incidents: what has been found so far. */
static ssize_t incidents_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	return simple_read_from_buffer(to, size, at, incidents, found * sizeof(*incidents));
}

static const struct proc_ops incidents_ops = {
	.proc_read = incidents_read,
	.proc_lseek = default_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/incidents", 0400, NULL, &incidents_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
