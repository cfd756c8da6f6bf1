/* SPDX-License-Identifier: GPL-2.0-only */
/* What the files of RoCE NICs share: flows, the NICs themselves, and what is the same for all. */
#ifndef CLOSLOOP_ROCE_H
#define CLOSLOOP_ROCE_H

#include <linux/rbtree.h>
#include "pfc.h"
#include "policy.h"
#include "wire.h"

#define MOST_TIMED 16

/* A flow as user space posts it. */
struct posted {
	u64 start_ns; /* of CLOCK_MONOTONIC */
	u64 bytes;
	__be32 src, dst;
	u16 udp_source;
	u8 tos;
	u8 unused[5];
};

/* And its results. Times are of CLOCK_MONOTONIC, 0 for never. */
struct result {
	u64 sent_ns;     /* when its first bit was sent */
	u64 received_ns; /* when the receiver had all of it */
	u64 done_ns;     /* when the sender knew */
	u64 rate_bps;
	u64 rtt_ns; /* the last one that was measured */
	u64 rtt_sum_ns; /* of all that were, and `rtts` how many */
	u64 acked_bytes; /* of its payload */
	u32 packets, resent, marked, cnps, naks, timeouts, probes, rtts;
};

struct flow {
	struct nic *nic, *to;
	void *onward[2]; /* the flow as the first switch knows it, there and back */
	struct posted posted;
	struct result result;
	struct cl_flow_state state;
	/* what is in effect of what its policy has decided, and until when that decides */
	u64 rate_bps, busy_until_ns;
	u32 window_bytes;
	/* the sender's, in packets */
	u32 packets, next, acked, asked; /* asked: after the last that asked */
	u64 asked_ns; /* when, with nobody asked before */
	u64 next_ps, progress_ns, probe_ns;
	/* packets on their way that asked, and when they were sent; when full, further ones are not timed */
	struct {
		u64 at_ns;
		u32 psn;
	} timed[MOST_TIMED];
	u32 timed_first, timed_end; /* modulo MOST_TIMED */
	/* with selective repeat: what the receiver is known to have, and of what is missing up to
	 * `lost_end` the first that has not been sent again
	 */
	unsigned long *known;
	u32 resend, lost_end;
	bool sending, probed;
	struct rb_node waiting;
	struct list_head turn, unfinished;
	/* the receiver's */
	u32 expected;
	unsigned long *held; /* with selective repeat: what it has */
	u32 held_end;
	bool asked_again;
	u64 cnp_ns;
};

struct nic {
	struct cl_event event, patience;
	struct Qdisc *sch;
	struct net_device *dev, *peer;
	__be32 address;
	struct cl_line line;
	struct cl_fifo wire, control, stack;
	struct cl_fifo held;           /* acknowledgements whose priority is stopped */
	struct rb_root_cached waiting; /* flows by the time of their next packet */
	struct list_head turns;        /* flows whose time has come */
	struct list_head stopped;      /* those of them whose priority is stopped */
	struct cl_pause pause;
	struct list_head unfinished;   /* flows by the time of their last progress */
	u32 *posted, posts, begun;     /* numbers of flows by start */
	u64 start_ps;                  /* when the next one starts, U64_MAX for never */
	bool stack_was_last;
	u16 ident;
	u64 cnps, resent, timeouts, rtt_ns; /* of all its flows; the last measured round trip */
	u64 received_packets, out_of_order_packets; /* of data */
	struct cl_event decided;
	struct decision *first_decision, *last_decision; /* that have not taken effect */
	u64 busy_until_ns;
	u32 parameters[CL_MOST_PARAMETERS]; /* of its flows' policy */
	u64 cnp_interval_ns; /* of one flow's CNPs, which it sends as receiver */
	bool has_own; /* they are its own, not those of all NICs */
};

#define MOST_NICS 4096

/* What happens to events while a policy decides: see decisions.c. By their numbers in flows.py. */
enum decisions { PIPELINED, BLOCKING, SERIAL };

/* All flows and NICs of this guest. */
struct roce {
	struct flow *flow;
	u32 count, received, done;
	bool ended; /* all flows that are posted have */
	const struct cl_policy *policy;
	struct cl_hop hop[CL_MOST_HOPS]; /* of the packet that is being read */
	/* of all NICs: struct settings of roce_flows.c */
	u32 payload_bytes, ack_every, window_bytes;
	u64 timeout_ns, probe_interval_ns;
	u64 decision_latency_ns;
	enum decisions decisions;
	bool selective, icrc;
	unsigned long *bits; /* of all flows' `known` and `held` */
	struct nic *nic[MOST_NICS];
	u32 nics;
	struct page *zeros;
};

extern struct roce cl_roce;

/* The NIC with an address; NULL of any other. */
struct nic *cl_nic_of(__be32 address);

/* Whether there is something that is known to be lost and has not been sent again. */
static inline bool cl_flow_has_lost(const struct flow *flow)
{
	return flow->resend < flow->lost_end;
}

static inline bool cl_flow_may_send(const struct flow *flow)
{
	return cl_flow_has_lost(flow) ||
	       (flow->next < flow->packets &&
		(!flow->window_bytes ||
		 (u64)(flow->next - flow->acked) * cl_roce.payload_bytes < flow->window_bytes));
}

#endif
