/* SPDX-License-Identifier: GPL-2.0-only */
/* The traffic matrix of edge switches: see pairs.c. */
#ifndef CLOSLOOP_PAIRS_H
#define CLOSLOOP_PAIRS_H

#include <linux/types.h>

struct net;

/* Whether user space asks for it. */
extern bool cl_pairs_counted;

/* Where to count the bytes of a flow that comes in at a switch; NULL unless the switch is its
 * sender's edge switch, and not its receiver's too.
 */
u64 *cl_pair_of(const struct net *net, __be32 saddr, __be32 daddr);

/* How many numbers a reading has, 0 unless they are counted; and the bytes so far. */
u32 cl_pairs_count(void);
void cl_pairs_read(u64 *to);

#endif
