// SPDX-License-Identifier: GPL-2.0-only
/* /proc/closloop/samples: the fabric read at given times, by the engine itself.
 *
 * Writing a struct plan asks for readings; they are taken after all else that happens at their
 * times. Reading waits for the last of them and gives them all, each as `struct parts` lays it out.
 * Once all flows have ended, the next reading is the last: RoCE NICs know it themselves, a process
 * that sends flows writes one byte. Readings cost no process its turn, and shift nothing.
 */
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>
#include "buffer.h"
#include "flow_table.h"
#include "hosts.h"
#include "pairs.h"
#include "paths_proc.h"
#include "queues.h"
#include "roce_flows.h"

#define MOST_BYTES (16 << 20)

/* Who sends flows. */
#define CL_SENT_BY_PROCESS BIT(0)
#define CL_SENT_BY_NICS BIT(1)

struct plan {
	u64 first_ns, period_ns; /* of CLOCK_MONOTONIC */
	u32 readings;
	u32 senders; /* who sends flows, CL_SENT_BY_...; 0: the readings do not end with the flows */
	/* How many of each a reading has. With switches come the pauses of all queues. Hosts and
	 * NICs are read at each `hosts_every`th reading only, from `hosts_first` (0: the first) on.
	 */
	u32 queues, switches, hosts, nics;
	u32 hosts_first, hosts_every;
	u32 choosers, unused; /* switches that choose paths */
};

/* Where the parts of a reading are, in the order of its bytes. Before them is its time. Flows are
 * there if they are counted.
 */
struct parts {
	struct cl_queue_state *queues;
	struct cl_queue_flows *flows;
	struct cl_pause_state *pauses;
	struct cl_buffer_state *buffers;
	struct cl_paths_state *paths;
	struct cl_host_state *hosts;
	struct nic_state *nics;
	u64 *pairs; /* if they are counted */
};

static struct plan plan;
static u32 taken;
static bool process_ended;
static void *readings;
static size_t room_bytes;
static DECLARE_WAIT_QUEUE_HEAD(reader);

/* Lay out a reading that begins at `at`; return its size. */
static size_t lay_out(void *at, struct parts *parts)
{
	void *end = at + sizeof(u64);

	parts->queues = end;
	end = parts->queues + plan.queues;
	parts->flows = end;
	end = PTR_ALIGN((void *)(parts->flows + cl_flow_tables_queues()), sizeof(u64));
	parts->pauses = end;
	end = parts->pauses + (plan.switches ? plan.queues : 0);
	parts->buffers = end;
	end = parts->buffers + plan.switches;
	parts->paths = end;
	end = parts->paths + plan.choosers;
	parts->hosts = end;
	end = parts->hosts + plan.hosts;
	parts->nics = end;
	end = parts->nics + plan.nics;
	parts->pairs = PTR_ALIGN(end, sizeof(u64));
	return (void *)(parts->pairs + cl_pairs_count()) - at;
}

static size_t reading_bytes(void)
{
	struct parts unused;

	return lay_out(NULL, &unused);
}

static bool has_hosts(void)
{
	return taken >= plan.hosts_first && !((taken - plan.hosts_first) % plan.hosts_every);
}

/* If all flows have ended, the reading that is being taken is the last. */
static void end_if_all_have(void)
{
	u32 ended = (process_ended ? CL_SENT_BY_PROCESS : 0) | (cl_roce.ended ? CL_SENT_BY_NICS : 0);

	if (plan.senders && (ended & plan.senders) == plan.senders)
		plan.readings = min(plan.readings, taken + 1);
}

static void take(struct cl_event *event)
{
	u64 *reading = readings + taken * reading_bytes();
	struct parts parts;

	lay_out(reading, &parts);
	*reading = cl_now_ns();
	cl_queues_states(parts.queues, plan.queues);
	if (cl_flow_tables_queues())
		cl_flow_tables_read(parts.flows);
	cl_pairs_read(parts.pairs);
	if (plan.switches) {
		cl_pauses_states(parts.pauses, plan.queues);
		cl_buffers_states(parts.buffers, plan.switches);
	}
	for (u32 i = 0; i < plan.choosers; i++)
		cl_paths_state(i, &parts.paths[i]);
	if (has_hosts()) {
		for (u32 i = 0; i < plan.hosts; i++)
			cl_host_state(i, &parts.hosts[i]);
		for (u32 i = 0; i < plan.nics; i++)
			cl_nic_state(i, &parts.nics[i]);
	}
	end_if_all_have();
	if (++taken < plan.readings)
		cl_schedule_last(event, plan.first_ns + taken * plan.period_ns);
	else
		wake_up(&reader);
}

static struct cl_event next = { .happen = take };

static ssize_t samples_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	struct plan wanted;
	size_t bytes;

	if (size == 1) {
		process_ended = true;
		return size;
	}
	if (size != sizeof(wanted))
		return -EINVAL;
	if (copy_from_user(&wanted, from, sizeof(wanted)))
		return -EFAULT;
	if (taken < plan.readings)
		return -EBUSY;
	if (!wanted.readings || !wanted.hosts_every || wanted.queues > cl_queues_count() ||
	    wanted.switches > CL_MOST_SWITCHES || wanted.hosts > cl_hosts_count() ||
	    wanted.nics > cl_roce.nics || wanted.choosers > cl_paths_count())
		return -EINVAL;
	plan = wanted;
	taken = 0;
	bytes = array_size(plan.readings, reading_bytes());
	if (bytes > MOST_BYTES) {
		plan.readings = 0;
		return -E2BIG;
	}
	if (bytes > room_bytes) {
		vfree(readings);
		readings = vzalloc(bytes);
		room_bytes = readings ? bytes : 0;
		if (!readings) {
			plan.readings = 0;
			return -ENOMEM;
		}
	}
	local_bh_disable();
	cl_schedule_last(&next, plan.first_ns);
	local_bh_enable();
	return size;
}

static ssize_t samples_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	size_t bytes;
	int error = wait_event_killable(reader, taken >= plan.readings);

	if (error)
		return error;
	bytes = taken * reading_bytes();
	if (size < bytes)
		return -EINVAL;
	return copy_to_user(to, readings, bytes) ? -EFAULT : bytes;
}

static const struct proc_ops samples_ops = {
	.proc_read = samples_read,
	.proc_write = samples_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/samples", 0600, NULL, &samples_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
