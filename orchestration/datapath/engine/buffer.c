/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The buffer that all ports of a switch share.
 *
 * Some of it is headroom, reserved for each port and lossless class. The rest is shared under a
 * dynamic threshold, alpha times what is free (Choudhury, Hahne, "Dynamic queue length thresholds
 * for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998, equation 1).
 * For a lossless class the threshold holds for what came in by one port: beyond it, the peer is
 * paused, and what still comes goes into the headroom; beyond that it is dropped. For any other
 * class it holds for the queue at the port that sends, and what is beyond is dropped. This is what
 * SONiC's BUFFER_PG and BUFFER_QUEUE configure (sonic-swss, doc/swss-schema.md).
 *
 * Ports are settled when somebody looks, so the counts here may be too high, never too low. Who
 * finds that there is no room has all ports of the switch settled, and looks again.
 */
#include "engine.h"
#include "lists.h"

#define ALPHA_UNIT_BITS 16

static void settle_all(struct cl_engine *e, struct fabric_switch *s, u64 now_ns);
static void obey(struct cl_engine *e, struct fabric_switch *s, u32 port, u64 now_ns);
static void take_back(struct cl_engine *e, struct fabric_switch *s, struct out *o);

static bool is_lossless(const struct cl_engine *e, u32 klass)
{
	return e->fabric.lossless >> klass & 1;
}

static u32 free_bytes(const struct fabric_switch *s)
{
	return s->pool_bytes - min32(s->pool_bytes, s->used_bytes);
}

static u64 threshold(const struct cl_engine *e, const struct fabric_switch *s, u32 klass)
{
	if (e->fabric.xoff_bytes && is_lossless(e, klass))
		return e->fabric.xoff_bytes;
	return (u64)e->fabric.alpha[klass] * free_bytes(s) >> ALPHA_UNIT_BITS;
}

static bool fits(const struct cl_engine *e, const struct fabric_switch *s, u32 klass,
		 u32 held_bytes, u32 bytes)
{
	return bytes <= free_bytes(s) && held_bytes + bytes <= threshold(e, s, klass);
}

static void add_timer(struct fabric_switch *s, u64 at_ns)
{
	s->timer_ns = min64(s->timer_ns, at_ns);
}

/* Send a pause frame: it is made now, and goes before all that has not begun to leave. */
static void send_pause(struct cl_engine *e, struct fabric_switch *s, u32 port, u8 vector, u32 quanta,
		       u64 now_ns)
{
	struct out *o = &e->out[port];

	take_back(e, s, o);
	if (!o->control)
		o->control = o->control_end = new_chunk(e);
	cl_append(e, &o->control_end, &(struct packet){ .at_ns = now_ns, .flow = quanta,
		.psn = vector, .bytes = CL_PAUSE_BYTES, .kind = PAUSE });
	o->has_control = true;
	s->departs_ns = 0;
	s->busy[(port - s->first) / 64] |= 1ULL << (port - s->first) % 64;
	e->counts.pauses += !!quanta;
}

static void stop(struct cl_engine *e, struct fabric_switch *s, u32 port, u32 klass, u64 now_ns)
{
	struct share *share = &e->share[port];

	if (share->stopping >> klass & 1)
		return;
	share->stopping |= 1 << klass;
	share->since_ns[klass] = now_ns;
	share->frames[klass]++;
	send_pause(e, s, port, e->class_bit[klass], e->fabric.quanta, now_ns);
	if (share->refresh_at_ns == CL_NEVER) {
		share->refresh_at_ns = now_ns + share->refresh_ns;
		add_timer(s, share->refresh_at_ns);
	}
	s->stopping++;
}

static void let_go(struct cl_engine *e, struct fabric_switch *s, u32 port, u32 klass, u64 now_ns)
{
	struct share *share = &e->share[port];

	share->stopping &= ~(1 << klass);
	s->stopping--;
	share->stopping_ns[klass] += now_ns - share->since_ns[klass];
	send_pause(e, s, port, e->class_bit[klass], 0, now_ns);
	if (!share->stopping)
		share->refresh_at_ns = CL_NEVER;
}

