/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The state of an engine: its ports, switches, NICs and flows.
 *
 * Ports are numbered device by device here, so that those of a switch are neighbours in memory;
 * api.h's numbers are those of the testbed. What is touched for every packet stands apart from what
 * is not, in whole cache lines.
 */
#ifndef CLOSLOOP_ENGINE_H
#define CLOSLOOP_ENGINE_H

#include "base.h"
#include "api.h"
#include "packet.h"

#define CL_MAX_PORTS 1024 /* of a switch */
#define MAX_INCIDENTS 256
#define MAX_TIMED 16
#define WHEEL_SLOTS 1024

struct queue {
	u32 head, tail; /* of what waits and has no time yet */
	struct cl_queue_state state;
	u32 limit_bytes;
	u32 deficit_bytes;
} CL_ALIGNED;

/* What a port sends by, towards the other end of its cable. */
struct out {
	u64 free_ps;     /* when the line is free for the next packet */
	u64 stream;      /* of marking */
	u32 tail;        /* of the list of what is on the wire, or has its time to be */
	u32 left;        /* in that list, the first that has not begun to leave */
	u32 ps_per_byte; /* 0 if that is no whole number */
	u32 delay_ns;
	u32 peer_node;
	u32 peer_bit;    /* of the other end, among the arrivals at its node */
	u32 control, control_end; /* pause frames, which go before all packets; 0: no list yet */
	bool has_control;
	u8 turns;        /* how many queues have packets and are not stopped */
	u8 stopped;      /* classes, as bits, that the peer has stopped */
	u8 discards;     /* classes, as bits, of which the watchdog drops what comes */
	u8 order[8];     /* classes, as they take turns */
	struct queue queue; /* of the first class; in the neighbouring line */
} __attribute__((aligned(2 * CL_LINE)));

/* The pauses that a port or a NIC has received from its peer: IEEE 802.1Qbb. Arrays are by priority. */
struct pause {
	u8 paused;  /* priorities, as bits, that the peer has stopped */
	u8 ignored; /* those of them that the watchdog lets go on */
	u64 run_out_ns;
	u64 since_ns[8], until_ns[8], last_ns[8];
	u64 frames[8], paused_ns[8];
};

/* A switch port's part in the buffer of its switch: buffer.c. Arrays are by class. */
struct share {
	u32 headroom_used[8]; /* of what arrived here and has not begun to leave */
	u32 headroom_bytes;
	/* what this port tells its peer */
	u8 stopping;
	u64 refresh_at_ns, refresh_ns;
	u64 frames[8], since_ns[8], stopping_ns[8];
	struct pause pause;
	/* the watchdog's */
	u64 watch_ns;
	u8 stuck;
	u64 looked_ns[8]; /* when it last found a stopped queue empty, or let it go on */
	u32 trace[8];
};

struct fabric_switch {
	u32 first, ports; /* its ports */
	u32 ecmp_seed, number;
	u64 busy[CL_MAX_PORTS / 64]; /* ports that have something to send, as bits */
	/* its buffer */
	u32 pool_bytes, used_bytes, headroom_used;
	u32 stopping; /* ports and classes of which the peer is paused */
	bool stopped_by_drop; /* a peer may have nothing here, and be paused */
	u64 lossless_drops;
	u64 timer_ns; /* the first of its ports' timers */
	u64 departs_ns; /* while peers are stopped: nothing leaves before, 0: not known */
};

struct waiting {
	u64 next_ps;
	u32 flow;
};

/* Flows that have something to send, by when they may. */
struct heap {
	struct waiting *at;
	u32 count, room;
};

/* What waits at a NIC of one class: flows by their times, and acknowledgements and CNPs. */
struct lane {
	struct heap heap;
	u32 control, control_end; /* 0: no list yet */
};

struct nic {
	u32 port;
	u8 controls;           /* classes, as bits, that have acknowledgements or CNPs */
	bool has_own;          /* its parameters are its own, not those of all NICs */
	u64 start_ps;          /* when its next flow starts */
	u64 timer_ns;          /* when it is to look at its pause, or its patience ends */
	struct lane lane[8];   /* by class */
	u64 received_packets, out_of_order_packets;
	u64 cnp_interval_ns;
	u64 patience_ns;       /* when the first flow may have waited too long */
	u32 unfinished;        /* flow number plus 1, 0: none */
	u32 flows;
	u32 begun, end;        /* of `posted`: its flows, by start */
	u64 cnps, resent, timeouts, rtt_ns;
	u64 line_bps;
	u32 external_port;
	u32 parameters[CL_PARAMETERS];
	struct pause pause;
} CL_ALIGNED;

