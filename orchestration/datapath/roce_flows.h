/* SPDX-License-Identifier: GPL-2.0-only */
/* What user space says and reads of flows and NICs: see roce_flows.c. */
#ifndef CLOSLOOP_ROCE_FLOWS_H
#define CLOSLOOP_ROCE_FLOWS_H

#include "roce.h"

/* What user space reads of one NIC: /proc/closloop/nics and samples. */
struct nic_state {
	u64 cnps, resent, rtt_ns;
	u64 rate_bps; /* the sum of those of its unfinished flows */
	u64 received_packets, out_of_order_packets, timeouts;
	__be32 address;
	u32 flows; /* unfinished ones */
};

/* With bottom halves off. */
void cl_nic_state(u32 number, struct nic_state *state);

#endif
