// SPDX-License-Identifier: GPL-2.0-only
/* /proc/closloop/samples: all queues read at given times, by the engine itself.
 *
 * Writing a struct plan asks for readings; they are taken after all else that happens at their
 * times. Reading waits for the last of them and gives them all: of each its time (64 bits), then a
 * struct cl_queue_state a queue, then, if flows are counted, a struct cl_queue_flows a queue. Writing one byte says that the readings' end is near: the next
 * one is the last. Readings cost no process its turn, and shift nothing.
 */
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>
#include "data_path.h"
#include "flow_table.h"

#define MOST_BYTES (16 << 20)

struct plan {
	u64 first_ns, period_ns; /* of CLOCK_MONOTONIC */
	u32 readings, queues;
};

static struct plan plan;
static u32 taken;
static void *readings;
static size_t room_bytes;
static DECLARE_WAIT_QUEUE_HEAD(reader);

static size_t reading_bytes(void)
{
	return ALIGN(sizeof(u64) + plan.queues * sizeof(struct cl_queue_state) +
		     cl_flow_tables_queues() * sizeof(struct cl_queue_flows), sizeof(u64));
}

static void take(struct cl_event *event)
{
	u64 *reading = readings + taken * reading_bytes();
	struct cl_queue_state *states = (struct cl_queue_state *)(reading + 1);

	*reading = cl_now_ns();
	cl_queues_states(states, plan.queues);
	if (cl_flow_tables_queues())
		cl_flow_tables_read((struct cl_queue_flows *)(states + plan.queues));
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
		local_bh_disable();
		plan.readings = min(plan.readings, taken + 1);
		local_bh_enable();
		return size;
	}
	if (size != sizeof(wanted))
		return -EINVAL;
	if (copy_from_user(&wanted, from, sizeof(wanted)))
		return -EFAULT;
	if (taken < plan.readings)
		return -EBUSY;
	if (!wanted.readings || wanted.queues > cl_queues_count())
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