struct sender {
	u64 next_ps, progress_ns;
	u64 asked_ns; /* when, with nobody asked before */
	u32 packets, next, acked, asked; /* in packets; asked: after the last that asked */
	u32 nic, sent_packets;
	u8 waiting, klass, ecn, has_sent;
	u32 timed_first, timed_end; /* modulo MAX_TIMED */
	struct cl_flow_result result CL_ALIGNED;
	u64 start_ns, bytes;
	u32 before, after; /* among its NIC's unfinished flows, plus 1 */
	struct cl_flow_state state CL_ALIGNED;
	/* packets on their way that asked, and when they were sent; when full, others are not timed */
	struct {
		u64 at_ns;
		u32 psn;
	} timed[MAX_TIMED];
} CL_ALIGNED;

struct receiver {
	u64 cnp_ns, received_ns;
	u32 expected, packets, nic, marked;
	u8 klass, asked_again;
};

/* What arrives at a switch in a window. */
struct arrival {
	struct packet packet;
	u32 in, out, next;
};

/* Those arrivals in the order of their times: a wheel of slots, each with a sorted list. */
struct wheel {
	struct arrival *arrival;
	u32 count, room;
	u32 shift; /* a slot has 2^shift nanoseconds */
	u64 taken[WHEEL_SLOTS / 64];
	u32 first[WHEEL_SLOTS], last[WHEEL_SLOTS];
	u32 *order; /* numbers of arrivals, as they happen */
};

struct cl_engine {
	struct packet *arena; /* of all lists: lists.h */
	u32 arena_end, arena_room, free_chunk;
	u32 *heads;           /* by port: the list of what arrives there */
	u64 *due_ns;          /* by node: before, nothing happens there */
	u64 *coming;          /* by node, in words: ports of which the list of arrivals is not empty */
	struct out *out;
	struct queue *more_queues; /* of the other classes, port by port */
	struct fabric_switch *fabric_switch;
	struct share *share;  /* NULL without shared buffers */
	u32 *held_bytes;      /* by port and class: of what arrived and has not begun to leave, those
			       * outside the headroom
			       */
	struct nic *nic;
	struct sender *sender;
	struct receiver *receiver;
	u64 *route;           /* by flow, there and back: ports of the switches, the first in the lowest bits */
	struct wheel wheel;
	struct cl_counts counts;

	struct cl_fabric fabric;
	const struct cl_policy *policy;
	struct cl_nics nics;
	u8 class_bit[8];      /* a class' priority, as a bit */
	u32 route_bits, words; /* words: of a switch's ports, as bits */
	bool times_ahead;     /* a packet that enters a queue gets its time at once: port.c */
	u64 window_ns;        /* the shortest delay */
	u64 now_ns;           /* before, all has happened */
	u64 watch_ns;         /* when the watchdog looks next */

	u32 ports, switches, nic_count, flows;
	u32 *internal, *external; /* numbers of ports */
	u32 *owner, *peer;    /* by port: its device (of api.h), and the port at the other end */
	u32 *node;            /* by device: of a switch its number, of a host U32_MAX */
	u32 *nic_of;          /* by port, of hosts */
	u32 *first_queue;     /* by port, of switches: its number in api.h */
	u64 *rate_bps;        /* by port */
	u32 *address;         /* by port, of hosts */
	u32 *external_queue, *internal_queue; /* numbers of queues; UINT32_MAX: none */
	u32 *posted;          /* flows by NIC and start */
	struct incident_list {
		struct cl_incident incident[MAX_INCIDENTS];
		u32 count, traces;
	} incidents;
	bool is_running;
	jmp_buf stop;         /* where cl_engine_run ends at once */
	char error[CL_ERROR_BYTES];
};

static inline u32 cl_priority(const struct cl_engine *e, u32 klass)
{
	return e->fabric.priority[klass];
}

static inline u64 cl_sending_ps(const struct cl_engine *e, u32 port, const struct out *o, u32 bytes)
{
	u64 total = bytes + e->fabric.framing_bytes;

	if (likely(o->ps_per_byte))
		return total * o->ps_per_byte;
	return total * 8 * CL_PS_PER_S / e->rate_bps[port];
}

static inline struct fabric_switch *cl_switch_of(struct cl_engine *e, u32 port)
{
	return &e->fabric_switch[e->node[e->owner[port]]];
}

static inline struct queue *cl_queue(const struct cl_engine *e, const struct out *o, u32 klass)
{
	return klass ? &e->more_queues[(o - e->out) * (e->fabric.classes - 1) + klass - 1] :
		       (struct queue *)&o->queue;
}

/* By its number, which is that of its port times the classes, plus its class. */
static inline struct queue *cl_queue_at(const struct cl_engine *e, u32 number)
{
	return cl_queue(e, &e->out[number / e->fabric.classes], number % e->fabric.classes);
}

static inline u32 *cl_held(const struct cl_engine *e, u32 port, u32 klass)
{
	return &e->held_bytes[port * e->fabric.classes + klass];
}

static void fail(struct cl_engine *e, const char *why)
{
	if (!e->error[0])
		snprintf(e->error, sizeof(e->error), "%s", why);
}

#endif
