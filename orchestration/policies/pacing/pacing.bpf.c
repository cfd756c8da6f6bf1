/* SPDX-License-Identifier: GPL-2.0-only */
/* A policy as the pacing of a Linux host's TCP: the policy's own C decides, once a round trip, the
 * most that a connection may send, beside the host's congestion control.
 *
 * A program for a cgroup's sockets (BPF_PROG_TYPE_SOCK_OPS), which kernels have had since 4.13, and
 * told of round trips since 5.3; 6.10 and later say how long the last one was, older ones the
 * smoothed one (include/net/tcp.h: tcp_bpf_rtt). The rate is set as SO_MAX_PACING_RATE, which TCP
 * itself keeps to, with or without the queueing discipline `fq`. What is waited for pacing is then
 * no part of a round trip (net/ipv4/tcp_output.c: tcp_wstamp_ns), as it would be if packets got
 * departure times on their way out.
 *
 * CL_SOURCE is the policy, with CL_POLICY of policy.h at its end. User space sets `config` before
 * the program is attached, and reads `counts` and the map `flows`
 * (orchestration/agent/policies/pacing.py, whose layout this is).
 */
#include "policy.h"

#undef CL_POLICY
#define CL_POLICY(id, count, asks) \
	__attribute__((section("about"), used)) const u32 cl_about[2] = { count, asks }
#include CL_SOURCE

#ifndef HELPER /* tests have functions of their own */
#define HELPER(number) __attribute__((kernel_helper(number)))
#endif

enum operation {
	ACTIVE_ESTABLISHED = 4, PASSIVE_ESTABLISHED = 5, RTO = 8, RETRANSMITTED = 9, STATE = 10,
	RTT = 12,
};
#define WANT_RTO 1
#define WANT_RETRANSMITTED 2
#define WANT_STATE 4
#define WANT_RTT 8
#define TCP_CLOSE 7
#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47
#define UNPACED (~0U)
#define BITS 8
#define HEADERS 52 /* of IPv4 and TCP with time stamps, which TCP's pacing counts as well */

/* The first fields of the kernel's struct (linux/bpf.h). */
struct bpf_sock_ops {
	u32 op, args[4], family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4];
	u32 remote_port, local_port, is_fullsock, snd_cwnd, srtt_us, flags, state, rtt_min;
	u32 snd_ssthresh, rcv_nxt, snd_nxt, snd_una, mss_cache;
};

/* A connection under the policy. */
struct flow {
	struct cl_flow_state policy;
	u64 lost_ns;   /* when it was last told of a loss */
	u32 former;    /* its SO_MAX_PACING_RATE before */
	u32 set;       /* and now: bytes/s, UNPACED for any */
	u32 timed;     /* round trips seen */
	u32 remote_ip4;
	u32 remote_port; /* in network order */
	u32 local_port;
	u32 least_us;  /* the least round trip, as TCP measured it, 0 before */
	u32 unused;
};

struct pacing {
	struct {
		u64 line_bps;
		u32 prefix, mask; /* connections to these addresses, in network order */
		u32 parameters[CL_MOST_PARAMETERS];
		u32 one_by_one; /* packets leave one by one: no segmentation offload sends several */
		u32 unused;
	} config;
	struct {
		u64 flows;     /* connections that came under the policy */
		u64 decisions;
		u64 untimed;   /* of those that have ended, without a round trip: they kept their rate */
		u64 smoothed;  /* round trips of which the kernel told the smoothed time only */
		u64 refused;   /* rates that the kernel did not take */
		u64 lost;      /* losses that the policy was told of */
	} counts;
	struct cl_hop no_hops[CL_MOST_HOPS];
} pacing;

_Static_assert(sizeof(struct cl_flow_state) == 264, "STATE there");
_Static_assert(sizeof(struct flow) == 304, "FLOW_BYTES there");
_Static_assert(__builtin_offsetof(struct pacing, counts) == 120, "COUNTS_AT there");

/* The map of connections, by cookie: the loader puts its descriptor here. */
extern char flows[];

HELPER(1) struct flow *map_lookup(void *map, const void *key);
HELPER(2) long map_update(void *map, const void *key, const void *value, u64 flags);
HELPER(3) long map_delete(void *map, const void *key);
HELPER(5) u64 now_ns(void);
HELPER(46) u64 socket_cookie(void *context);
HELPER(49) long set_option(void *context, int level, int name, void *value, int bytes);
HELPER(57) long get_option(void *context, int level, int name, void *value, int bytes);
HELPER(59) long want(void *context, int flags);

