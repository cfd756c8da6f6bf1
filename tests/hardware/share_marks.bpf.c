/* SPDX-License-Identifier: Apache-2.0
 *
 * Marks a fixed share of packets, each by a draw of its own: SHARE_PERMILLE of 1000.
 */

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define TCX_NEXT -1

struct __sk_buff;

__attribute__((kernel_helper(7))) u32 random_u32(void);
__attribute__((kernel_helper(97))) s64 set_ce(struct __sk_buff *skb);

struct seen {
	u64 packets, marked;
};

struct seen seen;

__attribute__((section("tc"), used))
int share_marks(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&seen.packets, 1);
	if ((u64)random_u32() * 1000 < (u64)SHARE_PERMILLE << 32 && set_ce(skb))
		__sync_fetch_and_add(&seen.marked, 1);
	return TCX_NEXT;
}
