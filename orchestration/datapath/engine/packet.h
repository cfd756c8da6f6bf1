/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet as the process has it: 16 bytes that are copied from list to list.
 *
 * Who handles packets asks these functions for what differs between builds.
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

struct packet {
	u32 at_ns; /* modulo 2^32: on a wire, when it arrives; in a list of a NIC, when it was made */
	u32 flow;  /* of a pause: its quanta */
	u64 psn : 24; /* as on the wire; of a pause: its priorities, as bits */
	u64 bytes : 13;
	u64 kind : 3;
	u64 asks : 1;     /* for an acknowledgement */
	u64 ect : 1;      /* its sender answers marks */
	u64 ce : 1;       /* marked */
	u64 klass : 3;
	u64 switches : 5; /* that have forwarded it */
	u64 from : 11;    /* by which port of the switch it came, plus 1; 0 if nobody counts that */
};

_Static_assert(sizeof(struct packet) == 16, "a packet has grown");

static inline u32 cl_bytes(const struct packet *p)
{
	return p->bytes;
}

static inline enum kind cl_kind(const struct packet *p)
{
	return p->kind;
}

static inline u32 cl_class(const struct packet *p)
{
	return p->klass;
}

static inline u32 cl_switches(const struct packet *p)
{
	return p->switches;
}

static inline bool cl_asks(const struct packet *p)
{
	return p->asks;
}

static inline bool cl_is_marked(const struct packet *p)
{
	return p->ce;
}

/* Mark a packet if its sender answers marks; return whether it is marked then. */
static inline bool cl_mark(struct packet *p)
{
	if (!p->ect)
		return false;
	p->ce = 1;
	return true;
}

static inline u32 cl_from(const struct packet *p)
{
	return p->from;
}

static inline void cl_set_from(struct packet *p, u32 from)
{
	p->from = from;
}

/* The whole number of a packet of which the wire has 24 bits, near `about`. */
static inline u32 cl_psn(const struct packet *p, u32 about)
{
	return about + (u32)((s32)(((u32)p->psn - about) << 8) >> 8);
}

#endif
