/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef CLOSLOOP_FLOW_TABLE_H
#define CLOSLOOP_FLOW_TABLE_H

#include <linux/skbuff.h>

struct cl_flow_table;

/* Figures of the recent flows at a queue. */
struct cl_queue_flows {
	u32 incast_degree; /* the most senders that one receiver has */
	u32 mice, elephants;
};

/* Count a packet that goes to the port with this number. Its data begins with the IP header. */
void cl_flow_table_count(struct cl_flow_table *table, const struct sk_buff *skb, u32 ifindex);

/* `table` is where a switch has its own, NULL until user space asks for all. */
int cl_flow_table_add(struct cl_flow_table **table);
void cl_flow_table_remove(struct cl_flow_table **table);

/* The number of queues of which flows are counted, 0 if user space has not asked. */
u32 cl_flow_tables_queues(void);
/* Give the figures of all queues, clean up, and begin the next slot if it is due. */
void cl_flow_tables_read(struct cl_queue_flows *flows);

#endif
