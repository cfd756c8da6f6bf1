// SPDX-License-Identifier: GPL-2.0-only
/* The recent flows at each switch's queues, and /proc/closloop/flow_tables.
 *
 * The rules are those of the BPF program on Linux' fabric and of its reader
 * (collectors/bpf/flow_table.bpf.c, collectors/readers/flows.py): a flow has one of four places,
 * an entry that was not seen for a window of slots is expired, all expired ones are removed every
 * so many slots, the older half of them when three quarters of a table are in use. A slot ends
 * after so many readings, which the engine takes (sample.c).
 *
 * Writing a struct settings with its arrays begins. Reading gives a struct facts.
 */
#include <linux/bsearch.h>
#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/proc_fs.h>
#include <linux/tcp.h>
#include <linux/uaccess.h>
#include <linux/udp.h>
#include <linux/vmalloc.h>
#include "flow_table.h"

#define WAYS 4 /* places that a flow may have */
#define LEAST_BITS 2
#define MOST_BITS 16
#define MOST_SWITCHES 1024
#define CLASSES 4
#define TOS_CLASS 0x18 /* orchestration/agent/linux/qdiscs.py, CLASS_TOS */
#define ETH_IP_BYTES (ETH_HLEN + sizeof(struct iphdr))
/* A segment without payload: Linux sends time stamps, which take 12 bytes. */
#define PURE_ACK (ETH_IP_BYTES + sizeof(struct tcphdr) + 12)
#define ROCE_PORT 4791
#define ROCE_BTH_BYTES 12
#define ROCE_ICRC_BYTES 4
#define ROCE_LAST_SEND 0x04 /* the opcodes up to this one carry payload */

struct settings {
	u32 bits; /* of the number of entries of a table */
	u32 window_slots, readings_per_slot, cleanup_every_slots;
	u32 elephant_bytes;
	u32 queues;
	u32 places; /* then so many numbers of queues, by interface * 4 + class */
	u32 addresses; /* then so many struct address, in the order of their addresses */
};

struct address {
	u32 address; /* as it is in a packet */
	u32 host;
};

struct facts {
	u64 most_used, scheduled_cleanups, removed_on_schedule, threshold_cleanups;
	u64 removed_at_threshold, taken_over, not_counted;
};

struct entry {
	u64 key;   /* of the flow at its port: a hash, and the interface in the upper half; 0: free */
	u64 bytes; /* payload so far */
	u32 headers;
	u32 queue;
	u32 sender, receiver; /* numbers of hosts */
};

struct cl_flow_table {
	u32 used; /* entries that are not free */
	u32 *slots; /* of each entry's last packet: by themselves, they are scanned */
	struct entry *entries;
};

/* A set of numbers, emptied by a new `round`. */
struct member {
	u64 key;
	u32 round, count;
};

static struct cl_flow_table **switches[MOST_SWITCHES];
static u32 count;
static struct settings all;
static struct facts facts;
static u32 *queue_of;
static struct address *addresses;
static struct member *pairs, *receivers;
static u32 slot, slots, readings, rounds;

static u32 size(void)
{
	return 1U << all.bits;
}

/* How much of a packet is not payload, counted from the Ethernet header; 0 if it has none. */
static u32 headers_of(const struct sk_buff *skb, const struct iphdr *ip, u32 bytes)
{
	const u8 *next = (const u8 *)(ip + 1);
	u32 headers;

	if (ip->protocol == IPPROTO_TCP) {
		headers = ETH_IP_BYTES + (((const struct tcphdr *)next)->doff << 2);
	} else if (ip->protocol == IPPROTO_UDP) {
		headers = ETH_IP_BYTES + sizeof(struct udphdr);
		if (((const struct udphdr *)next)->dest == htons(ROCE_PORT)) {
			if (next[sizeof(struct udphdr)] > ROCE_LAST_SEND)
				return 0;
			headers += ROCE_BTH_BYTES + ROCE_ICRC_BYTES;
		}
	} else {
		return 0;
	}
	/* only few segments have more; and never more than the shortest packet counted */
	return bytes > headers ? min_t(u32, headers, PURE_ACK) : 0;
}

static int by_address(const void *wanted, const void *one)
{
	u32 a = *(const u32 *)wanted, b = ((const struct address *)one)->address;

	return a < b ? -1 : a > b;
}

static u32 host_of(__be32 address)
{
	const struct address *found = bsearch(&address, addresses, all.addresses,
					      sizeof(*addresses), by_address);

	return found ? found->host : U16_MAX;
}

