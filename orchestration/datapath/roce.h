/* SPDX-License-Identifier: GPL-2.0-only */
/* What the files of the RoCE NIC share: its packets, its flows, and the NIC itself.
 *
 *   nic.c           the line, and the queueing discipline "closloop_nic"
 *   queue_pair.c    what senders and receivers do: acknowledge, mark, send again
 *   decisions.c     when what a policy decides takes effect
 *   roce_packets.c  packets as they are on the wire
 *   roce_flows.c    /proc/closloop/flows, received and nics
 *   parameters.c    /proc/closloop/parameters: each NIC's own, at run time
 */
#ifndef CLOSLOOP_ROCE_H
#define CLOSLOOP_ROCE_H

#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/rbtree.h>
#include <linux/udp.h>
#include "data_path.h"
#include "pfc.h"
#include "policy.h"
#include "telemetry.h"
#include "wire.h"

#define ROCE_PORT CL_ROCE_PORT
#define PSN_MASK 0xffffffU
#define FIRST_QPN 2 /* 0 and 1 are for management */
#define ICRC_BYTES 4
#define BTH_PAD_SHIFT 4 /* in flags: bytes that fill the payload up to a multiple of 4 */
#define BTH_BECN BIT(30) /* in qpn */
#define AETH_ACK 0x1f
#define MOST_TIMED 16
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

/* A flow as user space posts it. */
struct posted {
	u64 start_ns; /* of CLOCK_MONOTONIC */
	u64 bytes;
	__be32 src, dst;
	u16 udp_source;
	u8 tos;
	u8 unused[5];
};

/* And its results. Times are of CLOCK_MONOTONIC, 0 for never. */
struct result {
	u64 sent_ns;     /* when its first bit was sent */
	u64 received_ns; /* when the receiver had all of it */
	u64 done_ns;     /* when the sender knew */
	u64 rate_bps;
	u64 rtt_ns; /* the last one that was measured */
	u64 rtt_sum_ns; /* of all that were, and `rtts` how many */
	u64 acked_bytes; /* of its payload */
	u32 packets, resent, marked, cnps, naks, timeouts, probes, rtts;
};

struct flow {
	struct nic *nic, *to;
	void *onward[2]; /* the flow as the first switch knows it, there and back */
	struct posted posted;
	struct result result;
	struct cl_flow_state state;
	/* what is in effect of what its policy has decided, and until when that decides */
	u64 rate_bps, busy_until_ns;
	u32 window_bytes;
	/* the sender's, in packets */
	u32 packets, next, acked, asked; /* asked: after the last that asked */
	u64 asked_ns; /* when, with nobody asked before */
	u64 next_ps, progress_ns, probe_ns;
	/* packets on their way that asked, and when they were sent; when full, further ones are not timed */
	struct {
		u64 at_ns;
		u32 psn;
	} timed[MOST_TIMED];
	u32 timed_first, timed_end; /* modulo MOST_TIMED */
	/* with selective repeat: what the receiver is known to have, and of what is missing up to
	 * `lost_end` the first that has not been sent again
	 */
	unsigned long *known;
	u32 resend, lost_end;
	bool sending, probed;
	struct rb_node waiting;
	struct list_head turn, unfinished;
	/* the receiver's */
	u32 expected;
	unsigned long *held; /* with selective repeat: what it has */
	u32 held_end;
	bool asked_again;
	u64 cnp_ns;
};

