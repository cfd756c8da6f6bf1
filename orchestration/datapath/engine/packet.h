/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet as the process has it: 24 bytes that are copied from list to list.
 *
 * Whoever handles packets asks these functions only, and no field. A packet carries its own route, so
 * that switches need nothing of its flow.
 */
#ifndef CLOSLOOP_ENGINE_PACKET_H
#define CLOSLOOP_ENGINE_PACKET_H

#include "base.h"

/* On the wire: Ethernet, IPv4, UDP, InfiniBand's transport header and CRC; roce_packets.c has them. */
#define CL_DATA_BYTES 58 /* beside the payload, which is filled up to a multiple of 4 */
#define CL_ACK_BYTES 62
#define CL_CNP_BYTES 74
#define CL_PAUSE_BYTES 60 /* IEEE 802.3-2018, annex 31D, without the check sequence */

enum kind { NO_PACKET, DATA, ACK, NAK, CNP, PAUSE };

#define CL_ROUTE_BITS 53
#define CL_ROUTE_MASK ((1ULL << CL_ROUTE_BITS) - 1)
#define CL_KIND_BITS 3
#define CL_ASKS 0x20 /* for an acknowledgement */
#define CL_ECT 0x40  /* its sender answers marks */
#define CL_CE 0x80   /* marked */

struct packet {
	u64 route;  /* ports of the switches to come, the next one in the lowest bits; in the highest,
		     * by which port of the switch it came, plus 1, 0 if nobody counts that
		     */
	u32 at_ns;  /* modulo 2^32: on a wire, when it arrives; in a list of a NIC, when it was made */
	u32 flow;   /* of a pause: its quanta */
	u32 psn;    /* of a pause: its priorities, as bits */
	u16 bytes;
	u8 kind;    /* enum kind, and above it CL_ASKS, CL_ECT, CL_CE */
	u8 klass;   /* in three bits, above them how many switches have forwarded it */
};

static inline u32 cl_bytes(const struct packet *p)
{
	return p->bytes;
}

static inline enum kind cl_kind(const struct packet *p)
{
	return p->kind & ((1 << CL_KIND_BITS) - 1);
}

static inline u32 cl_class(const struct packet *p)
{
	return p->klass & 7;
}

static inline u32 cl_switches(const struct packet *p)
{
	return p->klass >> 3;
}

static inline bool cl_asks(const struct packet *p)
{
	return p->kind & CL_ASKS;
}

static inline bool cl_is_marked(const struct packet *p)
{
	return p->kind & CL_CE;
}

/* Mark a packet if its sender answers marks; return whether it is marked then. */
static inline bool cl_mark(struct packet *p)
{
	if (!(p->kind & CL_ECT))
		return false;
	p->kind |= CL_CE;
	return true;
}

static inline u32 cl_from(const struct packet *p)
{
	return p->route >> CL_ROUTE_BITS;
}

static inline void cl_set_from(struct packet *p, u32 from)
{
	p->route = (p->route & CL_ROUTE_MASK) | (u64)from << CL_ROUTE_BITS;
}

/* The port of the switch that forwards a packet now; the next one is then in its place. */
static inline u32 cl_next_port(struct packet *p, u32 bits)
{
	u32 port = p->route & ((1U << bits) - 1);

	p->route = (p->route & CL_ROUTE_MASK) >> bits;
	p->klass += 1 << 3;
	return port;
}

#endif
