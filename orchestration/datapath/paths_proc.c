// SPDX-License-Identifier: GPL-2.0-only
/* What user space says of load balancing, and what it reads of it.
 *
 * /proc/closloop/paths begins it, and then tells time 0. /proc/closloop/timeouts sets timeouts, and
 * gives them back.
 */
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <net/net_namespace.h>
#include "data_path.h"
#include "engine.h"
#include "forward.h"
#include "load_balancing.h"
#include "paths_proc.h"

#define MOST_SWITCHES 1024

/* What user space says of a switch, followed by its ports. */
struct switch_settings {
	u64 stream, timeout_ns;
	s32 namespace;
	u32 tier, partners, ports;
	u16 partner_of[256];
};

struct port_settings {
	u64 dre_unit_bytes;
	u32 ifindex;
	u8 fabric, up, tag, unused;
};

struct timeout {
	u64 timeout_ns;
	u32 number, unused;
};

static struct cl_paths *switches[MOST_SWITCHES];

u32 cl_paths_count(void)
{
	return cl_paths_all.switches;
}

void cl_paths_state(u32 number, struct cl_paths_state *state)
{
	const struct cl_paths *paths = switches[number];
	u64 now_ns = cl_now_ns();

	*state = (struct cl_paths_state){
		.flowlets = paths->flowlets,
		.reroutes = paths->reroutes,
		.overflows = paths->overflows,
	};
	for (u32 i = 0; i < paths->used_count; i++)
		state->entries +=
			now_ns - paths->entry[paths->used[i]].last_ns <= paths->timeout_ns;
}

/* What begins happens once, and what fails ends the guest: nothing is freed. */
static int add_ports(const struct port_settings *port, u32 count, struct net *net)
{
	for (u32 i = 0; i < count; i++, port++) {
		struct net_device *dev = dev_get_by_index_rcu(net, port->ifindex);
		struct cl_exit *exit = kzalloc(sizeof(*exit), GFP_ATOMIC);

		if (!dev || !exit || !port->dre_unit_bytes)
			return -ENODEV;
		exit->way.out = dev;
		exit->way.queue = netdev_get_tx_queue(dev, 0);
		exit->way.ifindex = port->ifindex;
		exit->fabric = port->fabric;
		exit->up = port->up;
		exit->tag = port->tag;
		exit->dre_unit_bytes = port->dre_unit_bytes;
		if (cl_paths_add_exit(port->ifindex, exit))
			return -ENODEV;
	}
	return 0;
}

static struct cl_paths *add_switch(const struct switch_settings *one)
{
	struct cl_paths *paths = kzalloc(sizeof(*paths), GFP_KERNEL);
	u32 metrics = max(1U, one->partners) * CL_TAGS, entries = cl_paths_all.entries;

	if (!paths)
		return NULL;
	paths->stream = one->stream;
	paths->timeout_ns = one->timeout_ns;
	paths->tier = one->tier;
	paths->partners = one->partners;
	memcpy(paths->partner_of, one->partner_of, sizeof(paths->partner_of));
	if (entries) {
		paths->entry = vzalloc(array_size(entries, sizeof(*paths->entry)));
		paths->used = vzalloc(array_size(entries, sizeof(*paths->used)));
		if (!paths->entry || !paths->used)
			return NULL;
	}
	if (cl_paths_all.route_by == CL_CONGA) {
		paths->to = vzalloc(array_size(metrics, sizeof(*paths->to)));
		paths->from = vzalloc(array_size(metrics, sizeof(*paths->from)));
		paths->cursor = vzalloc(max(1U, one->partners));
		if (!paths->to || !paths->from || !paths->cursor)
			return NULL;
	}
	return paths;
}

static int begin_switch(const void **at, const void *end, u32 number)
{
	const struct switch_settings *one = *at;
	const struct port_settings *ports = (const void *)(one + 1);
	struct net *net;
	int error;

	if ((void *)ports > end || one->ports > CL_MOST_PORTS || (void *)(ports + one->ports) > end)
		return -EINVAL;
	*at = ports + one->ports;
	switches[number] = add_switch(one);
	if (!switches[number])
		return -ENOMEM;
	net = get_net_ns_by_fd(one->namespace);
	if (IS_ERR(net))
		return PTR_ERR(net);
	rcu_read_lock();
	error = add_ports(ports, one->ports, net);
	rcu_read_unlock();
	return error ?: cl_forward_balance(net, switches[number]);
}

static ssize_t paths_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	const struct cl_paths_settings *settings;
	const void *at, *end;
	int error = 0;
	void *said;

	if (size == sizeof(cl_paths_origin_ns))
		return copy_from_user(&cl_paths_origin_ns, from, size) ? -EFAULT : size;
	if (cl_paths_all.switches || size < sizeof(*settings))
		return -EINVAL;
	said = vmemdup_user(from, size);
	if (IS_ERR(said))
		return PTR_ERR(said);
	settings = said;
	at = settings + 1;
	end = said + size;
	if (!settings->switches || settings->switches > MOST_SWITCHES || !settings->dre_period_ns ||
	    settings->entries & (settings->entries - 1)) {
		kvfree(said);
		return -EINVAL;
	}
	cl_paths_all = *settings;
	for (u32 i = 0; i < settings->switches && !error; i++)
		error = begin_switch(&at, end, i);
	kvfree(said);
	return error ?: size;
}

static const struct proc_ops paths_ops = {
	.proc_write = paths_write,
	.proc_lseek = noop_llseek,
};

static ssize_t timeouts_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	size_t count = size / sizeof(struct timeout);
	struct timeout *wanted;

	if (!count || size % sizeof(*wanted) || count > MOST_SWITCHES)
		return -EINVAL;
	wanted = vmemdup_user(from, size);
	if (IS_ERR(wanted))
		return PTR_ERR(wanted);
	for (size_t i = 0; i < count; i++)
		if (wanted[i].number >= cl_paths_all.switches) {
			kvfree(wanted);
			return -EINVAL;
		}
	local_bh_disable();
	for (size_t i = 0; i < count; i++)
		switches[wanted[i].number]->timeout_ns = wanted[i].timeout_ns;
	local_bh_enable();
	kvfree(wanted);
	return size;
}

/* One number of 64 bits a switch. */
static ssize_t timeouts_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	u32 count = cl_paths_all.switches;

	if (size < count * sizeof(u64))
		return -EINVAL;
	for (u32 i = 0; i < count; i++)
		if (copy_to_user(to + i * sizeof(u64), &switches[i]->timeout_ns, sizeof(u64)))
			return -EFAULT;
	return count * sizeof(u64);
}

static const struct proc_ops timeouts_ops = {
	.proc_read = timeouts_read,
	.proc_write = timeouts_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	if (!proc_create("closloop/paths", 0600, NULL, &paths_ops) ||
	    !proc_create("closloop/timeouts", 0600, NULL, &timeouts_ops))
		return -ENOMEM;
	return 0;
}
late_initcall(begin);
