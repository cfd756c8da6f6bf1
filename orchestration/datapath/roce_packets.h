/* SPDX-License-Identifier: GPL-2.0-only */
/* RoCEv2 packets as they are on the wire: see roce_packets.c. */
#ifndef CLOSLOOP_ROCE_PACKETS_H
#define CLOSLOOP_ROCE_PACKETS_H

#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include "roce.h"
#include "telemetry.h"

#define ROCE_PORT CL_ROCE_PORT
#define PSN_MASK 0xffffffU
#define FIRST_QPN 2 /* 0 and 1 are for management */
#define ICRC_BYTES 4
#define BTH_PAD_SHIFT 4 /* in flags: bytes that fill the payload up to a multiple of 4 */
#define BTH_BECN BIT(30) /* in qpn */
#define AETH_ACK 0x1f
#define AETH_NAK_SEQUENCE 0x60

enum opcode {
	SEND_FIRST = 0x00,
	SEND_MIDDLE = 0x01,
	SEND_LAST = 0x02,
	SEND_ONLY = 0x04,
	ACKNOWLEDGE = 0x11,
	CNP = 0x81,
	/* from 0xc0 on, the specification leaves opcodes to manufacturers */
	PROBE = 0xc0,
	PROBE_ANSWER = 0xc1,
};

struct bth {
	u8 opcode, flags;
	__be16 partition;
	__be32 qpn;
	__be32 psn; /* its first bit asks for an acknowledgement */
} __packed;

struct header {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct bth bth;
	union {
		struct {
			__be32 aeth;
			__be32 arrived; /* with selective repeat, the packet that made a NAK */
		};
		__be64 probe_ns; /* when a probe was sent */
		u8 reserved[16]; /* of a CNP */
	};
} __packed;

#define DATA_HEADER_BYTES offsetof(struct header, aeth)
#define ACK_HEADER_BYTES (DATA_HEADER_BYTES + 4)
#define SELECTIVE_NAK_HEADER_BYTES (DATA_HEADER_BYTES + 8)
#define PROBE_HEADER_BYTES (DATA_HEADER_BYTES + 8)
#define CNP_HEADER_BYTES (DATA_HEADER_BYTES + 16)

/* Of data and acknowledgements, behind the header, if the policy asks for it. */
static inline u32 telemetry_bytes(void)
{
	return cl_telemetry ? sizeof(struct cl_telemetry) : 0;
}

/* In place of freeing a packet that has been read. */
void cl_packet_done(struct sk_buff *skb);
struct sk_buff *cl_data_packet(struct flow *flow, u32 psn, bool ask);
void cl_write_icrc(struct sk_buff *skb);
struct sk_buff *cl_probe_packet(struct flow *flow, u64 at_ns);
struct sk_buff *cl_probe_answer_packet(struct flow *flow, __be64 probe_ns);
struct sk_buff *cl_cnp_packet(struct flow *flow);
/* `seen` is the telemetry of the packet that is acknowledged, NULL without. */
struct sk_buff *cl_ack_packet(struct flow *flow, const struct cl_telemetry *seen);
struct sk_buff *cl_nak_packet(struct flow *flow, u32 arrived);

#endif
