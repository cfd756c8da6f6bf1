/* SPDX-License-Identifier: GPL-2.0-only */
/* What senders and receivers of flows do: see queue_pair.c. */
#ifndef CLOSLOOP_QUEUE_PAIR_H
#define CLOSLOOP_QUEUE_PAIR_H

#include "roce.h"
#include "roce_packets.h"

void cl_flow_begin(struct flow *flow);
void cl_flow_tell(struct flow *flow, u32 event, u64 now_ns, u32 bytes);
struct sk_buff *cl_flow_send(struct flow *flow, u64 at_ns);
void cl_flow_receive(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns);
void cl_flow_time_out(struct flow *flow, u64 now_ns);

#endif
