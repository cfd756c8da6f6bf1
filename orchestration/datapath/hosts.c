// SPDX-License-Identifier: GPL-2.0-only
/* /proc/closloop/hosts: TCP's counters of all hosts, as numbers, in one call.
 *
 * Writing file descriptors (32 bits) of network namespaces says which. Reading gives five numbers
 * of 64 bits for each: what the names below have in its /proc/net/snmp and netstat, and the packets
 * with data that came, which Linux does not count. sample.c reads them at given times.
 */
#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/proc_fs.h>
#include <linux/tcp.h>
#include <linux/uaccess.h>
#include <net/ip.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>
#include <net/tcp.h>
#include "hosts.h"

#define MOST_HOSTS 4096

static struct net *hosts[MOST_HOSTS];
static u32 count;
static unsigned int received_id __read_mostly;

void cl_hosts_received(struct net *net, const struct sk_buff *skb)
{
	const struct iphdr *ip = ip_hdr(skb);
	const struct tcphdr *tcp = (const struct tcphdr *)(ip + 1);
	u64 *received;

	if (skb->protocol == htons(ETH_P_IP) && skb_headlen(skb) >= ETH_HLEN + sizeof(*ip) + sizeof(*tcp) &&
	    ip->ihl == 5 && ip->protocol == IPPROTO_TCP) {
		received = net_generic(net, received_id);
		*received += ntohs(ip->tot_len) > sizeof(*ip) + (tcp->doff << 2);
	}
}

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

u32 cl_hosts_count(void)
{
	return count;
}

void cl_host_state(u32 host, struct cl_host_state *state)
{
	const struct netns_mib *mib = &hosts[host]->mib;

	*state = (struct cl_host_state){
		.retransmits = snmp_fold_field(mib->tcp_statistics, TCP_MIB_RETRANSSEGS),
		.timeouts = snmp_fold_field(mib->net_statistics, LINUX_MIB_TCPTIMEOUTS),
		.out_of_order = snmp_fold_field(mib->net_statistics, LINUX_MIB_TCPOFOQUEUE),
		.tx_bytes = snmp_fold_field64(mib->ip_statistics, IPSTATS_MIB_OUTOCTETS,
					      offsetof(struct ipstats_mib, syncp)),
		.received_packets = *(u64 *)net_generic(hosts[host], received_id),
	};
}

static ssize_t hosts_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	struct cl_host_state state;

	if (size < count * sizeof(state))
		return -EINVAL;
	for (u32 i = 0; i < count; i++) {
		cl_host_state(i, &state);
		if (copy_to_user(to + i * sizeof(state), &state, sizeof(state)))
			return -EFAULT;
	}
	return count * sizeof(state);
}

static const struct proc_ops hosts_ops = {
	.proc_read = hosts_read,
	.proc_write = hosts_write,
	.proc_lseek = noop_llseek,
};

static struct pernet_operations receivers = {
	.id = &received_id,
	.size = sizeof(u64),
};

static int __init register_receivers(void)
{
	return register_pernet_subsys(&receivers);
}
subsys_initcall(register_receivers);

static int __init begin(void)
{
	return proc_create("closloop/hosts", 0600, NULL, &hosts_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