CL_INLINE void count(u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

/* Let the policy see the event in its state, and set the rate that it answers with. */
CL_INLINE void decide(struct bpf_sock_ops *context, struct flow *flow, u64 now)
{
	u64 rate;
	u32 value;

	if (!flow->policy.line_bps) { /* it has just begun, or was under another policy until now */
		flow->policy.line_bps = pacing.config.line_bps;
		flow->policy.event = CL_START;
	}
	flow->policy.now_ns = now;
	happen(&flow->policy, pacing.config.parameters, pacing.no_hops);
	rate = flow->policy.rate_bps / BITS;
	if (rate >= UNPACED)
		rate = UNPACED; /* the option has 32 bits: 34 Gbit/s and more are not paced */
	if (rate > flow->former)
		rate = flow->former;
	value = rate;
	if (value == flow->set)
		return;
	if (set_option(context, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof(value)))
		count(&pacing.counts.refused);
	else
		flow->set = value;
}

/* Begin to pace a connection to the fabric; 0 if it is none, or there is no room. */
CL_INLINE struct flow *begin(struct bpf_sock_ops *context, u64 cookie)
{
	struct flow empty = { 0 }, *flow;
	u32 former = UNPACED;

	/* of another family's peers the kernel gives no address here, or one that is not theirs */
	if ((context->remote_ip4 & pacing.config.mask) != pacing.config.prefix)
		return 0;
	if (get_option(context, SOL_SOCKET, SO_MAX_PACING_RATE, &former, sizeof(former)))
		former = UNPACED; /* kernels before 6.0 do not say */
	if (map_update(&flows, &cookie, &empty, 0))
		return 0;
	flow = map_lookup(&flows, &cookie);
	if (!flow)
		return 0;
	flow->former = flow->set = former;
	flow->remote_ip4 = context->remote_ip4;
	flow->remote_port = context->remote_port;
	flow->local_port = context->local_port;
	count(&pacing.counts.flows);
	want(context, WANT_RTO | WANT_RETRANSMITTED | WANT_STATE | WANT_RTT);
	return flow;
}

/* Receivers answer every second packet, and TCP takes the time of the first of the two. If packets
 * leave one by one, it has waited there for the second, which left a pacing gap later: for a slow
 * flow that is longer than any queue, and would keep it slow. What is left without the gap is no
 * less than the least round trip, which is of the flow's start: the first packets are answered each.
 */
CL_INLINE u32 without_gap(struct bpf_sock_ops *context, struct flow *flow, u32 rtt_us)
{
	u64 gap_us;

	if (!flow->least_us || rtt_us < flow->least_us)
		flow->least_us = rtt_us;
	if (!pacing.config.one_by_one || !flow->set)
		return rtt_us;
	gap_us = (context->mss_cache + HEADERS) * 1000000ULL / flow->set;
	return rtt_us > gap_us + flow->least_us ? rtt_us - gap_us : flow->least_us;
}

/* Note a round trip; return whether it has a time. */
CL_INLINE u32 timed(struct bpf_sock_ops *context, struct flow *flow)
{
	u32 rtt_us = context->args[0];

	if (!rtt_us) {
		rtt_us = context->srtt_us >> 3;
		count(&pacing.counts.smoothed);
	}
	if (!rtt_us)
		return 0;
	flow->policy.rtt_ns = without_gap(context, flow, rtt_us) * 1000ULL;
	flow->policy.event = CL_RTT;
	flow->timed++;
	count(&pacing.counts.decisions);
	return 1;
}

/* Note a loss; return whether the policy hears of it. A receiver tells of one once a round trip;
 * TCP here says so of every packet that is sent again.
 */
CL_INLINE u32 lost(struct bpf_sock_ops *context, struct flow *flow, u64 now, u32 event)
{
	if (event == CL_NACK && now - flow->lost_ns < (context->srtt_us >> 3) * 1000ULL)
		return 0;
	flow->lost_ns = now;
	flow->policy.rtt_ns = 0;
	flow->policy.event = event;
	count(&pacing.counts.lost);
	return 1;
}

CL_INLINE void ended(struct flow *flow, u64 *cookie)
{
	if (!flow->timed)
		count(&pacing.counts.untimed);
	map_delete(&flows, cookie);
}

__attribute__((section("sockops"), used)) int pace(struct bpf_sock_ops *context)
{
	u32 op = context->op, heard = 1;
	u64 cookie, now;
	struct flow *flow;

	if (op != ACTIVE_ESTABLISHED && op != PASSIVE_ESTABLISHED && op != RTO &&
	    op != RETRANSMITTED && op != STATE && op != RTT)
		return 1;
	cookie = socket_cookie(context);
	if (op == ACTIVE_ESTABLISHED || op == PASSIVE_ESTABLISHED)
		flow = begin(context, cookie);
	else
		flow = map_lookup(&flows, &cookie);
	if (!flow)
		return 1;
	now = now_ns();
	if (op == STATE) {
		if (context->args[1] == TCP_CLOSE)
			ended(flow, &cookie);
		return 1;
	}
	if (op == RTT)
		heard = timed(context, flow);
	else if (op == RTO || op == RETRANSMITTED)
		heard = lost(context, flow, now, op == RTO ? CL_TIMEOUT : CL_NACK);
	if (heard)
		decide(context, flow, now);
	return 1;
}
