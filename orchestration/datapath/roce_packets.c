// SPDX-License-Identifier: GPL-2.0-only
/* RoCEv2 packets (InfiniBand Architecture Specification, annex 17): Ethernet, IPv4, UDP port 4791,
 * base transport header, CRC.
 */
#include <linux/crc32.h>
#include <linux/skbuff.h>
#include <linux/unaligned.h>
#include <net/inet_ecn.h>
#include <net/ip.h>
#include <net/pkt_sched.h>
#include "roce_packets.h"

#define MOST_SPARES 4096

/* Packets that have come to their NICs, and are sent again as others: they are in the caches still.
 * Those with a payload have it in a page of zeros.
 */
static struct {
	struct sk_buff *first;
	u32 count;
} spares[2]; /* without, with a payload */
static u32 end_bytes; /* how large the memory of a packet's header is */

/* What a packet of so much payload has outside its header. */
static u32 outside_bytes(u32 payload_bytes)
{
	return payload_bytes ? payload_bytes + ICRC_BYTES : 0;
}

void cl_packet_done(struct sk_buff *skb)
{
	u32 whole_bytes = outside_bytes(round_up(cl_roce.payload_bytes, 4));
	bool pays = skb->data_len;

	/* a capture has it too, it is not from here, or it is a message's last */
	if (unlikely(cl_roce.icrc || skb->cloned || skb_shared(skb) || skb->_skb_refdst || skb->sk ||
		     skb->fclone || skb->head_frag || skb->pp_recycle ||
		     skb_end_offset(skb) != end_bytes || (pays && skb->data_len != whole_bytes) ||
		     spares[pays].count == MOST_SPARES)) {
		consume_skb(skb);
		return;
	}
	skb->next = spares[pays].first;
	spares[pays].first = skb;
	spares[pays].count++;
}

/* As alloc_skb leaves a packet, but for what is outside its header; NULL if there is none. */
static struct sk_buff *take_spare(u32 outside)
{
	struct sk_buff *skb = spares[!!outside].first;

	if (!skb || skb->data_len != outside)
		return NULL;
	spares[!!outside].first = skb->next;
	spares[!!outside].count--;
	memset(skb, 0, offsetof(struct sk_buff, tail));
	skb->data = skb->head;
	skb_reset_tail_pointer(skb);
	skb->mac_header = skb->transport_header = (typeof(skb->mac_header))~0U;
	return skb;
}

