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
typedef int16_t s16;
typedef int32_t s32;
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

/* In-band telemetry: what a switch port wrote into a packet as it left (telemetry.h). Packets have
 * few bits for it: times and bytes start again from 0 above these masks.
 */
#define CL_HOP_NS_MASK 0xffffffU
#define CL_HOP_BYTES_MASK 0x7ffffffU

struct cl_hop {
	u32 at_ns;
	u32 tx_bytes; /* sent by the port until then, this packet not counted */
	u32 queue_bytes; /* left behind, of all classes */
	u32 rate_mbps;
	u32 path; /* the same at all hops; another one is another path */
};

/* `hop` has `flow->hops` records, in the order of the path. */
struct cl_policy {
	const char *name;
	void (*happen)(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop);
	u32 parameters; /* how many numbers it takes */
	u32 telemetry;  /* 1: its packets ask for telemetry */
};

/* What a policy that is a BPF program sees. It calls nothing: its functions are CL_INLINE. */
struct cl_context {
	struct cl_flow_state flow;
	u32 parameters[CL_MOST_PARAMETERS];
	struct cl_hop hop[CL_MOST_HOPS];
};

#define CL_INLINE static inline __attribute__((always_inline))

/* Ends a policy's source, with its function `happen`: its name, the number of its parameters, and
 * whether its packets ask for telemetry.
 */
#ifndef __BPF__
#define CL_POLICY(id, count, asks) \
	const struct cl_policy cl_policy_##id = { #id, happen, count, asks }
#define CL_ROUND_OR(label) do { if (0) goto label; } while (0)
#else
#define CL_POLICY(id, count, asks) \
	__attribute__((section("policy"), used)) int cl_policy_##id(struct cl_context *context) \
	{ \
		happen(&context->flow, context->parameters, context->hop); \
		return 0; \
	} \
	__attribute__((section("about"), used)) const u32 cl_about[2] = { count, asks }
/* In a loop of which the verifier sees no end: go to `label` after 8 million rounds (the
 * instruction "may_goto", which older assemblers do not know).
 */
#define CL_ROUND_OR(label) \
	asm goto("1:\n.byte 0xe5, 0\n.short (%l0 - 1b - 8) / 8\n.long 0" : : : : label)
#endif

#ifndef __BPF__
extern const struct cl_policy cl_policy_fixed, cl_policy_dcqcn, cl_policy_swift, cl_policy_timely,
	cl_policy_hpcc, cl_policy_rlcc, cl_policy_rlcc_mlp, cl_policy_rlcc_lstm;
#endif

#endif
