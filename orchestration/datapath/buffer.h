/* SPDX-License-Identifier: GPL-2.0-only */
/* A switch's shared buffer: see buffer.c. A port has a share in it, see port.c. */
#ifndef CLOSLOOP_BUFFER_H
#define CLOSLOOP_BUFFER_H

#include "data_path.h"
#include "pfc.h"

#define CL_MOST_SWITCHES 4096

/* What user space says of a switch's buffer when it makes a port; all but headroom is the same for
 * all ports of the switch.
 */
struct cl_buffer_options {
	u64 detect_ns, restore_ns; /* the watchdog's; 0: there is none */
	u32 pool_bytes;     /* what is shared, without the headroom; 0: no shared buffer */
	u32 headroom_bytes; /* of this port, for each lossless class */
	u32 xoff_bytes;     /* of lossless classes, in place of alpha; 0: none */
	u32 xon_offset_bytes;
	u32 alpha[CL_MOST_CLASSES]; /* as shares of 2^16 */
	u32 number; /* of the switch in /proc/closloop/buffers */
	u16 quanta;
	u8 lossless; /* classes, as bits */
	u8 action;   /* the watchdog's: 0 says so, 1 drops, 2 forwards */
	u8 priority[CL_MOST_CLASSES];
};

struct cl_buffer;
struct cl_share;

/* What the buffer and its watchdog ask of the port that a share is part of. Its pause settles it. */
struct cl_share_ops {
	/* Schedule its next arrival or departure anew. */
	void (*expect)(struct cl_share *share);
	/* Send a pause frame, by an event: this may be within an update of the port. */
	void (*control)(struct cl_share *share, struct sk_buff *skb, u64 now_ns);
	/* Drop what waits in a queue. */
	void (*discard)(struct cl_share *share, u32 klass, u64 now_ns);
	/* Whether a queue has packets that came by the port of `from`, or any if that is NULL. */
	bool (*holds)(const struct cl_share *share, u32 klass, const struct cl_share *from);
};

/* A switch port's part in the buffer of its switch. Arrays are by class. */
struct cl_share {
	struct cl_buffer *buffer; /* NULL: there is none, each queue has a limit of its own */
	const struct cl_share_ops *ops;
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
/* That of the port that a device is now; NULL of any other and of a port without a shared buffer. */
struct cl_share *cl_buffer_share(struct net_device *dev);
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

#endif
