/* SPDX-License-Identifier: GPL-2.0-only */
/* What waits at a NIC to be sent: see nic_queues.c. */
#ifndef CLOSLOOP_NIC_QUEUES_H
#define CLOSLOOP_NIC_QUEUES_H

#include "roce.h"

/* Whether packets of a type of service must not begin to be sent. */
static inline bool cl_nic_stopped(const struct nic *nic, u8 tos)
{
	return unlikely(cl_stopped(&nic->pause)) &&
	       (cl_stopped(&nic->pause) & BIT(cl_priority_of(tos)));
}

/* Queue an acknowledgement or a CNP. */
void cl_nic_control(struct nic *nic, struct sk_buff *skb, u64 now_ns);
/* Let a flow that has something to send wait for its time. */
void cl_nic_wait(struct nic *nic, struct flow *flow, u64 not_before_ps);
/* A flow's timeout begins anew. */
void cl_nic_progress(struct nic *nic, struct flow *flow, u64 now_ns);
/* Find out when its next flow starts. */
void cl_nic_look_ahead(struct nic *nic);
/* After a change of `nic->pause`: move flows and acknowledgements between those in turn and those
 * stopped.
 */
void cl_nic_sort(struct nic *nic);

#endif
