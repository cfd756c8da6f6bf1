/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shortest paths, and which of several a flow takes: Linux' multipath hash of the five-tuple.
 *
 * The hash is policy 3 of fib_multipath_hash() in net/ipv4/route.c with a seed of one's own:
 * SipHash-2-4 of the dissected fields (net/core/flow_dissector.c), alike in both directions, then
 * Jenkins' hash. Of equal next hops it chooses as fib_rebalance() in net/ipv4/fib_semantics.c.
 */
#include "engine.h"

#define ROCE_PORT 4791
#define UDP 17
#define NO_PATH UINT8_MAX

/* Each switch's distance in links to each switch that has hosts. */
struct distances {
	u32 *target; /* by switch: which row, UINT32_MAX without hosts */
	u8 *row;     /* switches of the first target, of the second, ... */
};

static u64 rotate64(u64 x, u32 by)
{
	return x << by | x >> (64 - by);
}

static u32 rotate32(u32 x, u32 by)
{
	return x << by | x >> (32 - by);
}

static void sip_round(u64 v[4])
{
	v[0] += v[1], v[1] = rotate64(v[1], 13), v[1] ^= v[0], v[0] = rotate64(v[0], 32);
	v[2] += v[3], v[3] = rotate64(v[3], 16), v[3] ^= v[2];
	v[0] += v[3], v[3] = rotate64(v[3], 21), v[3] ^= v[0];
	v[2] += v[1], v[1] = rotate64(v[1], 17), v[1] ^= v[2], v[2] = rotate64(v[2], 32);
}

