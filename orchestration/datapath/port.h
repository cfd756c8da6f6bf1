/* SPDX-License-Identifier: GPL-2.0-only */
/* A port of a switch: its queues, its line and the cable. See port.c. */
#ifndef CLOSLOOP_PORT_H
#define CLOSLOOP_PORT_H

#include "buffer.h"
#include "data_path.h"
#include "wire.h"

/* What user space reads of one queue: see queues.c. */
struct cl_queue_state {
	u64 tx_bytes;
	u64 tx_packets;
	u64 marked_packets;
	u64 dropped_packets;
	u32 backlog_bytes;
	u32 kmin_bytes;
	u32 kmax_bytes;
	u32 max_p; /* the marking probability at kmax, as a share of 2^32 */
};

/* What user space says of one queue when it makes a port. */
struct cl_queue_options {
	u32 limit_bytes;
	u32 quantum_bytes; /* of deficit round robin */
};

/* The whole of a port's options. */
struct cl_port_options {
	u64 rate_bps;
	u64 delay_ns; /* of the cable, behind the queue */
	u64 seed;     /* of the stream that marking draws from */
	u32 framing_bytes; /* what each packet takes on the wire besides its bytes */
	u32 first_queue;   /* the number of its first queue in /proc/closloop/queues */
	u32 classes;
	u16 forwards; /* 1: packets that arrive here are forwarded */
	u16 marks_departures; /* 1: marks what leaves, by what it leaves behind; 0: what arrives */
	struct cl_queue_options queue[CL_MOST_CLASSES];
	struct cl_buffer_options buffer;
};

struct queue {
	struct cl_fifo packets;
	struct list_head turn; /* among those that have packets */
	u32 deficit_bytes, quantum_bytes, limit_bytes;
	struct cl_queue_state state;
};

struct port {
	struct cl_event arrival; /* of the first packet on the wire at the other end */
	struct Qdisc *sch;
	struct net_device *dev, *peer;
	struct cl_fifo wire, control; /* pause frames go before all packets */
	struct list_head turns; /* queues that have packets and are not stopped */
	u64 stream;
	u32 first_queue, classes;
	struct cl_line line;
	bool listed, forwards, marks_departures;
	struct queue queue[CL_MOST_CLASSES];
	struct cl_share share;
};

/* Make a port of what user space says of it. It is all 0, but for `sch`, `dev` and `peer`. */
void cl_port_init(struct port *port, const struct cl_port_options *options);
/* Drop all that it has. */
void cl_port_reset(struct port *port);
int cl_port_enqueue(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free);
/* Ask the memory for what a packet that enters touches. */
void cl_port_warm(const struct Qdisc *port);
void cl_port_settle(struct Qdisc *port);
void cl_port_set(struct Qdisc *port, u32 klass, u32 kmin_bytes, u32 kmax_bytes, u32 max_p);
void cl_port_state(struct Qdisc *port, u32 klass, struct cl_queue_state *state);

#endif