/* Say again that the peer is stopped, before it runs out. */
static void refresh(struct cl_engine *e, struct fabric_switch *s, u32 port, u64 now_ns)
{
	struct share *share = &e->share[port];
	u8 vector = 0;

	for (u32 i = 0; i < e->fabric.classes; i++) {
		share->frames[i] += share->stopping >> i & 1;
		if (share->stopping >> i & 1)
			vector |= e->class_bit[i];
	}
	send_pause(e, s, port, vector, e->fabric.quanta, now_ns);
	share->refresh_at_ns = now_ns + share->refresh_ns;
}

/* Let a port's peer go if it may: nothing of its own is in the headroom, and it is below its
 * threshold again.
 */
static void let_go_of(struct cl_engine *e, struct fabric_switch *s, u32 port, u64 now_ns)
{
	struct share *share = &e->share[port];

	for (u32 i = 0; share->stopping && i < e->fabric.classes; i++)
		if ((share->stopping >> i & 1) && !share->headroom_used[i] &&
		    (!*cl_held(e, port, i) || *cl_held(e, port, i) + e->fabric.xon_offset_bytes <=
						      threshold(e, s, i)))
			let_go(e, s, port, i, now_ns);
}

/* What came by port `from` has left. A threshold that follows the free bytes has grown for all; with
 * a fixed one a peer waits for its own bytes, unless it was stopped by a packet that was dropped.
 */
static void let_go_who_may(struct cl_engine *e, struct fabric_switch *s, u32 from, u64 now_ns)
{
	if (e->fabric.xoff_bytes && !s->stopped_by_drop) {
		if (from)
			let_go_of(e, s, s->first + from - 1, now_ns);
		return;
	}
	for (u32 port = s->first; port < s->first + s->ports; port++)
		if (e->share[port].stopping)
			let_go_of(e, s, port, now_ns);
	s->stopped_by_drop = false;
}

/* Whether a packet that came by port `in` may enter a queue of `backlog_bytes` in a port that is
 * settled. It then carries by whom it is to be released.
 */
static inline bool admit(struct cl_engine *e, struct fabric_switch *s, struct packet *p, u32 in,
			 u32 klass, u32 backlog_bytes, u64 now_ns)
{
	bool counted_in = is_lossless(e, klass);
	u32 bytes = cl_bytes(p), *held = cl_held(e, in, klass);

	cl_set_from(p, counted_in ? in - s->first + 1 : 0);
	if (unlikely(!fits(e, s, klass, counted_in ? *held : backlog_bytes, bytes))) {
		settle_all(e, s, now_ns);
		if (!fits(e, s, klass, counted_in ? *held : backlog_bytes, bytes)) {
			struct share *share = &e->share[in];

			if (!counted_in)
				return false;
			stop(e, s, in, klass, now_ns);
			if (share->headroom_used[klass] + bytes > share->headroom_bytes) {
				s->lossless_drops++;
				s->stopped_by_drop = true;
				return false;
			}
			share->headroom_used[klass] += bytes;
			s->headroom_used += bytes;
			return true;
		}
	}
	if (counted_in)
		*held += bytes;
	s->used_bytes += bytes;
	return true;
}

/* A packet that was admitted begins to leave. */
static inline void release(struct cl_engine *e, struct fabric_switch *s, const struct packet *p,
			   u32 klass, u64 now_ns)
{
	u32 bytes = cl_bytes(p), from = cl_from(p);

	if (from) {
		u32 *held = cl_held(e, s->first + from - 1, klass);

		if (unlikely(s->headroom_used)) {
			struct share *share = &e->share[s->first + from - 1];
			u32 headroom = min32(share->headroom_used[klass], bytes);

			share->headroom_used[klass] -= headroom;
			s->headroom_used -= headroom;
			bytes -= headroom;
		}
		*held -= min32(*held, bytes);
	}
	s->used_bytes -= min32(s->used_bytes, bytes);
	if (unlikely(s->stopping))
		let_go_who_may(e, s, from, now_ns);
}