static u32 queue_number(u32 ifindex, u32 klass)
{
	u32 place = ifindex * CLASSES + klass;

	return place < all.places ? queue_of[place] : 0;
}

void cl_flow_table_count(struct cl_flow_table *table, const struct sk_buff *skb, u32 ifindex)
{
	const struct iphdr *ip = (const struct iphdr *)skb->data;
	u64 ends = (__force u32)ip->saddr | (u64)(__force u32)ip->daddr << 32, key;
	u32 mask = size() - 1, bytes = skb->len + ETH_HLEN, hash, headers, place;
	struct entry *entry;

	if (bytes <= PURE_ACK && ip->protocol == IPPROTO_TCP)
		return;
	if (ip->ihl != 5 || skb_headlen(skb) < sizeof(*ip) + sizeof(struct tcphdr))
		return;
	/* Multiply-shift hashing (Dietzfelbinger et al. 1997) of addresses and ports. The hash that a
	 * packet has of its socket is random: which flows find no place would be chance.
	 */
	hash = (ends * 0x9E3779B97F4A7C15ULL + *(const u32 *)(ip + 1)) *
	       0xBF58476D1CE4E5B9ULL >> 32 | 1;
	key = (u64)ifindex << 32 | hash;
	entry = table->entries + (hash & mask);
	if (entry->key == key) { /* most end here */
		entry->bytes += bytes - entry->headers;
		table->slots[hash & mask] = slot;
		return;
	}
	headers = headers_of(skb, ip, bytes);
	if (!headers)
		return;
	for (u32 way = 0; way < WAYS; way++) {
		place = (hash ^ way) & mask;
		entry = table->entries + place;
		if (entry->key == key) {
			entry->bytes += bytes - headers;
			table->slots[place] = slot;
			return;
		}
	}
	for (u32 way = 0; way < WAYS; way++) {
		place = (hash ^ way) & mask;
		entry = table->entries + place;
		if (!entry->key)
			table->used++;
		else if (slot - table->slots[place] >= all.window_slots)
			facts.taken_over++;
		else
			continue;
		*entry = (struct entry){
			.key = key,
			.bytes = bytes - headers,
			.headers = headers,
			.queue = queue_number(ifindex, (ip->tos & TOS_CLASS) >> 3),
			.sender = host_of(ip->saddr),
			.receiver = host_of(ip->daddr),
		};
		table->slots[place] = slot;
		return;
	}
	facts.not_counted++;
}

/* The member with this key; a new one has count 0. There is always room. */
static struct member *member(struct member *set, u64 key)
{
	u32 mask = 2 * size() - 1, at = key * 0x9E3779B97F4A7C15ULL >> 40 & mask;

	while (set[at].round == rounds && set[at].key != key)
		at = (at + 1) & mask;
	if (set[at].round != rounds)
		set[at] = (struct member){ .key = key, .round = rounds };
	return &set[at];
}

static void count_flows(const struct cl_flow_table *table, struct cl_queue_flows *flows)
{
	rounds++;
	for (u32 i = 0; i < size(); i++) {
		const struct entry *entry = &table->entries[i];
		struct cl_queue_flows *of;
		u64 receiver;

		if (table->slots[i] <= slot - all.window_slots)
			continue;
		of = &flows[entry->queue];
		receiver = (u64)entry->queue << 32 | entry->receiver << 16;
		if (entry->bytes > all.elephant_bytes)
			of->elephants++;
		else
			of->mice++;
		if (!member(pairs, receiver | entry->sender)->count++)
			of->incast_degree = max(of->incast_degree, ++member(receivers, receiver)->count);
	}
}

static bool expired(const struct cl_flow_table *table, u32 i)
{
	return table->entries[i].key && table->slots[i] <= slot - all.window_slots;
}

/* Remove so many of the expired entries, the oldest first. */
static void remove_oldest(struct cl_flow_table *table, u32 most)
{
	for (u32 oldest; most; ) {
		oldest = U32_MAX;
		for (u32 i = 0; i < size(); i++)
			if (expired(table, i))
				oldest = min(oldest, table->slots[i]);
		if (oldest == U32_MAX)
			return;
		for (u32 i = 0; i < size() && most; i++) {
			if (!expired(table, i) || table->slots[i] != oldest)
				continue;
			table->entries[i].key = 0;
			table->slots[i] = 0;
			table->used--;
			most--;
		}
	}
}

