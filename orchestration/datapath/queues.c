// SPDX-License-Identifier: GPL-2.0-only
/* /proc/closloop/queues: every queue of the fabric, by its number, for user space.
 *
 * Reading gives one struct cl_queue_state a queue, all of one moment. Writing takes any number of
 * struct change, which hold from the moment of the call. Neither depends on the number of switches.
 */
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include "queues.h"

#define CL_MOST_QUEUES 65536

struct change {
	u32 queue, kmin_bytes, kmax_bytes, max_p;
};

static struct {
	struct Qdisc *port;
	u32 klass;
} queues[CL_MOST_QUEUES];
static u32 highest;

int cl_queues_add(struct Qdisc *port, u32 first, u32 count)
{
	if (first > CL_MOST_QUEUES - count)
		return -E2BIG;
	for (u32 i = 0; i < count; i++)
		if (queues[first + i].port)
			return -EEXIST;
	for (u32 i = 0; i < count; i++) {
		queues[first + i].port = port;
		queues[first + i].klass = i;
	}
	highest = max(highest, first + count);
	return 0;
}

void cl_queues_remove(u32 first, u32 count)
{
	for (u32 i = 0; i < count; i++)
		queues[first + i].port = NULL;
}

u32 cl_queues_count(void)
{
	return highest;
}

void cl_queues_states(struct cl_queue_state *states, u32 count)
{
	for (u32 i = 0; i < count; i++) {
		if (!queues[i].port)
			continue;
		cl_port_settle(queues[i].port);
		cl_port_state(queues[i].port, queues[i].klass, &states[i]);
	}
}

static ssize_t queues_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	u32 count = min_t(size_t, size / sizeof(struct cl_queue_state), highest);
	struct cl_queue_state *states = kvcalloc(count, sizeof(*states), GFP_KERNEL);
	ssize_t result = count * sizeof(*states);

	if (!states)
		return -ENOMEM;
	local_bh_disable();
	cl_queues_states(states, count);
	local_bh_enable();
	if (copy_to_user(to, states, result))
		result = -EFAULT;
	kvfree(states);
	return result;
}

static ssize_t queues_write(struct file *file, const char __user *from, size_t size,
			    loff_t *unused)
{
	size_t count = size / sizeof(struct change);
	struct change *changes;
	ssize_t result = size;

	if (!count || size % sizeof(struct change) || count > CL_MOST_QUEUES)
		return -EINVAL;
	changes = memdup_user(from, size);
	if (IS_ERR(changes))
		return PTR_ERR(changes);
	for (size_t i = 0; i < count; i++)
		if (changes[i].queue >= highest || !queues[changes[i].queue].port ||
		    changes[i].kmin_bytes > changes[i].kmax_bytes)
			result = -EINVAL;
	local_bh_disable();
	for (size_t i = 0; i < count && result > 0; i++) {
		const struct change *change = &changes[i];
		struct Qdisc *port = queues[change->queue].port;

		cl_port_settle(port);
		cl_port_set(port, queues[change->queue].klass, change->kmin_bytes,
			    change->kmax_bytes, change->max_p);
	}
	local_bh_enable();
	kfree(changes);
	return result;
}

static const struct proc_ops queues_ops = {
	.proc_read = queues_read,
	.proc_write = queues_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	struct proc_dir_entry *folder = proc_mkdir("closloop", NULL);

	if (!folder || !proc_create("queues", 0600, folder, &queues_ops))
		return -ENOMEM;
	return 0;
}
device_initcall(begin);
