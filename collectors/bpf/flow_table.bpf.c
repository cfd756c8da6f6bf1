/* SPDX-License-Identifier: Apache-2.0
 *
 * The flow table of one switch. Runs at the egress of every port that queues data; never touches
 * the packet. User space maps `table`: it writes the slot, reads and removes entries
 * (collectors/readers/flows.py, whose layout this is). There is no JIT where it runs: each
 * instruction counts, and nothing is called.
 *
 * On a switch that is not emulated (ON_A_RACK) packets carry a hash of the NIC's, which may be of
 * addresses alone: it is not used. And programs linked behind this one go on.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef ENTRY_BITS
#define ENTRY_BITS 12
#endif
#define WAYS 4 /* places that a flow may have */

#ifdef ON_A_RACK
#define DONE -1 /* TCX_NEXT */
#define HASH(skb) 0
#else
#define DONE 0 /* TC_ACT_OK */
#define HASH(skb) ((skb)->hash)
#endif
#define ETHERNET_IPV4 0x0008 /* as read by a little-endian machine */
#define IPV4_NO_OPTIONS 0x45
#define TOS_CLASS 0x18 /* the bits of the type of service that name a traffic class (tc.py) */
#define TCP 6
#define UDP 17

#define ETHERNET_AND_IP 34
#define TCP_LEAST 20
#define UDP_HEADER 8
/* A segment without payload: Linux sends time stamps, which take 12 bytes. */
#define PURE_ACK (ETHERNET_AND_IP + TCP_LEAST + 12)

/* The first fields of the kernel's struct (linux/bpf.h). */
struct __sk_buff {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto;
	u32 priority, ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end;
};

/* 32 bytes. `key` is 0 in a free entry. */
struct entry {
	u64 key;   /* of the flow at its queue: a hash, and the interface in the upper half */
	u64 ends;  /* source and destination address, in network order */
	u64 bytes; /* payload so far */
	u32 headers;
	u32 klass; /* traffic class */
};

struct table {
	u32 slot;        /* the current one */
	u32 window;      /* an entry whose slot is this far back is expired */
	u32 used;        /* entries that are not free */
	u32 spare;
	u64 taken_over;  /* expired entries that a new flow replaced */
	u64 not_counted; /* packets of flows that found no place */
	u64 pad[4];
	u32 slots[1 << ENTRY_BITS]; /* of each entry's last packet: by themselves, they are scanned */
	struct entry entries[1 << ENTRY_BITS];
};

_Static_assert(sizeof(struct entry) == 32, "ENTRY_BYTES in collectors/readers/flows.py");
_Static_assert(__builtin_offsetof(struct table, slots) == 64, "HEAD_BYTES there");

struct table table;

#define MASK ((1 << ENTRY_BITS) - 1)

__attribute__((section("tc"), used))
int flow_table(struct __sk_buff *skb)
{
	u32 len = skb->len;
	if (len <= PURE_ACK)
		return DONE;

	/* A packet carries the hash of its sender's socket: most end here. */
	u32 hash = HASH(skb);
	u64 queue = (u64)skb->ifindex << 32;
	u32 home = hash & MASK;
	struct entry *entry = table.entries + home;
	if (entry->key == (queue | hash)) {
		entry->bytes += len - entry->headers;
		table.slots[home] = table.slot;
		return DONE;
	}

	const u8 *data = (const u8 *)(long)skb->data;
	if (data + ETHERNET_AND_IP + TCP_LEAST > (const u8 *)(long)skb->data_end)
		return DONE;
	if (*(const u16 *)(data + 12) != ETHERNET_IPV4 || data[14] != IPV4_NO_OPTIONS)
		return DONE;
	u32 headers;
	if (data[23] == TCP)
		headers = ETHERNET_AND_IP + ((data[46] >> 4) << 2);
	else if (data[23] == UDP)
		headers = ETHERNET_AND_IP + UDP_HEADER;
	else
		return DONE;
	if (len <= headers)
		return DONE;
	/* Only few segments have more; and never more than the shortest packet counted. */
	if (headers > PURE_ACK)
		headers = PURE_ACK;

	u64 ends = *(const u32 *)(data + 26) | (u64)*(const u32 *)(data + 30) << 32;
	if (!hash) {
		/* multiply-shift hashing (Dietzfelbinger et al. 1997) of addresses and ports */
		u64 mixed = ends * 0x9E3779B97F4A7C15ULL + *(const u32 *)(data + 34);
		hash = mixed * 0xBF58476D1CE4E5B9ULL >> 32 | 1;
	}
	u64 key = queue | hash;
	u32 slot = table.slot;
	u32 window = table.window;

#pragma GCC unroll 4
	for (u32 way = 0; way < WAYS; way++) {
		u32 place = (hash ^ way) & MASK;
		entry = table.entries + place;
		if (entry->key == key) {
			entry->bytes += len - headers;
			table.slots[place] = slot;
			return DONE;
		}
	}
#pragma GCC unroll 4
	for (u32 way = 0; way < WAYS; way++) {
		u32 place = (hash ^ way) & MASK;
		entry = table.entries + place;
		if (!entry->key)
			table.used++;
		else if (slot - table.slots[place] >= window)
			table.taken_over++;
		else
			continue;
		entry->key = key;
		entry->ends = ends;
		entry->bytes = len - headers;
		table.slots[place] = slot;
		entry->headers = headers;
		entry->klass = (data[15] & TOS_CLASS) >> 3;
		return DONE;
	}
	table.not_counted++;
	return DONE;
}
