/* SPDX-License-Identifier: GPL-2.0-only */
/* A switch's shared buffer, and priority-based flow control (IEEE 802.1Qbb).
 *
 *   pfc.c       pause frames, made and obeyed: what a port or a NIC has been told by its peer
 *   buffer.c    a switch's buffer: who may enter, and when a peer is told to stop and to go on
 *   watchdog.c  ports that have been stopped for too long, and who it is that stops them
 */
#ifndef CLOSLOOP_PFC_H
#define CLOSLOOP_PFC_H

#include "data_path.h"
#include "wire.h"

#define CL_PRIORITIES 8
#define CL_MOST_SWITCHES 4096

/* What a sender has been told by its peer. `settle` sends what had begun before it was told,
 * `obey` goes on by `cl_stopped`. Both belong to the port or NIC that this is part of.
 */
struct cl_pause {
	struct cl_event run_out;
	void (*settle)(struct cl_pause *pause, u64 now_ns);
	void (*obey)(struct cl_pause *pause, u64 now_ns);
	u64 rate_bps;
	u8 told;    /* priorities, as bits, that were told to stop */
	u8 ignored; /* those of them that the watchdog lets go on */
	u64 since_ns[CL_PRIORITIES], until_ns[CL_PRIORITIES], last_ns[CL_PRIORITIES];
	u64 frames[CL_PRIORITIES], paused_ns[CL_PRIORITIES];
};

/* Priorities, as bits, that must not begin to send. */
static inline u8 cl_stopped(const struct cl_pause *pause)
{
	return pause->told & ~pause->ignored;
}

void cl_pause_init(struct cl_pause *pause, u64 rate_bps,
		   void (*settle)(struct cl_pause *pause, u64 now_ns),
		   void (*obey)(struct cl_pause *pause, u64 now_ns));
/* Take a frame of type ETH_P_PAUSE from the peer. The frame stays the caller's. */
void cl_pause_receive(struct cl_pause *pause, struct sk_buff *skb);
u64 cl_paused_ns(const struct cl_pause *pause, u32 priority, u64 now_ns);
/* How long a number of quanta, each of 512 bit times, is. */
u64 cl_quanta_ns(u64 quanta, u64 rate_bps);
/* A frame that stops (`quanta`) or lets go (0) the priorities in the bits of `vector`. */
struct sk_buff *cl_pause_frame(struct net_device *dev, u8 vector, u16 quanta);
/* The priority of a packet by its IPv4 type of service; the same in all of a guest's fabric. */
u32 cl_priority_of(u8 tos);

struct cl_buffer;

/* A switch port's part in the buffer of its switch. Arrays are by class. */
struct cl_share {
	struct cl_buffer *buffer; /* NULL: there is none, each queue has a limit of its own */
	struct Qdisc *port;
	struct net_device *dev, *peer;
	u32 place, first_queue, classes;
	/* of what arrived here and has not begun to leave */
	u32 shared_bytes[CL_MOST_CLASSES], headroom_used[CL_MOST_CLASSES];
	u32 headroom_bytes;
	/* what this port tells its peer */
	struct cl_event refresh;
	u64 refresh_ns;
	u8 stopping;
	u64 frames[CL_MOST_CLASSES], since_ns[CL_MOST_CLASSES], stopping_ns[CL_MOST_CLASSES];
	/* what its peer has told it */
	struct cl_pause pause;
	/* the watchdog's */
	struct cl_event watch;
	u8 stuck, discards; /* classes, as bits */
	u64 looked_ns[CL_MOST_CLASSES]; /* when it last found a stopped queue empty, or let it go on */
	u32 trace[CL_MOST_CLASSES];
};

/* One switch. */
struct cl_buffer {
	struct cl_buffer_options options; /* of its first port; all but headroom is the same */
	struct cl_share *share[CL_MOST_PORTS];
	u32 ports, used_bytes, headroom_used;
	u32 stopping; /* ports and classes that are told to stop */
	u64 lossless_drops;
};

/* What user space reads of a switch, and of one queue of a port: its pauses, and what came in by it. */
struct cl_buffer_state {
	u64 lossless_drops;
	u32 used_bytes, headroom_bytes;
};

struct cl_pause_state {
	u64 frames_received, paused_ns, frames_sent, stopping_ns;
	u32 held_bytes, headroom_bytes;
};

/* The first `count` queues' and switches' now, with bottom halves off. Others are left alone. */
void cl_pauses_states(struct cl_pause_state *states, u32 count);
void cl_buffers_states(struct cl_buffer_state *states, u32 count);

int cl_buffer_join(struct cl_share *share, const struct cl_buffer_options *options, u64 rate_bps,
		   struct netlink_ext_ack *extack);
void cl_buffer_leave(struct cl_share *share);
/* Whether a packet for a queue of `backlog_bytes` may enter; the port `out` is settled. */
bool cl_buffer_admit(struct cl_share *out, struct sk_buff *skb, u32 klass, u32 backlog_bytes,
		     u64 now_ns);
/* A packet that was admitted begins to leave. */
void cl_buffer_release(struct cl_share *out, struct sk_buff *skb, u32 klass, u64 now_ns);
/* Whether somebody waits for departures: then a port needs an event at each. */
static inline bool cl_buffer_waits(const struct cl_share *share)
{
	return share->buffer && share->buffer->stopping;
}

static inline u32 cl_class_bit(const struct cl_share *share, u32 klass)
{
	return BIT(share->buffer->options.priority[klass]);
}

/* Whether a class has been stopped by the peer. */
static inline bool cl_class_stopped(const struct cl_share *share, u32 klass)
{
	return share->buffer && (cl_stopped(&share->pause) & cl_class_bit(share, klass));
}

/* After a change of `share->pause`. */
void cl_watch(struct cl_share *share, u64 now_ns);
void cl_watch_init(struct cl_share *share);

/* port.c: of a qdisc that is a port; NULL of any other and of a port without a shared buffer. */
struct cl_share *cl_port_share(struct Qdisc *sch);
void cl_port_expect(struct Qdisc *sch);
void cl_port_control(struct Qdisc *sch, struct sk_buff *skb, u64 now_ns);
void cl_port_discard(struct Qdisc *sch, u32 klass, u64 now_ns);
bool cl_port_holds(struct Qdisc *sch, u32 klass, const struct cl_share *from);

#endif
