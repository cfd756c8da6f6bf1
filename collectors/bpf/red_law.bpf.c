/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Marks by RED's straight line on the instantaneous queue, where the kernel has no sch_red. Runs at
 * the egress of a port, before the packet is queued. What it compares is what RED compares: the
 * bytes in the port's queue without this packet (struct Qdisc, qstats.backlog of the root). No
 * field of the context shows them, so they are read from the kernel's own structures, whose layout
 * the loader takes from the kernel's type information (orchestration/agent/bpf/btf.py).
 *
 * User space maps `marks`: it writes thresholds to the place that is not in use, then `current`.
 */

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define TCX_NEXT -1 /* as if this program were not there */
#define OFFSET 0xfff

struct __sk_buff;

/* The kernel's helpers, by their numbers (linux/bpf.h). */
__attribute__((kernel_helper(113))) s64 probe_read_kernel(void *to, u32 size, const void *from);
__attribute__((kernel_helper(7))) u32 random_u32(void);
__attribute__((kernel_helper(97))) s64 set_ce(struct __sk_buff *skb);

/* Between kmin and kmax the share rises from 0 to `share` of 2^32; from kmax on all are marked. */
struct thresholds {
	u32 kmin, kmax, share, spare;
};

struct marks {
	u64 marked; /* packets that had the mark afterwards */
	u32 current;
	u32 skb_dev, dev_qdisc, qdisc_backlog; /* offsets */
	struct thresholds at[2];
};

_Static_assert(sizeof(struct marks) == 56, "orchestration/agent/linux_switch/marks.py has this layout");

struct marks marks;

__attribute__((section("tc"), used))
int red_law(struct __sk_buff *skb)
{
	const struct thresholds *now = &marks.at[marks.current & 1];
	const char *device = 0, *qdisc = 0;
	u32 queue = 0;

	if (probe_read_kernel(&device, sizeof(device), (char *)skb + (marks.skb_dev & OFFSET)) ||
	    probe_read_kernel(&qdisc, sizeof(qdisc), device + (marks.dev_qdisc & OFFSET)) ||
	    probe_read_kernel(&queue, sizeof(queue), qdisc + (marks.qdisc_backlog & OFFSET)))
		return TCX_NEXT;

	u32 kmin = now->kmin, kmax = now->kmax;
	if (queue < kmin)
		return TCX_NEXT;
	if (queue < kmax) {
		u64 share = (u64)now->share * (queue - kmin) / (kmax - kmin);
		if (random_u32() >= share)
			return TCX_NEXT;
	}
	if (set_ce(skb))
		__sync_fetch_and_add(&marks.marked, 1);
	return TCX_NEXT;
}
