// SPDX-License-Identifier: GPL-2.0-only
/* A policy of the user's own as a library for the program: compiled with PROGRAM, its source.
 *
 * It is given what the guest's kernel gives a policy that is a BPF program (policy_program.c): a
 * copy of the flow, all parameters and hops, of which its rate, window and memory come back.
 */
#define _GNU_SOURCE
#include "policy.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static u32 rounds;
#define MOST_ROUNDS (8U << 20)
#undef CL_ROUND_OR
#define CL_ROUND_OR(label) do { if (++rounds > MOST_ROUNDS) goto label; } while (0)

extern const struct cl_policy cl_policy_traced;
static void told(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop);
#undef CL_POLICY
#define CL_POLICY(id, count, asks) const struct cl_policy cl_policy_traced = { #id, told, count, asks }
#include PROGRAM

static struct cl_context context;

static void told(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	context.flow = *flow;
	memcpy(context.parameters, parameters, cl_policy_traced.parameters * sizeof(*parameters));
	if (flow->hops)
		memcpy(context.hop, hop, flow->hops * sizeof(*hop));
	rounds = 0;
	happen(&context.flow, context.parameters, context.hop);
	flow->rate_bps = context.flow.rate_bps;
	flow->window_bytes = context.flow.window_bytes;
	memcpy(flow->own, context.flow.own, sizeof(flow->own));
}

/* The first line that the program says becomes the trial's error. */
static void fault(int number)
{
	static const char division[] = "the policy divides by 0, which gives 0 as BPF only\n",
			  address[] = "the policy reads or writes past its state\n";
	const char *what = number == SIGFPE ? division : address;

	if (write(STDERR_FILENO, what, strlen(what)) < 0)
		_exit(2);
	_exit(1);
}

void begin(const char *unused);
void begin(const char *unused)
{
	(void)unused;
	signal(SIGFPE, fault);
	signal(SIGSEGV, fault);
	signal(SIGBUS, fault);
}

void written(void);
void written(void)
{
}
