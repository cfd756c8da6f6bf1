/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A policy of the user's own as a library for the packet engine: compiled with PROGRAM, its source.
 *
 * It sees and changes what a policy that is a BPF program does in the guest's kernel
 * (policy_program.c): a copy of the flow, of which its rate, window and memory come back.
 */
#define _GNU_SOURCE
#include "policy.h"
#include "own_policy.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As many rounds as Linux gives may_goto: BPF_MAX_LOOPS. */
#define CL_MAX_ROUNDS (8U << 20)
static __thread u32 cl_rounds;
#undef CL_ROUND_OR
#define CL_ROUND_OR(label) do { if (++cl_rounds > CL_MAX_ROUNDS) goto label; } while (0)

static void cl_happen(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop);
#undef CL_POLICY
#define CL_POLICY(id, count, asks) \
	_Static_assert((count) <= CL_MOST_PARAMETERS, "a policy takes at most 24 parameters"); \
	struct cl_policy cl_own_policy = { #id, cl_happen, count, asks }
#include PROGRAM

uint32_t cl_own_abi[2] = { CL_POLICY_ABI, sizeof(struct cl_flow_state) };

/* What the policy sees: it ends where a page begins that nobody may touch. */
static __thread struct cl_context *cl_seen;
static __thread volatile sig_atomic_t cl_is_running;
/* What the policy reads is read after this, and what it writes is written before. */
#define CL_IN_ORDER asm volatile("" : : : "memory")
static const int cl_faults[] = { SIGFPE, SIGSEGV, SIGBUS, SIGABRT, SIGILL };
#define CL_FAULTS (sizeof(cl_faults) / sizeof(cl_faults[0]))
static struct sigaction cl_before[CL_FAULTS];

/* Say what the policy did. Then it does the same again, and who handled this before ends the process. */
static void cl_fault(int number)
{
	static const char division[] = "the policy divides by 0, which gives 0 as BPF only\n",
			  address[] = "the policy reads or writes past its state\n",
			  gives_up[] = "the policy ends the trial's process itself\n";
	const char *what = number == SIGFPE ? division :
			   number == SIGSEGV || number == SIGBUS ? address : gives_up;

	if (cl_is_running && write(STDERR_FILENO, what, strlen(what)) < 0)
		_exit(2);
	for (u32 i = 0; i < CL_FAULTS; i++)
		if (cl_faults[i] == number)
			sigaction(number, &cl_before[i], NULL);
}

static void cl_begin(void)
{
	static int is_watched;
	struct sigaction action = { .sa_handler = cl_fault, .sa_flags = SA_ONSTACK };
	size_t page = sysconf(_SC_PAGESIZE);
	size_t room = (sizeof(struct cl_context) + page - 1) / page * page;
	char *memory = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);

	if (memory == MAP_FAILED || mprotect(memory + room, page, PROT_NONE))
		abort();
	cl_seen = (struct cl_context *)(memory + room - sizeof(struct cl_context));
	for (u32 i = 0; i < CL_FAULTS && !is_watched; i++)
		sigaction(cl_faults[i], &action, &cl_before[i]);
	is_watched = 1;
}

static void cl_happen(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	struct cl_context *seen;

	if (!cl_seen)
		cl_begin();
	seen = cl_seen;
	seen->flow = *flow;
	memcpy(seen->parameters, parameters, sizeof(seen->parameters));
	if (flow->hops)
		memcpy(seen->hop, hop, flow->hops * sizeof(*hop));
	cl_rounds = 0;
	cl_is_running = 1;
	CL_IN_ORDER;
	happen(&seen->flow, seen->parameters, seen->hop);
	CL_IN_ORDER;
	cl_is_running = 0;
	flow->rate_bps = seen->flow.rate_bps;
	flow->window_bytes = seen->flow.window_bytes;
	memcpy(flow->own, seen->flow.own, sizeof(flow->own));
}