static void clean_up(struct cl_flow_table *table, bool on_schedule)
{
	u32 before = table->used, many = 0;

	facts.most_used = max_t(u64, facts.most_used, before);
	if (on_schedule) {
		for (u32 i = 0; i < size(); i++)
			if (expired(table, i)) {
				table->entries[i].key = 0;
				table->slots[i] = 0;
				table->used--;
			}
		facts.removed_on_schedule += before - table->used;
	} else if (4 * before > 3 * size()) {
		for (u32 i = 0; i < size(); i++)
			many += expired(table, i);
		remove_oldest(table, (many + 1) / 2);
		facts.threshold_cleanups++;
		facts.removed_at_threshold += before - table->used;
	}
}

u32 cl_flow_tables_queues(void)
{
	return all.queues;
}

void cl_flow_tables_read(struct cl_queue_flows *flows)
{
	bool ends_slot = ++readings % all.readings_per_slot == 0, on_schedule;

	memset(flows, 0, all.queues * sizeof(*flows));
	slots += ends_slot;
	on_schedule = ends_slot && slots % all.cleanup_every_slots == 0;
	facts.scheduled_cleanups += on_schedule;
	for (u32 i = 0; i < count; i++) {
		count_flows(*switches[i], flows);
		clean_up(*switches[i], on_schedule);
	}
	slot += ends_slot;
}

int cl_flow_table_add(struct cl_flow_table **table)
{
	if (count == MOST_SWITCHES || all.queues)
		return -EBUSY;
	switches[count++] = table;
	return 0;
}

void cl_flow_table_remove(struct cl_flow_table **table)
{
	for (u32 i = 0; i < count; i++)
		if (switches[i] == table)
			switches[i--] = switches[--count];
}

static struct cl_flow_table *make(void)
{
	struct cl_flow_table *table = kzalloc(sizeof(*table), GFP_KERNEL);

	if (!table)
		return NULL;
	table->slots = vzalloc(array_size(size(), sizeof(*table->slots)));
	table->entries = vzalloc(array_size(size(), sizeof(*table->entries)));
	return table->slots && table->entries ? table : NULL;
}

/* It happens once, and what fails ends the guest: nothing is freed. */
static ssize_t tables_write(struct file *file, const char __user *from, size_t bytes, loff_t *unused)
{
	struct settings wanted;
	size_t places_bytes, addresses_bytes;

	if (all.queues)
		return -EBUSY;
	if (bytes < sizeof(wanted) || copy_from_user(&wanted, from, sizeof(wanted)))
		return -EFAULT;
	places_bytes = array_size(wanted.places, sizeof(*queue_of));
	addresses_bytes = array_size(wanted.addresses, sizeof(*addresses));
	if (bytes != sizeof(wanted) + places_bytes + addresses_bytes ||
	    wanted.bits < LEAST_BITS || wanted.bits > MOST_BITS || !wanted.window_slots ||
	    !wanted.readings_per_slot || !wanted.cleanup_every_slots || !wanted.queues)
		return -EINVAL;
	queue_of = vmemdup_user(from + sizeof(wanted), places_bytes);
	addresses = vmemdup_user(from + sizeof(wanted) + places_bytes, addresses_bytes);
	if (IS_ERR(queue_of) || IS_ERR(addresses))
		return -EFAULT;
	for (u32 i = 0; i < wanted.places; i++)
		if (queue_of[i] >= wanted.queues)
			return -EINVAL;
	all.bits = wanted.bits;
	pairs = vzalloc(array_size(2 * size(), sizeof(*pairs)));
	receivers = vzalloc(array_size(2 * size(), sizeof(*receivers)));
	if (!pairs || !receivers)
		return -ENOMEM;
	for (u32 i = 0; i < count; i++) {
		struct cl_flow_table *table = make();

		if (!table)
			return -ENOMEM;
		*switches[i] = table;
	}
	all = wanted;
	slot = all.window_slots; /* a free entry, which has slot 0, looks expired */
	return bytes;
}

static ssize_t tables_read(struct file *file, char __user *to, size_t bytes, loff_t *unused)
{
	if (bytes < sizeof(facts) || copy_to_user(to, &facts, sizeof(facts)))
		return -EFAULT;
	return sizeof(facts);
}

static const struct proc_ops tables_ops = {
	.proc_read = tables_read,
	.proc_write = tables_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/flow_tables", 0600, NULL, &tables_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