static u64 sip_hash(const u8 *data, u32 bytes, u64 key)
{
	u64 v[4] = { 0x736f6d6570736575ULL ^ key, 0x646f72616e646f6dULL ^ key,
		     0x6c7967656e657261ULL ^ key, 0x7465646279746573ULL ^ key };

	for (u32 at = 0; at <= bytes; at += 8) {
		u64 word = at == bytes ? (u64)bytes << 56 : 0;

		for (u32 i = 0; at < bytes && i < 8; i++)
			word |= (u64)data[at + i] << (8 * i);
		v[3] ^= word;
		sip_round(v);
		sip_round(v);
		v[0] ^= word;
	}
	v[2] ^= 0xff;
	for (u32 i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* jhash_2words() of include/linux/jhash.h, of `a` and 0. */
static u32 jenkins(u32 a)
{
	const u32 initial = 0xdeadbeef + (2 << 2);
	u32 b = initial, c = initial;

	a += initial;
	c ^= b, c -= rotate32(b, 14);
	a ^= c, a -= rotate32(c, 11);
	b ^= a, b -= rotate32(a, 25);
	c ^= b, c -= rotate32(b, 16);
	a ^= c, a -= rotate32(c, 4);
	b ^= a, b -= rotate32(a, 14);
	c ^= b, c -= rotate32(b, 24);
	return c;
}

static void put(u8 *to, u32 value, u32 bytes)
{
	for (u32 i = 0; i < bytes; i++)
		to[i] = value >> (8 * (bytes - 1 - i));
}

/* As a little-endian kernel sees what is in the packet. */
static u32 as_seen(u32 value, u32 bytes)
{
	u8 at[4];
	u32 seen = 0;

	put(at, value, bytes);
	for (u32 i = 0; i < bytes; i++)
		seen |= (u32)at[i] << (8 * i);
	return seen;
}

/* A number of 31 bits, the same in both directions of a flow. */
static u32 multipath_hash(u32 seed, u32 from, u32 to, u16 udp_source)
{
	u8 keys[48] = { 0 }; /* struct flow_keys from `basic` on, with what is not hashed left 0 */
	u32 low = from, high = to, hash, source = udp_source, destination = ROCE_PORT;

	if (as_seen(to, 4) < as_seen(from, 4))
		low = to, high = from;
	if (as_seen(destination, 2) < as_seen(source, 2))
		source = ROCE_PORT, destination = udp_source;
	keys[2] = UDP;
	put(&keys[28], source, 2);
	put(&keys[30], destination, 2);
	put(&keys[36], low, 4);
	put(&keys[40], high, 4);
	hash = sip_hash(keys, sizeof(keys), (u64)seed << 32 | seed);
	return jenkins(hash ? hash : 1) >> 1;
}

static u32 chosen(u32 hash, u32 count)
{
	for (u64 i = 1; i < count; i++)
		if (hash <= ((i << 31) + count / 2) / count - 1)
			return i - 1;
	return count - 1;
}

static bool is_switch(const struct cl_engine *e, u32 port)
{
	return e->node[e->owner[port]] != UINT32_MAX;
}

/* The switch at the other end of a port's cable, UINT32_MAX if that is a host. */
static u32 next_switch(const struct cl_engine *e, u32 port)
{
	return e->node[e->owner[e->peer[port]]];
}

static void measure(const struct cl_engine *e, u32 target, u8 *distance, u32 *todo)
{
	u32 done = 0, count = 1;

	memset(distance, NO_PATH, e->switches);
	distance[target] = 0;
	todo[0] = target;
	while (done < count) {
		const struct fabric_switch *here = &e->fabric_switch[todo[done++]];
		u8 next = distance[here - e->fabric_switch] + 1;

		for (u32 port = here->first; port < here->first + here->ports; port++) {
			u32 there = next_switch(e, port);

			if (there == UINT32_MAX || distance[there] != NO_PATH || next == NO_PATH)
				continue;
			distance[there] = next;
			todo[count++] = there;
		}
	}
}

static void forget_distances(struct distances *d)
{
	free(d->target);
	free(d->row);
}

static bool measure_all(struct cl_engine *e, struct distances *d)
{
	u32 targets = 0, *todo = malloc(sizeof(u32) * (e->switches + 1));

	d->target = malloc(sizeof(u32) * (e->switches + 1));
	d->row = NULL;
	for (u32 i = 0; d->target && i < e->switches; i++) {
		const struct fabric_switch *s = &e->fabric_switch[i];
		bool has_hosts = false;

		for (u32 port = s->first; port < s->first + s->ports; port++)
			has_hosts |= next_switch(e, port) == UINT32_MAX;
		d->target[i] = has_hosts ? targets++ : UINT32_MAX;
	}
	d->row = malloc((size_t)targets * e->switches + 1);
	if (!todo || !d->target || !d->row) {
		free(todo);
		forget_distances(d);
		return false;
	}
	for (u32 i = 0; i < e->switches; i++)
		if (d->target[i] != UINT32_MAX)
			measure(e, i, &d->row[(size_t)d->target[i] * e->switches], todo);
	free(todo);
	return true;
}

/* Write the ports of the switches from the NIC at `from` to that at `to`, the first in the lowest
 * bits. False, with the reason, if there is no path, or one that has no room in a packet.
 */
static bool find_route(struct cl_engine *e, const struct distances *d, u32 from, u32 to,
		       u16 udp_source, u64 *route)
{
	u32 here = next_switch(e, from), target = next_switch(e, to), bits = 0;

	*route = 0;
	for (;;) {
		const struct fabric_switch *s = &e->fabric_switch[here];
		const u8 *distance;
		u32 count = 0, choice = 0, taken = UINT32_MAX;

		if (here == UINT32_MAX || target == UINT32_MAX || d->target[target] == UINT32_MAX) {
			fail(e, "a NIC is not at a switch");
			return false;
		}
		distance = &d->row[(size_t)d->target[target] * e->switches];
		if (bits + e->route_bits > 64) {
			fail(e, "a path has more switches than a packet has room for");
			return false;
		}
		if (here == target) {
			*route |= (u64)(e->peer[to] - s->first) << bits;
			return true;
		}
		for (u32 i = 0; i < s->ports; i++) {
			u32 there = next_switch(e, s->first + i);

			count += there != UINT32_MAX && distance[there] + 1 == distance[here];
		}
		if (!count || distance[here] == NO_PATH) {
			fail(e, "there is no path between two hosts");
			return false;
		}
		if (count > 1)
			choice = chosen(multipath_hash(s->ecmp_seed, e->address[from],
						       e->address[to], udp_source), count);
		for (u32 i = 0; i < s->ports; i++) {
			u32 there = next_switch(e, s->first + i);

			if (there == UINT32_MAX || distance[there] + 1 != distance[here] || choice--)
				continue;
			taken = i;
			break;
		}
		*route |= (u64)taken << bits;
		bits += e->route_bits;
		here = next_switch(e, s->first + taken);
	}
}
