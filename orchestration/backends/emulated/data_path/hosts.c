// SPDX-License-Identifier: GPL-2.0-only
/* /proc/closloop/hosts: TCP's counters of all hosts, as numbers, in one call.
 *
 * Writing file descriptors (32 bits) of network namespaces says which. Reading gives four numbers
 * of 64 bits for each: what the names below have in its /proc/net/snmp and netstat.
 */
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include <net/ip.h>
#include <net/net_namespace.h>
#include <net/tcp.h>

#define MOST_HOSTS 4096
#define COUNTERS 4

static struct net *hosts[MOST_HOSTS];
static u32 count;

static ssize_t hosts_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	u32 wanted = size / sizeof(s32);

	if (count)
		return -EBUSY;
	if (size % sizeof(s32) || wanted > MOST_HOSTS)
		return -EINVAL;
	for (; count < wanted; count++) {
		struct net *net;
		s32 fd;

		if (copy_from_user(&fd, from + count * sizeof(fd), sizeof(fd)))
			return -EFAULT;
		net = get_net_ns_by_fd(fd);
		if (IS_ERR(net))
			return PTR_ERR(net);
		hosts[count] = net;
	}
	return size;
}

static ssize_t hosts_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	if (size < count * COUNTERS * sizeof(u64))
		return -EINVAL;
	for (u32 i = 0; i < count; i++) {
		const struct netns_mib *mib = &hosts[i]->mib;
		u64 counters[COUNTERS] = {
			snmp_fold_field(mib->tcp_statistics, TCP_MIB_RETRANSSEGS),
			snmp_fold_field(mib->net_statistics, LINUX_MIB_TCPTIMEOUTS),
			snmp_fold_field(mib->net_statistics, LINUX_MIB_TCPOFOQUEUE),
			snmp_fold_field64(mib->ip_statistics, IPSTATS_MIB_OUTOCTETS,
					  offsetof(struct ipstats_mib, syncp)),
		};

		if (copy_to_user(to + i * sizeof(counters), counters, sizeof(counters)))
			return -EFAULT;
	}
	return count * COUNTERS * sizeof(u64);
}

static const struct proc_ops hosts_ops = {
	.proc_read = hosts_read,
	.proc_write = hosts_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/hosts", 0600, NULL, &hosts_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
