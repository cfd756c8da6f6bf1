// SPDX-License-Identifier: GPL-2.0-only
/* RoCEv2 packets (InfiniBand Architecture Specification, annex 17): Ethernet, IPv4, UDP port 4791,
 * base transport header, CRC.
 */
#include <linux/skbuff.h>
#include <net/inet_ecn.h>
#include <net/ip.h>
#include <net/pkt_sched.h>
#include "roce.h"

static struct sk_buff *packet(struct nic *nic, const struct flow *flow, bool back, u32 header_bytes,
			      u32 payload_bytes, u8 tos)
{
	struct sk_buff *skb = alloc_skb(NET_SKB_PAD + sizeof(struct header) + ICRC_BYTES, GFP_ATOMIC);
	struct header *h;

	if (!skb)
		return NULL;
	skb_reserve(skb, NET_SKB_PAD);
	h = skb_put(skb, header_bytes);
	if (payload_bytes) {
		get_page(cl_roce.zeros);
		skb_add_rx_frag(skb, 0, cl_roce.zeros, 0, payload_bytes + ICRC_BYTES,
				payload_bytes + ICRC_BYTES);
	} else {
		skb_put_zero(skb, ICRC_BYTES);
	}
	ether_addr_copy(h->eth.h_dest, nic->peer->dev_addr);
	ether_addr_copy(h->eth.h_source, nic->dev->dev_addr);
	h->eth.h_proto = htons(ETH_P_IP);
	h->ip = (struct iphdr){
		.version = 4, .ihl = 5, .tos = tos, .tot_len = htons(skb->len - ETH_HLEN),
		.id = htons(nic->ident++), .frag_off = htons(IP_DF), .ttl = 64,
		.protocol = IPPROTO_UDP,
		.saddr = back ? flow->posted.dst : flow->posted.src,
		.daddr = back ? flow->posted.src : flow->posted.dst,
	};
	ip_send_check(&h->ip);
	h->udp = (struct udphdr){
		.source = htons(flow->posted.udp_source),
		.dest = htons(ROCE_PORT),
		.len = htons(skb->len - ETH_HLEN - sizeof(struct iphdr)),
	};
	skb->dev = nic->dev;
	skb->protocol = htons(ETH_P_IP);
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	qdisc_skb_cb(skb)->pkt_len = skb->len;
	return skb;
}

static u32 number_of(const struct flow *flow)
{
	return flow - cl_roce.flow;
}

static struct bth bth(const struct flow *flow, enum opcode opcode, u32 psn, bool ask)
{
	return (struct bth){
		.opcode = opcode,
		.partition = htons(0xffff),
		.qpn = htonl((number_of(flow) + FIRST_QPN) & PSN_MASK),
		.psn = htonl((psn & PSN_MASK) | (u32)ask << 31),
	};
}

struct sk_buff *cl_data_packet(const struct flow *flow, u32 psn, bool ask)
{
	bool last = psn == flow->packets - 1;
	u32 bytes = cl_roce.payload_bytes;
	struct sk_buff *skb;

	if (last)
		bytes = flow->posted.bytes - (u64)psn * cl_roce.payload_bytes;
	skb = packet(flow->nic, flow, false, DATA_HEADER_BYTES, bytes, flow->posted.tos);
	if (!skb)
		return NULL;
	((struct header *)skb->data)->bth =
		bth(flow, flow->packets == 1 ? SEND_ONLY : last ? SEND_LAST : psn ? SEND_MIDDLE :
		    SEND_FIRST, psn, ask);
	return skb;
}

/* A packet back to the sender of `flow`. */
struct sk_buff *cl_answer_packet(const struct flow *flow, enum opcode opcode, u32 psn, u8 syndrome)
{
	u32 bytes = opcode == CNP ? CNP_HEADER_BYTES : ACK_HEADER_BYTES;
	/* the six bits of its class as the flow's, but a CNP and an acknowledgement are not marked */
	struct sk_buff *skb = packet(flow->to, flow, true, bytes, 0,
				     flow->posted.tos & ~INET_ECN_MASK);
	struct header *h;

	if (!skb)
		return NULL;
	h = (struct header *)skb->data;
	h->bth = bth(flow, opcode, psn, false);
	if (opcode == CNP)
		memset(h->reserved, 0, sizeof(h->reserved));
	else
		h->aeth = htonl((u32)syndrome << 24);
	return skb;
}
