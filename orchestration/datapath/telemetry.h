/* SPDX-License-Identifier: GPL-2.0-only */
/* In-band telemetry in RoCE packets, as HPCC has it: Li et al., SIGCOMM 2019, figure 7. Two bytes, and
 * eight for each of five hops, in every data packet and acknowledgement, however many hops there are:
 * so does its simulator (network/utils/int-header.h).
 */
#ifndef CLOSLOOP_TELEMETRY_H
#define CLOSLOOP_TELEMETRY_H

#include <linux/ip.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include "policy.h"

#define CL_TELEMETRY_HOPS 5
/* One of the six bits that are reserved before the number of the queue pair: data that asks. */
#define CL_ASKS_TELEMETRY 0x01000000U
#define CL_ROCE_PORT 4791
#define CL_PATH_MASK 0xfffU

struct cl_telemetry {
	__be16 head; /* 4 bits: hops; 12: the path */
	__be64 hop[CL_TELEMETRY_HOPS]; /* 4 bits: rate; 24: ns; 20: 128 bytes sent; 16: 80 bytes queued */
} __packed;

/* Whether the flows of this guest ask for telemetry. */
extern bool cl_telemetry;

/* Rates by their four bits, in Mbit/s; 0 is any other. */
extern const u32 cl_telemetry_mbps[16];

/* Write into a packet that asks for it what its port knows as it leaves. `port` numbers the port. */
static inline void cl_telemetry_add(struct sk_buff *skb, u32 port, const struct cl_hop *seen)
{
	const struct iphdr *ip = ip_hdr(skb);
	const struct udphdr *udp = (const struct udphdr *)(ip + 1);
	const __be32 *bth = (const __be32 *)(udp + 1);
	struct cl_telemetry *telemetry = (struct cl_telemetry *)(bth + 3);
	u32 head, hops, rate = 15;

	if (skb->protocol != htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP ||
	    (u8 *)(telemetry + 1) > skb_tail_pointer(skb) || udp->dest != htons(CL_ROCE_PORT) ||
	    !(bth[1] & htonl(CL_ASKS_TELEMETRY)))
		return;
	head = ntohs(telemetry->head);
	hops = head >> 12;
	if (hops == CL_TELEMETRY_HOPS)
		return;
	while (rate && cl_telemetry_mbps[rate] != seen->rate_mbps)
		rate--;
	telemetry->hop[hops] = cpu_to_be64(
		(u64)rate << 60 | (u64)(seen->at_ns & CL_HOP_NS_MASK) << 36 |
		(u64)((seen->tx_bytes & CL_HOP_BYTES_MASK) / 128) << 16 |
		min(seen->queue_bytes / 80, 0xffffU));
	/* not symmetric, so that two ways over the same ports differ */
	head = (hops + 1) << 12 | (((head & CL_PATH_MASK) * 5 + port + 1) & CL_PATH_MASK);
	telemetry->head = htons(head);
}

/* Read it into `hop`; return how many hops there are. */
static inline u32 cl_telemetry_read(const struct cl_telemetry *telemetry, struct cl_hop *hop)
{
	u32 head = ntohs(telemetry->head), hops = min(head >> 12, (u32)CL_TELEMETRY_HOPS);

	for (u32 i = 0; i < hops; i++) {
		u64 bits = be64_to_cpu(telemetry->hop[i]);

		hop[i] = (struct cl_hop){
			.at_ns = bits >> 36 & CL_HOP_NS_MASK,
			.tx_bytes = (bits >> 16 & 0xfffff) * 128,
			.queue_bytes = (bits & 0xffff) * 80,
			.rate_mbps = cl_telemetry_mbps[bits >> 60],
			.path = head & CL_PATH_MASK,
		};
	}
	return hops;
}

#endif
