/* SPDX-License-Identifier: GPL-2.0-only */
/* TCP's counters of hosts: see hosts.c. */
#ifndef CLOSLOOP_HOSTS_H
#define CLOSLOOP_HOSTS_H

#include <linux/skbuff.h>
#include <net/net_namespace.h>

/* What user space reads of a host: see hosts.c. */
struct cl_host_state {
	u64 retransmits, timeouts, out_of_order, tx_bytes;
	u64 received_packets; /* with data */
};

u32 cl_hosts_count(void);
/* A host gets a packet, whose data begins with the Ethernet header. */
void cl_hosts_received(struct net *net, const struct sk_buff *skb);
void cl_host_state(u32 host, struct cl_host_state *state);

#endif
