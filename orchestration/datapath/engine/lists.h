/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Lists of packets, first in first out, in one piece of memory, as numbers of slots.
 *
 * A list is pieces of CHUNK slots, of which the first names the next piece. What is free is used last
 * in, first out, so the memory that is touched is that of the packets on their way.
 */
#ifndef CLOSLOOP_ENGINE_LISTS_H
#define CLOSLOOP_ENGINE_LISTS_H

#include "engine.h"

#define CHUNK 8

static u32 new_chunk(struct cl_engine *e)
{
	u32 first = e->free_chunk;

	if (likely(first)) {
		e->free_chunk = e->arena[first].flow;
	} else if (likely(e->arena_end + CHUNK <= e->arena_room)) {
		first = e->arena_end;
		e->arena_end += CHUNK;
	} else {
		fail(e, "no memory for so many packets on their way");
		if (e->is_running) /* there is no list in which the packet could wait until the window ends */
			longjmp(e->stop, 1);
		first = e->arena_end - CHUNK;
	}
	e->arena[first + 1].kind = NO_PACKET;
	return first + 1;
}

static inline u32 cl_after(const struct cl_engine *e, u32 slot)
{
	return ++slot % CHUNK ? slot : e->arena[slot - CHUNK].flow;
}

static inline u32 cl_drop_first(struct cl_engine *e, u32 slot)
{
	u32 next = slot + 1;

	if (likely(next % CHUNK))
		return next;
	next = e->arena[slot + 1 - CHUNK].flow;
	e->arena[slot + 1 - CHUNK].flow = e->free_chunk;
	e->free_chunk = slot + 1 - CHUNK;
	return next;
}

/* The slot behind a list's last is its end, which has NO_PACKET. */
static inline void cl_append(struct cl_engine *e, u32 *tail, const struct packet *p)
{
	u32 slot = *tail, next = slot + 1;

	if (unlikely(next % CHUNK == 0)) {
		next = new_chunk(e);
		e->arena[slot + 1 - CHUNK].flow = next;
	} else {
		e->arena[next].kind = NO_PACKET;
	}
	e->arena[slot] = *p;
	*tail = next;
}

static void free_chunk(struct cl_engine *e, u32 first)
{
	e->arena[first].flow = e->free_chunk;
	e->free_chunk = first;
}

/* Let a list end at `slot`, which is in it, and free the pieces behind. */
static void cl_cut(struct cl_engine *e, u32 slot, u32 *tail)
{
	u32 kept = slot - slot % CHUNK, piece = kept, last = *tail - *tail % CHUNK;

	while (piece != last) {
		u32 next = e->arena[piece].flow - 1;

		if (piece != kept)
			free_chunk(e, piece);
		piece = next;
	}
	if (last != kept)
		free_chunk(e, last);
	*tail = slot;
	e->arena[slot].kind = NO_PACKET;
}

static inline bool cl_is_empty(const struct cl_engine *e, u32 head)
{
	return e->arena[head].kind == NO_PACKET;
}

#endif
