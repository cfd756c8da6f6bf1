/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Pauses by priority (IEEE 802.1Qbb-2011; IEEE 802.3-2018, annex 31D): those that a port or a NIC has
 * received from its peer. A time that is not renewed runs out; a time of 0 lets go at once.
 */
#include "engine.h"

#define BITS_PER_QUANTUM 512

static u64 quanta_ns(u64 quanta, u64 rate_bps)
{
	return quanta * BITS_PER_QUANTUM * 1000000000ULL / rate_bps;
}

/* Classes, as bits, that must not begin to send. */
static u8 stopped_classes(const struct cl_engine *e, const struct pause *pause)
{
	u8 stopped = pause->paused & ~pause->ignored, classes = 0;

	for (u32 i = 0; stopped && i < e->fabric.classes; i++)
		if (stopped & e->class_bit[i])
			classes |= 1 << i;
	return classes;
}

static u64 paused_ns(const struct pause *pause, u32 priority, u64 now_ns)
{
	u64 running_ns = pause->paused >> priority & 1 ? now_ns - pause->since_ns[priority] : 0;

	return pause->paused_ns[priority] + running_ns;
}

static void end_pause(struct pause *pause, u32 priority, u64 now_ns)
{
	pause->paused_ns[priority] = paused_ns(pause, priority, now_ns);
	pause->paused &= ~(1 << priority);
}

static void expect_run_out(struct pause *pause)
{
	pause->run_out_ns = CL_NEVER;
	for (u32 i = 0; i < 8; i++)
		if (pause->paused >> i & 1)
			pause->run_out_ns = min64(pause->run_out_ns, pause->until_ns[i]);
}

/* Those whose time is over are let go. */
static void run_out(struct pause *pause, u64 now_ns)
{
	for (u32 i = 0; i < 8; i++)
		if ((pause->paused >> i & 1) && pause->until_ns[i] <= now_ns)
			end_pause(pause, i, now_ns);
	expect_run_out(pause);
}

/* A frame stops, or with 0 quanta lets go, the priorities in the bits of `vector`. */
static void take_pause(struct pause *pause, u32 vector, u32 quanta, u64 rate_bps, u64 now_ns)
{
	for (u32 i = 0; i < 8; i++) {
		if (!(vector >> i & 1))
			continue;
		if (!quanta) {
			if (pause->paused >> i & 1)
				end_pause(pause, i, now_ns);
			continue;
		}
		if (!(pause->paused >> i & 1))
			pause->since_ns[i] = now_ns;
		pause->paused |= 1 << i;
		pause->last_ns[i] = now_ns;
		pause->until_ns[i] = now_ns + quanta_ns(quanta, rate_bps);
		pause->frames[i]++;
	}
	expect_run_out(pause);
}
