/* SPDX-License-Identifier: Apache-2.0
 *
 * Load balancing on a Linux switch: flowlets (LetFlow, Vanini et al., NSDI 2017) and spraying (RPS,
 * Dixit et al., INFOCOM 2013), by the rules of docs/load-balancing.md.
 *
 * Runs at the egress (tcx) of every port that a route of several ports may use. The kernel has
 * routed the packet then, has counted its TTL down, and has chosen a port by the flow's hash: its
 * ECMP path. This program leaves the packet there, or sends it to another port of the same route
 * (bpf_redirect_neigh), whose egress it passes once more and is then let through.
 *
 * User space maps `paths`, and keeps `prefixes` as the kernel's table has them
 * (orchestration/agent/linux_switch/paths.py and path_routes.py, whose layouts these are). What several CPUs write without a
 * lock: two packets of different flows may take the same draw, or the same free entry.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef ENTRY_BITS
#define ENTRY_BITS 16
#endif
#define ENTRIES (1 << ENTRY_BITS)
#define MASK (ENTRIES - 1)
#define PLACES 4 /* that an entry of a flow may have */
#define MOST_WAYS 64
#define MOST_ROUTES 256 /* that differ in their ports */

#define NEXT (-1) /* other programs and filters go on: TCX_NEXT */
#define PLACED 0xC105 /* in the packet's tc_index: it has its port */
#define ETHERNET_IPV4 0x0008 /* as read by a little-endian machine */
#define ETHERNET 14
#define FRAGMENT 0xFF3F /* more fragments, and an offset, likewise */
#define TCP 6
#define UDP 17

enum route_by { RANDOM, ROUND_ROBIN };

#define HELPER(number) __attribute__((kernel_helper(number)))
#define INLINE static inline __attribute__((always_inline))

/* The first fields of the kernel's struct (linux/bpf.h). */
struct __sk_buff {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto;
	u32 priority, ingress_ifindex, ifindex, tc_index;
};

struct header {
	u8 version_and_words, tos;
	u16 length, id, fragment;
	u8 ttl, protocol;
	u16 checksum;
	u32 source, destination;
	u16 source_port, destination_port; /* behind the shortest header */
};

/* A port, and the router behind it: the latter as bpf_redirect_neigh takes it. */
struct way {
	u32 ifindex;
	u32 family, address[4];
};

/* The ports of a route, in the order of their names: first those whose link is up. */
struct route {
	u32 ways, up;
	struct way way[MOST_WAYS];
};

/* `key` is 0 in a free entry, `ifindex` in one whose first packet has no port yet. */
struct entry {
	u64 key;
	u32 ifindex;
	u32 number; /* its place in `last_ns` */
};

struct paths {
	u64 stream;
	u64 timeout_ns;
	u64 turn;
	u32 route_by, spray;
	u64 flowlets, reroutes, overflows;
	u32 used; /* entries that were ever taken */
	u32 spare;
	struct route routes[MOST_ROUTES]; /* the first has no ports */
	u64 last_ns[ENTRIES]; /* of entries, in the order in which they were taken first */
	struct entry entries[ENTRIES];
};

_Static_assert(sizeof(struct way) == 24, "_WAY in orchestration/agent/linux_switch/path_routes.py");
_Static_assert(sizeof(struct route) == 1544, "ROUTE_BYTES there");
_Static_assert(__builtin_offsetof(struct paths, routes) == 64, "HEAD in orchestration/agent/linux_switch/paths.py");

struct paths paths;

/* By prefix, the place of a route in `paths`: the loader puts the map's descriptor here. */
extern char prefixes[];

HELPER(1) void *map_lookup(void *map, const void *key);
HELPER(5) u64 now_ns(void);
HELPER(26) long load_bytes(const void *skb, u32 offset, void *to, u32 bytes);
HELPER(152) long redirect_neigh(u32 ifindex, const void *router, int bytes, u64 flags);

/* SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
INLINE u64 mix(u64 z)
{
	z += 0x9E3779B97F4A7C15ULL;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	return z ^ (z >> 31);
}

/* A place as the verifier wants it: bounded where it is used, whatever the compiler knows of it. */
INLINE const struct way *way_at(const struct route *route, u64 place)
{
	__asm__ volatile("" : "+r"(place));
	return route->way + (place & (MOST_WAYS - 1));
}

