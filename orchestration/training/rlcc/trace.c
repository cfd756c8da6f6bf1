// SPDX-License-Identifier: GPL-2.0-only
/* A model of RL-CC that writes down its decisions: compiled with MODEL, the model's source, as a
 * library that ns-3's program loads. A network's weights can be replaced.
 */
#define RLCC_TABLE
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
	u32 rtt_ns;       /* 0: a loss */
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

static FILE *opened(const char *path, const char *how)
{
	FILE *one = fopen(path, how);

	if (!one) {
		perror(path);
		exit(1);
	}
	return one;
}

static void replace(FILE *from, void *table, size_t size)
{
	if (fread(table, 1, size, from) != size) {
		fprintf(stderr, "the weights are not those of this network\n");
		exit(1);
	}
}

/* `folder` has the flows' starts, and weights if they are others than the source's; decisions are
 * written there.
 */
void begin(const char *folder)
{
	char path[4096];
	FILE *from;

	snprintf(path, sizeof(path), "%s/trace", folder);
	file = opened(path, "wb");
	snprintf(path, sizeof(path), "%s/starts", folder);
	from = opened(path, "rb");
	fseek(from, 0, SEEK_END);
	known = ftell(from) / sizeof(u32);
	rewind(from);
	starts = malloc(known * sizeof(u32) + 1);
	if (!starts)
		exit(1);
	replace(from, starts, known * sizeof(u32));
	fclose(from);
	snprintf(path, sizeof(path), "%s/weights", folder);
	from = fopen(path, "rb");
	if (!from)
		return;
#ifdef RLCC_TABLES
#define REPLACE(table) replace(from, table, sizeof(table));
	RLCC_TABLES(REPLACE)
#endif
	fclose(from);
}

static void traced(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	struct rlcc *r = (struct rlcc *)flow->own;
	u32 before = r->decisions, share = r->share;
	u32 rtt_ns = flow->event == CL_ACK || flow->event == CL_RTT ? flow->rtt_ns : 0;

	rlcc_happen(flow, parameters, hop);
	if (flow->event == CL_START && started < known) {
		r->share = starts[started++];
		flow->rate_bps = ((unsigned __int128)flow->line_bps * r->share) >> RLCC_SHARE_BITS;
	}
	if (r->decisions == before || !file)
		return;
	struct record one = { (u64)flow,       flow->now_ns,  flow->acked_bytes, rtt_ns, share,
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
