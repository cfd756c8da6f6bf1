// SPDX-License-Identifier: GPL-2.0-only
/* What is the same for all switches that balance their load, and their ports.
 *
 * /proc/closloop/links_down says which ports have no link.
 */
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include "load_balancing.h"

#define MOST_IFINDEX 65536

struct cl_paths_settings cl_paths_all;
u64 cl_paths_origin_ns;
static struct cl_exit *exits[MOST_IFINDEX];

struct cl_exit *cl_paths_exit(u32 ifindex)
{
	return ifindex < MOST_IFINDEX ? exits[ifindex] : NULL;
}

int cl_paths_add_exit(u32 ifindex, struct cl_exit *exit)
{
	if (ifindex >= MOST_IFINDEX)
		return -ENODEV;
	exits[ifindex] = exit;
	return 0;
}

/* Writing 32 bits a port, which are down, and a 0 in front; all others are up. */
static ssize_t links_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	size_t count = size / sizeof(u32);
	u32 *down;

	if (!count || size % sizeof(u32) || count > MOST_IFINDEX)
		return -EINVAL;
	down = vmemdup_user(from, size);
	if (IS_ERR(down))
		return PTR_ERR(down);
	local_bh_disable();
	for (u32 i = 0; i < MOST_IFINDEX; i++)
		if (exits[i])
			exits[i]->down = false;
	for (size_t i = 1; i < count; i++)
		if (cl_paths_exit(down[i]))
			cl_paths_exit(down[i])->down = true;
	local_bh_enable();
	kvfree(down);
	return size;
}

static const struct proc_ops links_ops = {
	.proc_write = links_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/links_down", 0600, NULL, &links_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
