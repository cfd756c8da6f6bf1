// SPDX-License-Identifier: GPL-2.0-only
/* The traffic matrix of edge switches, and /proc/closloop/pairs: bytes that came in at a switch from
 * its own hosts, for hosts of another.
 *
 * Writing a struct settings with its arrays begins, once. sample.c reads the bytes so far: numbers of
 * 64 bits by edge switch and, for each, by the edge switch of the receiver.
 */
#include <linux/bsearch.h>
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <net/net_namespace.h>
#include "pairs.h"

#define MOST_EDGES 1024
#define MOST_ADDRESSES 65536

struct settings {
	u32 edges; /* then so many file descriptors of their network namespaces, 32 bits each */
	u32 addresses; /* then so many struct address, in the order of their addresses */
};

struct address {
	u32 address; /* as it is in a packet */
	u32 edge;
};

bool cl_pairs_counted __read_mostly;

static struct settings all;
static struct net **nets;
static struct address *addresses;
static u64 *bytes;

static int by_address(const void *wanted, const void *one)
{
	u32 a = *(const u32 *)wanted, b = ((const struct address *)one)->address;

	return a < b ? -1 : a > b;
}

u64 *cl_pair_of(const struct net *net, __be32 saddr, __be32 daddr)
{
	const struct address *from = bsearch(&saddr, addresses, all.addresses, sizeof(*addresses),
					     by_address);
	const struct address *to = bsearch(&daddr, addresses, all.addresses, sizeof(*addresses),
					   by_address);

	if (!from || !to || from->edge == to->edge || nets[from->edge] != net)
		return NULL;
	return &bytes[from->edge * all.edges + to->edge];
}

/* It happens once, and what fails ends the guest: nothing is freed. */
static ssize_t pairs_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	struct settings wanted;
	size_t fds_bytes, addresses_bytes;
	s32 *fds;

	if (all.edges)
		return -EBUSY;
	if (size < sizeof(wanted) || copy_from_user(&wanted, from, sizeof(wanted)))
		return -EFAULT;
	if (!wanted.edges || wanted.edges > MOST_EDGES || wanted.addresses > MOST_ADDRESSES)
		return -EINVAL;
	fds_bytes = array_size(wanted.edges, sizeof(*fds));
	addresses_bytes = array_size(wanted.addresses, sizeof(*addresses));
	if (size != sizeof(wanted) + fds_bytes + addresses_bytes)
		return -EINVAL;
	fds = vmemdup_user(from + sizeof(wanted), fds_bytes);
	addresses = vmemdup_user(from + sizeof(wanted) + fds_bytes, addresses_bytes);
	if (IS_ERR(fds) || IS_ERR(addresses))
		return -EFAULT;
	for (u32 i = 0; i < wanted.addresses; i++)
		if (addresses[i].edge >= wanted.edges)
			return -EINVAL;
	bytes = vzalloc(array3_size(wanted.edges, wanted.edges, sizeof(*bytes)));
	nets = vzalloc(array_size(wanted.edges, sizeof(*nets)));
	if (!bytes || !nets)
		return -ENOMEM;
	for (u32 i = 0; i < wanted.edges; i++) {
		nets[i] = get_net_ns_by_fd(fds[i]);
		if (IS_ERR(nets[i]))
			return PTR_ERR(nets[i]);
	}
	kvfree(fds);
	all = wanted;
	cl_pairs_counted = true;
	return size;
}

u32 cl_pairs_count(void)
{
	return all.edges * all.edges;
}

void cl_pairs_read(u64 *to)
{
	memcpy(to, bytes, cl_pairs_count() * sizeof(*bytes));
}

static const struct proc_ops pairs_ops = {
	.proc_write = pairs_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/pairs", 0200, NULL, &pairs_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
