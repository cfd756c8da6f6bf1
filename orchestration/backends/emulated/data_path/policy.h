/* SPDX-License-Identifier: GPL-2.0-only */
/* A congestion control as a policy: a function of an event and a small state, in integers only.
 *
 * The events are those of NVIDIA's programmable congestion control. A policy's source needs no
 * other header, so that the guest's kernel, ns-3 and a shared library for tests compile the same.
 */
#ifndef CLOSLOOP_POLICY_H
#define CLOSLOOP_POLICY_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#endif

enum cl_event_kind {
	CL_START,
	CL_TX,
	CL_ACK,
	CL_NACK,
	CL_CNP,
	CL_TIMEOUT,
	CL_RTT, /* a probe has been answered */
};

#define CL_OWN_WORDS 24
#define CL_MOST_PARAMETERS 24
#define CL_MOST_HOPS 8

/* What a policy sees of its flow, and what it answers: `rate_bps` and `window_bytes`. */
struct cl_flow_state {
	u64 now_ns;
	u64 rate_bps;
	u64 line_bps;
	u64 rtt_ns; /* with CL_RTT, and with CL_ACK: 0 if this one was not timed */
	u32 event;
	u32 bytes; /* sent with CL_TX, acknowledged with CL_ACK and CL_NACK */
	u64 sent_bytes;    /* of its payload until now, in whole packets; less after going back */
	u64 acked_bytes;   /* of them */
	u32 window_bytes;  /* at most so many of its payload are on their way, 0: any */
	u32 payload_bytes; /* of a packet */
	u32 switches;      /* on its path, with CL_ACK */
	u32 hops;          /* telemetry records, with CL_ACK */
	u64 own[CL_OWN_WORDS]; /* the policy's own memory, 0 at CL_START */
};

/* In-band telemetry: what a switch port wrote into a packet as it left. */
struct cl_hop {
	u64 at_ns;
	u64 tx_bytes; /* sent by the port until then, this packet not counted */
	u64 rate_bps;
	u32 queue_bytes; /* left behind, of all classes */
	u32 unused;
};

/* `hop` has `flow->hops` records, in the order of the path. */
struct cl_policy {
	const char *name;
	void (*happen)(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop);
	u32 parameters; /* how many numbers it takes */
	u32 telemetry;  /* 1: its packets ask for telemetry */
};

extern const struct cl_policy cl_policy_fixed, cl_policy_dcqcn, cl_policy_swift, cl_policy_timely,
	cl_policy_hpcc;

#endif
