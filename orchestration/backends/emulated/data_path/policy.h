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

enum cl_event_kind { CL_START, CL_TX, CL_ACK, CL_NACK, CL_CNP, CL_TIMEOUT, CL_RTT };

#define CL_OWN_WORDS 10
#define CL_MOST_PARAMETERS 24

/* What a policy sees of its flow, and what it answers: `rate_bps`. */
struct cl_flow_state {
	u64 now_ns;
	u64 rate_bps;
	u64 line_bps;
	u64 rtt_ns; /* with CL_ACK, 0 if this one was not timed */
	u32 event;
	u32 bytes; /* sent with CL_TX, acknowledged with CL_ACK */
	u64 own[CL_OWN_WORDS]; /* the policy's own memory, 0 at CL_START */
};

struct cl_policy {
	const char *name;
	void (*happen)(struct cl_flow_state *flow, const u32 *parameters);
	u32 parameters; /* how many numbers it takes */
};

extern const struct cl_policy cl_policy_fixed, cl_policy_dcqcn;

#endif
