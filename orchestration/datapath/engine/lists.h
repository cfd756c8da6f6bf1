/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Lists of packets, first in first out, in one piece of memory, as numbers of slots.
 *
 * A list is pieces of CHUNK slots, of which the last names the next piece. What is free is used last
 * in, first out, so the memory that is touched is that of the packets on their way.
 */
#ifndef CLOSLOOP_ENGINE_LISTS_H
#define CLOSLOOP_ENGINE_LISTS_H

#include "engine.h"

#define CHUNK 16

#define LINK (CHUNK - 1) /* the last slot of a piece: in the line of what was read before it */

static u32 new_chunk(struct cl_engine *e)
{
	u32 first = e->free_chunk;

	if (likely(first)) {
		e->free_chunk = e->arena[first + LINK].flow;
	} else if (likely(e->arena_end + CHUNK <= e->arena_room)) {
		first = e->arena_end;
		e->arena_end += CHUNK;
	} else {
		fail(e, "no memory for so many packets on their way");
		if (e->is_running) /* there is no list in which the packet could wait until the window ends */
			longjmp(e->stop, 1);
		first = e->arena_end - CHUNK;
	}
	e->arena[first] = (struct packet){ 0 };
	return first;
}

static inline void free_chunk(struct cl_engine *e, u32 first)
{
	e->arena[first + LINK].flow = e->free_chunk;
	e->free_chunk = first;
}

static inline u32 cl_after(const struct cl_engine *e, u32 slot)
{
	return ++slot % CHUNK == LINK ? e->arena[slot].flow : slot;
}

static inline u32 cl_drop_first(struct cl_engine *e, u32 slot)
{
	u32 next = cl_after(e, slot);

	if (unlikely(slot % CHUNK == LINK - 1))
		free_chunk(e, slot + 1 - LINK);
	return next;
}

/* The slot behind a list's last is its end, which has NO_PACKET. */
static inline void cl_append(struct cl_engine *e, u32 *tail, const struct packet *p)
{
	u32 slot = *tail, next = slot + 1;

	if (unlikely(next % CHUNK == LINK)) {
		next = new_chunk(e);
		e->arena[slot + 1].flow = next;
	} else {
		e->arena[next] = (struct packet){ 0 };
	}
	e->arena[slot] = *p;
	*tail = next;
}

/* Let a list end at `slot`, which is in it, and free the pieces behind. */
static void cl_cut(struct cl_engine *e, u32 slot, u32 *tail)
{
	u32 kept = slot - slot % CHUNK, piece = kept, last = *tail - *tail % CHUNK;

	while (piece != last) {
		u32 next = e->arena[piece + LINK].flow;

		if (piece != kept)
			free_chunk(e, piece);
		piece = next;
	}
	if (last != kept)
		free_chunk(e, last);
	*tail = slot;
	e->arena[slot] = (struct packet){ 0 };
}

static inline bool cl_is_empty(const struct cl_engine *e, u32 head)
{
	return e->arena[head].kind == NO_PACKET;
}

#endif
