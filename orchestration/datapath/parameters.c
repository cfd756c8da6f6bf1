// SPDX-License-Identifier: GPL-2.0-only
/* /proc/closloop/parameters: the congestion control's parameters of each NIC, at run time.
 *
 * Writing takes any number of struct nic_parameters, which hold from the moment of the call: for the
 * flows that the NIC sends, those that have begun too, and for the CNPs that it sends as receiver.
 * Reading gives those of every NIC, as they were made. NICs that are given none before the flows are
 * posted have those of struct settings.
 */
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include "nic.h"
#include "queue_pair.h"

struct nic_parameters {
	u64 cnp_interval_ns;
	__be32 address;
	u32 unused;
	u32 parameters[CL_MOST_PARAMETERS];
};

static void tell_all(struct nic *nic, u32 event, u64 now_ns)
{
	struct flow *flow;

	list_for_each_entry(flow, &nic->unfinished, unfinished)
		cl_flow_tell(flow, event, now_ns, 0);
}

static void set(struct nic *nic, const struct nic_parameters *wanted)
{
	u64 now_ns = cl_now_ns();

	cl_nic_settle(nic);
	tell_all(nic, CL_SETTLE, now_ns);
	memcpy(nic->parameters, wanted->parameters, sizeof(nic->parameters));
	nic->cnp_interval_ns = wanted->cnp_interval_ns;
	nic->has_own = true;
	tell_all(nic, CL_CHANGED, now_ns);
}

static ssize_t parameters_write(struct file *file, const char __user *from, size_t size,
				loff_t *unused)
{
	size_t count = size / sizeof(struct nic_parameters);
	struct nic_parameters *wanted;
	ssize_t result = size;

	if (!count || size % sizeof(struct nic_parameters) || count > MOST_NICS)
		return -EINVAL;
	wanted = vmemdup_user(from, size);
	if (IS_ERR(wanted))
		return PTR_ERR(wanted);
	for (size_t i = 0; i < count; i++)
		if (!cl_nic_of(wanted[i].address))
			result = -ENODEV;
	local_bh_disable();
	for (size_t i = 0; i < count && result > 0; i++)
		set(cl_nic_of(wanted[i].address), &wanted[i]);
	local_bh_enable();
	kvfree(wanted);
	return result;
}

static ssize_t parameters_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	u32 first = *at / sizeof(struct nic_parameters), count = 0;

	for (; first + count < cl_roce.nics && (count + 1) * sizeof(struct nic_parameters) <= size;
	     count++) {
		const struct nic *nic = cl_roce.nic[first + count];
		struct nic_parameters found = {
			.cnp_interval_ns = nic->cnp_interval_ns,
			.address = nic->address,
		};

		memcpy(found.parameters, nic->parameters, sizeof(found.parameters));
		if (copy_to_user(to + count * sizeof(found), &found, sizeof(found)))
			return -EFAULT;
	}
	*at += count * sizeof(struct nic_parameters);
	return count * sizeof(struct nic_parameters);
}

static const struct proc_ops parameters_ops = {
	.proc_read = parameters_read,
	.proc_write = parameters_write,
	.proc_lseek = default_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/parameters", 0600, NULL, &parameters_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