INLINE void count(u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

/* One of `up` ports for a flowlet or packet. */
INLINE u32 routed(u32 up)
{
	u64 draw;

	if (paths.route_by == ROUND_ROBIN)
		return paths.turn++ % up;
	if (up == 1)
		return 0;
	draw = mix(paths.stream);
	paths.stream += 0x9E3779B97F4A7C15ULL;
	return (draw >> 32) * up >> 32;
}

/* A number of 32 bits from the wire. The builtin function would be a call with some compilers. */
INLINE u64 number(u32 wire)
{
	return wire >> 24 | (wire >> 8 & 0xFF00) | (wire & 0xFF00) << 8 | (u64)(wire & 0xFF) << 24;
}

INLINE u64 port_number(u16 wire)
{
	return wire >> 8 | (wire & 0xFF) << 8;
}

INLINE u64 key_of(const struct header *ip)
{
	u64 ends = number(ip->source) << 32 | number(ip->destination);
	u64 ports = port_number(ip->source_port) << 24 ^ port_number(ip->destination_port) << 8;

	return mix(mix(ends) ^ ports ^ ip->protocol);
}

/* Read the packet's addresses and ports; fragments and protocols without ports have 0. */
INLINE int read_header(const struct __sk_buff *skb, struct header *ip)
{
	u32 words;

	if (skb->protocol != ETHERNET_IPV4 || load_bytes(skb, ETHERNET, ip, sizeof(*ip)))
		return 0;
	words = ip->version_and_words & 15;
	if (ip->version_and_words >> 4 != 4 || words < 5)
		return 0;
	if ((ip->protocol != TCP && ip->protocol != UDP) || ip->fragment & FRAGMENT) {
		ip->source_port = 0;
		ip->destination_port = 0;
	} else if (words > 5 && load_bytes(skb, ETHERNET + 4 * words, &ip->source_port, 4)) {
		return 0;
	}
	return 1;
}

/* The flow's entry, one taken for it, or none if there is no room. */
INLINE struct entry *entry_of(u64 key, u64 now)
{
	struct entry *entry;

#pragma GCC unroll 4
	for (u32 i = 0; i < PLACES; i++) {
		entry = paths.entries + ((key ^ i) & MASK);
		if (entry->key == key)
			return entry;
	}
#pragma GCC unroll 4
	for (u32 i = 0; i < PLACES; i++) {
		entry = paths.entries + ((key ^ i) & MASK);
		if (!entry->key)
			entry->number = paths.used++ & MASK;
		else if (now - paths.last_ns[entry->number & MASK] <= paths.timeout_ns)
			continue;
		entry->key = key;
		entry->ifindex = 0;
		return entry;
	}
	return 0;
}

/* The place of the port by which the packet leaves; `own` is that of its ECMP path. */
INLINE u32 place_of(const struct route *route, struct entry *entry, u32 own, u32 up, u64 now)
{
	u32 former = entry ? entry->ifindex : 0, place = MOST_WAYS, ifindex;

	if (!paths.spray) {
		if (!entry) {
			count(&paths.overflows);
			return own;
		}
		if (former && now - paths.last_ns[entry->number & MASK] <= paths.timeout_ns) {
			for (u32 i = 0; i < MOST_WAYS; i++) {
				if (i >= up)
					break;
				if (route->way[i].ifindex == former) {
					place = i;
					break;
				}
			}
		}
	}
	if (place >= MOST_WAYS) {
		place = own;
		/* the hash is a draw of the trial's seed, too: a long timeout is ECMP to the bit */
		if (paths.spray || former || paths.route_by != RANDOM || own >= up)
			place = routed(up);
		ifindex = way_at(route, place)->ifindex;
		count(&paths.flowlets);
		if (former && former != ifindex)
			count(&paths.reroutes);
		if (entry)
			entry->ifindex = ifindex;
	}
	if (entry)
		paths.last_ns[entry->number & MASK] = now;
	return place;
}

__attribute__((section("tc"), used))
int path_choice(struct __sk_buff *skb)
{
	struct { u32 bits, address; } to = { 32, 0 };
	u32 own = MOST_WAYS, ways, up, place;
	const struct route *route;
	const struct way *way;
	struct header ip;
	u64 key, now;
	const u32 *found;

	if (skb->tc_index == PLACED) {
		skb->tc_index = 0;
		return NEXT;
	}
	/* what the switch itself sends has no choice */
	if (!skb->ingress_ifindex || !read_header(skb, &ip))
		return NEXT;
	to.address = ip.destination;
	found = map_lookup(prefixes, &to);
	if (!found)
		return NEXT;
	route = paths.routes + (*found & (MOST_ROUTES - 1));
	ways = route->ways;
	up = route->up;
	if (ways < 2 || ways > MOST_WAYS || !up || up > ways)
		return NEXT;
	for (u32 i = 0; i < MOST_WAYS; i++) {
		if (i >= ways)
			break;
		if (route->way[i].ifindex == skb->ifindex) {
			own = i;
			break;
		}
	}
	if (own >= MOST_WAYS)
		return NEXT; /* the kernel has routed it by another table */
	key = key_of(&ip);
	if (!key)
		return NEXT;
	now = now_ns();
	place = place_of(route, entry_of(key, now), own, up, now);
	if (place == own)
		return NEXT;
	way = way_at(route, place);
	skb->tc_index = PLACED;
	return redirect_neigh(way->ifindex, &way->family, sizeof(*way) - sizeof(u32), 0);
}