static struct sk_buff *packet(struct nic *nic, struct flow *flow, bool back, u32 header_bytes,
			      u32 payload_bytes, u8 tos)
{
	u32 tail_bytes = ICRC_BYTES + (cl_roce.icrc ? payload_bytes : 0);
	u32 outside = outside_bytes(payload_bytes);
	struct sk_buff *skb = take_spare(outside);
	bool spare = skb;
	struct header *h;

	if (!spare) {
		skb = alloc_skb(NET_SKB_PAD + sizeof(struct header) + sizeof(struct cl_telemetry) +
				tail_bytes, GFP_ATOMIC);
		if (!skb)
			return NULL;
		end_bytes = skb_end_offset(skb);
	}
	skb_reserve(skb, NET_SKB_PAD);
	h = skb_put(skb, header_bytes);
	if (cl_roce.icrc) {
		skb_put_zero(skb, payload_bytes + ICRC_BYTES);
	} else if (spare && payload_bytes) {
		skb->len += outside;
		skb->data_len = outside;
	} else if (payload_bytes) {
		get_page(cl_roce.zeros);
		skb_add_rx_frag(skb, 0, cl_roce.zeros, 0, outside, outside);
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
	*cl_known_of(skb) = (struct cl_known){ flow->onward[back], &flow->onward[back] };
	return skb;
}

/* Write the CRC of all that no switch changes (annex 17, section 17.9.3). Without a capture nobody
 * reads it: it is 0, and its four bytes are sent.
 */
void cl_write_icrc(struct sk_buff *skb)
{
	static const u8 route[8] = { [0 ... 7] = 0xff }; /* in place of InfiniBand's own header */
	struct header h;
	u32 crc;

	memcpy(&h, skb->data, DATA_HEADER_BYTES);
	h.ip.tos = h.ip.ttl = 0xff;
	h.ip.check = h.udp.check = htons(0xffff);
	h.bth.qpn |= htonl(~PSN_MASK);
	crc = crc32_le(~0U, route, sizeof(route));
	crc = crc32_le(crc, (u8 *)&h.ip, DATA_HEADER_BYTES - ETH_HLEN);
	crc = crc32_le(crc, skb->data + DATA_HEADER_BYTES,
		       skb->len - DATA_HEADER_BYTES - ICRC_BYTES);
	put_unaligned_le32(~crc, skb_tail_pointer(skb) - ICRC_BYTES);
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

struct sk_buff *cl_data_packet(struct flow *flow, u32 psn, bool ask)
{
	bool last = psn == flow->packets - 1;
	u32 bytes = cl_roce.payload_bytes, pad;
	struct sk_buff *skb;
	struct header *h;

	if (last)
		bytes = flow->posted.bytes - (u64)psn * cl_roce.payload_bytes;
	pad = -bytes & 3;
	skb = packet(flow->nic, flow, false, DATA_HEADER_BYTES + telemetry_bytes(), bytes + pad,
		     flow->posted.tos);
	if (!skb)
		return NULL;
	memset(skb->data + DATA_HEADER_BYTES, 0, telemetry_bytes());
	h = (struct header *)skb->data;
	h->bth = bth(flow, flow->packets == 1 ? SEND_ONLY : last ? SEND_LAST : psn ? SEND_MIDDLE :
		     SEND_FIRST, psn, ask);
	h->bth.flags = pad << BTH_PAD_SHIFT;
	if (cl_telemetry)
		h->bth.qpn |= htonl(CL_ASKS_TELEMETRY);
	return skb;
}

/* A packet of which the header is all that it has. */
static struct sk_buff *small_packet(struct flow *flow, bool back, u32 header_bytes,
				    enum opcode opcode, u32 psn)
{
	struct nic *nic = back ? flow->to : flow->nic;
	/* the six bits of its class as the flow's, but it is not marked */
	struct sk_buff *skb = packet(nic, flow, back, header_bytes, 0,
				     flow->posted.tos & ~INET_ECN_MASK);

	if (skb)
		((struct header *)skb->data)->bth = bth(flow, opcode, psn, false);
	return skb;
}

struct sk_buff *cl_cnp_packet(struct flow *flow)
{
	struct sk_buff *skb = small_packet(flow, true, CNP_HEADER_BYTES, CNP, 0);
	struct header *h;

	if (!skb)
		return NULL;
	h = (struct header *)skb->data;
	h->bth.qpn |= htonl(BTH_BECN);
	memset(h->reserved, 0, sizeof(h->reserved));
	return skb;
}

struct sk_buff *cl_ack_packet(struct flow *flow, const struct cl_telemetry *seen)
{
	u32 bytes = ACK_HEADER_BYTES + (seen ? sizeof(*seen) : 0);
	struct sk_buff *skb = small_packet(flow, true, bytes, ACKNOWLEDGE, flow->expected - 1);

	if (!skb)
		return NULL;
	((struct header *)skb->data)->aeth =
		htonl(AETH_ACK << 24 | (flow->expected == flow->packets));
	if (seen)
		memcpy(skb->data + ACK_HEADER_BYTES, seen, sizeof(*seen));
	return skb;
}

/* Ask for the packet that is expected. With selective repeat, say which one arrived instead: Mittal
 * et al., "Revisiting Network Support for RDMA", SIGCOMM 2018, section 3.1.
 */
struct sk_buff *cl_nak_packet(struct flow *flow, u32 arrived)
{
	u32 bytes = cl_roce.selective ? SELECTIVE_NAK_HEADER_BYTES : ACK_HEADER_BYTES;
	struct sk_buff *skb = small_packet(flow, true, bytes, ACKNOWLEDGE, flow->expected);
	struct header *h;

	if (!skb)
		return NULL;
	h = (struct header *)skb->data;
	h->aeth = htonl((u32)AETH_NAK_SEQUENCE << 24);
	if (cl_roce.selective)
		h->arrived = htonl(arrived & PSN_MASK);
	return skb;
}

struct sk_buff *cl_probe_packet(struct flow *flow, u64 at_ns)
{
	struct sk_buff *skb = small_packet(flow, false, PROBE_HEADER_BYTES, PROBE, 0);

	if (skb)
		((struct header *)skb->data)->probe_ns = cpu_to_be64(at_ns);
	return skb;
}

struct sk_buff *cl_probe_answer_packet(struct flow *flow, __be64 probe_ns)
{
	struct sk_buff *skb = small_packet(flow, true, PROBE_HEADER_BYTES, PROBE_ANSWER, 0);

	if (skb)
		((struct header *)skb->data)->probe_ns = probe_ns;
	return skb;
}