struct nic {
	struct cl_event event, patience;
	struct Qdisc *sch;
	struct net_device *dev, *peer;
	__be32 address;
	struct cl_line line;
	struct cl_fifo wire, control, stack;
	struct cl_fifo held;           /* acknowledgements whose priority is stopped */
	struct rb_root_cached waiting; /* flows by the time of their next packet */
	struct list_head turns;        /* flows whose time has come */
	struct list_head stopped;      /* those of them whose priority is stopped */
	struct cl_pause pause;
	struct list_head unfinished;   /* flows by the time of their last progress */
	u32 *posted, posts, begun;     /* numbers of flows by start */
	u64 start_ps;                  /* when the next one starts, U64_MAX for never */
	bool stack_was_last;
	u16 ident;
	u64 cnps, resent, rtt_ns; /* of all its flows; the last round trip that was measured */
	u64 received_packets, out_of_order_packets; /* of data */
	struct cl_event decided;
	struct decision *first_decision, *last_decision; /* that have not taken effect */
	u64 busy_until_ns;
	u32 parameters[CL_MOST_PARAMETERS]; /* of its flows' policy */
	u64 cnp_interval_ns; /* of one flow's CNPs, which it sends as receiver */
	bool has_own; /* they are its own, not those of all NICs */
};

/* What user space reads of one NIC: /proc/closloop/nics and samples. */
struct nic_state {
	u64 cnps, resent, rtt_ns;
	u64 rate_bps; /* the sum of those of its unfinished flows */
	u64 received_packets, out_of_order_packets;
	__be32 address;
	u32 flows; /* unfinished ones */
};

#define MOST_NICS 4096

/* What happens to events while a policy decides: see decisions.c. By their numbers in flows.py. */
enum decisions { PIPELINED, BLOCKING, SERIAL };

/* All flows and NICs of this guest. */
struct roce {
	struct flow *flow;
	u32 count, received, done;
	const struct cl_policy *policy;
	struct cl_hop hop[CL_MOST_HOPS]; /* of the packet that is being read */
	/* of all NICs; see struct settings */
	u32 payload_bytes, ack_every, window_bytes;
	u64 timeout_ns, probe_interval_ns;
	u64 decision_latency_ns;
	enum decisions decisions;
	bool selective, icrc;
	unsigned long *bits; /* of all flows' `known` and `held` */
	struct nic *nic[MOST_NICS];
	u32 nics;
	struct page *zeros;
};

/* What user space writes before the flows. */
struct settings {
	u64 cnp_interval_ns, timeout_ns;
	u64 probe_interval_ns; /* 0: no probes */
	u64 decision_latency_ns;
	u32 payload_bytes, ack_every, window_bytes, policy;
	u32 selective; /* 1: selective repeat, 0: go-back-N */
	u32 icrc;      /* 1: packets have their CRC, for a capture */
	u32 decisions, unused;
	u32 parameters[CL_MOST_PARAMETERS];
};

extern struct roce cl_roce;

/* roce_flows.c: with bottom halves off */
void cl_nic_state(u32 number, struct nic_state *state);
struct nic *cl_nic_of(__be32 address);

/* nic.c */
void cl_nic_wait(struct nic *nic, struct flow *flow, u64 not_before_ps);
void cl_nic_control(struct nic *nic, struct sk_buff *skb, u64 now_ns);
void cl_nic_progress(struct nic *nic, struct flow *flow, u64 now_ns);
/* Find out when its next flow starts. */
void cl_nic_look_ahead(struct nic *nic);
void cl_nic_expect(struct nic *nic);
void cl_nic_settle(struct nic *nic);

/* queue_pair.c */
bool cl_flow_may_send(const struct flow *flow);
void cl_flow_begin(struct flow *flow);
void cl_flow_tell(struct flow *flow, u32 event, u64 now_ns, u32 bytes);
struct sk_buff *cl_flow_send(struct flow *flow, u64 at_ns);
void cl_flow_receive(struct nic *nic, struct flow *flow, const struct header *h, u64 now_ns);
void cl_flow_time_out(struct flow *flow, u64 now_ns);

/* decisions.c */
bool cl_decisions_hear(struct flow *flow, u32 event, u64 now_ns);
void cl_decisions_take(struct flow *flow, u64 rate_bps, u32 window_bytes);
bool cl_decision_takes_effect(struct nic *nic, u64 at_ps);
void cl_decisions_begin(struct nic *nic);
void cl_decisions_end(struct nic *nic);

/* roce_packets.c */
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
