/* SPDX-License-Identifier: GPL-2.0-only */
/* Priority-based flow control (IEEE 802.1Qbb): what a port or a NIC has been told by its peer. */
#ifndef CLOSLOOP_PFC_H
#define CLOSLOOP_PFC_H

#include "wire.h"

#define CL_PRIORITIES 8

/* What a sender has been told by its peer. `settle` sends what had begun before it was told,
 * `obey` goes on by `cl_stopped`. Both belong to the port or NIC that this is part of.
 */
struct cl_pause {
	struct cl_event run_out;
	void (*settle)(struct cl_pause *pause, u64 now_ns);
	void (*obey)(struct cl_pause *pause, u64 now_ns);
	u64 rate_bps;
	u8 told;    /* priorities, as bits, that were told to stop */
	u8 ignored; /* those of them that the watchdog lets go on */
	u64 since_ns[CL_PRIORITIES], until_ns[CL_PRIORITIES], last_ns[CL_PRIORITIES];
	u64 frames[CL_PRIORITIES], paused_ns[CL_PRIORITIES];
};

/* Priorities, as bits, that must not begin to send. */
static inline u8 cl_stopped(const struct cl_pause *pause)
{
	return pause->told & ~pause->ignored;
}

void cl_pause_init(struct cl_pause *pause, u64 rate_bps,
		   void (*settle)(struct cl_pause *pause, u64 now_ns),
		   void (*obey)(struct cl_pause *pause, u64 now_ns));
/* Take a frame of type ETH_P_PAUSE from the peer. The frame stays the caller's. */
void cl_pause_receive(struct cl_pause *pause, struct sk_buff *skb);
u64 cl_paused_ns(const struct cl_pause *pause, u32 priority, u64 now_ns);
/* How long a number of quanta, each of 512 bit times, is. */
u64 cl_quanta_ns(u64 quanta, u64 rate_bps);
/* A frame that stops (`quanta`) or lets go (0) the priorities in the bits of `vector`. */
struct sk_buff *cl_pause_frame(struct net_device *dev, u8 vector, u16 quanta);
/* The priority of a packet by its IPv4 type of service; the same in all of a guest's fabric, whose
 * classes have the priorities that were set last.
 */
u32 cl_priority_of(u8 tos);
void cl_priorities_set(u32 classes, const u8 *priorities);

#endif
