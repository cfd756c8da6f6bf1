// SPDX-License-Identifier: GPL-2.0-only
/* A model of RL-CC that writes down its decisions: compiled with MODEL, the model's source, as a
 * library that ns-3's program loads.
 */
#define happen rlcc_happen
#include MODEL
#undef happen

#include <stdio.h>
#include <stdlib.h>

/* A decision. rollout.py reads the same. */
struct record {
	u64 flow;         /* a number that no other flow has */
	u64 now_ns;
	u64 acked_bytes;
	u32 rtt_ns;
	u32 share;        /* the rate before, in 2^-30 */
	s32 delta, before, action; /* `before` the action before the delta; in 2^-16 */
	u32 decision;     /* the flow's how manieth */
};

static FILE *file;
/* The rates that flows start with, shares in 2^-30, one a flow in the order of their starts; those
 * without one start as the policy has it.
 */
static u32 *starts;
static u32 started, known;

/* `text`: where decisions go, and a file with the starts. */
void begin(const char *text)
{
	char trace[4096], rates[4096];
	FILE *from;

	if (sscanf(text, "%4095s %4095s", trace, rates) != 2 || !(file = fopen(trace, "wb")) ||
	    !(from = fopen(rates, "rb"))) {
		perror(text);
		exit(1);
	}
	fseek(from, 0, SEEK_END);
	known = ftell(from) / sizeof(u32);
	rewind(from);
	starts = malloc(known * sizeof(u32) + 1);
	if (!starts || fread(starts, sizeof(u32), known, from) != known)
		exit(1);
	fclose(from);
}

static void traced(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	struct rlcc *r = (struct rlcc *)flow->own;
	u32 before = r->decisions, share = r->share;

	rlcc_happen(flow, parameters, hop);
	if (flow->event == CL_START && started < known) {
		r->share = starts[started++];
		flow->rate_bps = ((unsigned __int128)flow->line_bps * r->share) >> RLCC_SHARE_BITS;
	}
	if (r->decisions == before || !file)
		return;
	struct record one = { (u64)flow,       flow->now_ns,  flow->acked_bytes, flow->rtt_ns, share,
			      r->window[0], r->window[1], r->action,	     before };
	fwrite(&one, sizeof(one), 1, file);
}

/* Whoever reads may read all now: the program ends without closing files. */
void written(void)
{
	if (file)
		fflush(file);
}

const struct cl_policy cl_policy_traced = { "traced", traced, RLCC_PARAMETERS, 0 };
