/* SPDX-License-Identifier: GPL-2.0-only */
/* The emulated data path: what its files share.
 *
 *   engine.c    the events of all ports in their order, and the moves of virtual time
 *   port.c      the queueing discipline "closloop": a port with its queues, its wire and the cable
 *   forward.c   a switch's forwarding, with the kernel's own routes
 *   paths.c     which of several equal-cost ports a packet takes, with conga.c: see paths.h
 *   flow_table.c  /proc/closloop/flow_tables: the recent flows at each switch's queues
 *   pairs.c     /proc/closloop/pairs: the traffic matrix of edge switches
 *   host.c      the queueing discipline "closloop_host": the NIC of a host that speaks TCP
 *   hosts.c     /proc/closloop/hosts: TCP's counters of all hosts
 *   nic.c       the queueing discipline "closloop_nic": a host's RoCE NIC; see roce.h
 *   policy_*.c  congestion controls of flows
 *   queues.c    /proc/closloop/queues: all queues read, and thresholds set, in one call
 *   sample.c    /proc/closloop/samples: all of these read at given times, by the engine itself
 *   buffer.c    a switch's shared buffer, with pfc.c and watchdog.c: see pfc.h
 *
 * There is one CPU. Everything here runs in a softirq or with bottom halves off.
 */
#ifndef CLOSLOOP_DATA_PATH_H
#define CLOSLOOP_DATA_PATH_H

#include <linux/netdevice.h>
#include <linux/prefetch.h>
#include <linux/skbuff.h>
#include <net/sch_generic.h>

#define CL_MOST_CLASSES 8
#define CL_MOST_QUEUES 65536
#define CL_MOST_PORTS 1024 /* of a switch */

/* Something that happens at a time. `number` is its own among those that are scheduled, 0 while it is
 * not one of them.
 */
struct cl_event {
	u64 at_ns;
	u64 order; /* of equal times, the one scheduled first is first */
	u32 number;
	void (*happen)(struct cl_event *event);
	/* Ask the memory for what it will touch, if it knows; it changes nothing. It is called when the
	 * event is `away` from happening, 3 to 1: what the call before asked for has come.
	 */
	void (*warm)(const struct cl_event *event, u32 away);
};

/* So many events before, the memory is asked for an event's own first lines. */
#define CL_WARM_FIRST 4

static inline void cl_warm_lines(const void *at, u32 lines)
{
	for (u32 i = 0; i < lines; i++)
		prefetch((const char *)at + i * SMP_CACHE_BYTES);
}

void cl_schedule(struct cl_event *event, u64 at_ns);
/* The same, but after all else that happens at that time. */
void cl_schedule_last(struct cl_event *event, u64 at_ns);
void cl_cancel(struct cl_event *event);

/* The time while events happen, else 0. */
extern u64 cl_engine_ns;

static inline u64 cl_now_ns(void)
{
	return cl_engine_ns ?: ktime_get_ns();
}

/* What user space reads of one queue: see queues.c. */
struct cl_queue_state {
	u64 tx_bytes;
	u64 tx_packets;
	u64 marked_packets;
	u64 dropped_packets;
	u32 backlog_bytes;
	u32 kmin_bytes;
	u32 kmax_bytes;
	u32 max_p; /* the marking probability at kmax, as a share of 2^32 */
};

/* What user space says of one queue when it makes a port. */
struct cl_queue_options {
	u32 limit_bytes;
	u32 quantum_bytes; /* of deficit round robin */
};

/* What it says of the switch's buffer; all but headroom is the same for all ports of the switch. */
struct cl_buffer_options {
	u64 detect_ns, restore_ns; /* the watchdog's; 0: there is none */
	u32 pool_bytes;     /* what is shared, without the headroom; 0: no shared buffer */
	u32 headroom_bytes; /* of this port, for each lossless class */
	u32 xoff_bytes;     /* of lossless classes, in place of alpha; 0: none */
	u32 xon_offset_bytes;
	u32 alpha[CL_MOST_CLASSES]; /* as shares of 2^16 */
	u32 number; /* of the switch in /proc/closloop/buffers */
	u16 quanta;
	u8 lossless; /* classes, as bits */
	u8 action;   /* the watchdog's: 0 says so, 1 drops, 2 forwards */
	u8 priority[CL_MOST_CLASSES];
};

/* The attribute of a port's and a NIC's options. */
#define CL_OPTIONS 1

/* The whole of a port's options. */
struct cl_port_options {
	u64 rate_bps;
	u64 delay_ns; /* of the cable, behind the queue */
	u64 seed;     /* of the stream that marking draws from */
	u32 framing_bytes; /* what each packet takes on the wire besides its bytes */
	u32 first_queue;   /* the number of its first queue in /proc/closloop/queues */
	u32 classes;
	u16 forwards; /* 1: packets that arrive here are forwarded */
	u16 marks_departures; /* 1: marks what leaves, by what it leaves behind; 0: what arrives */
	struct cl_queue_options queue[CL_MOST_CLASSES];
	struct cl_buffer_options buffer;
};

/* The whole of a NIC's options. */
struct cl_nic_options {
	u64 rate_bps;
	u64 delay_ns; /* of the cable */
	u32 framing_bytes;
	__be32 address;
};

/* The whole of the options of a TCP host's NIC, and their attribute. */
#define CL_HOST_OPTIONS 1

struct cl_host_options {
	u64 rate_bps;
	u32 framing_bytes;
	u32 unused;
};

extern struct Qdisc_ops cl_port_ops;
/* Ask the memory for what a packet that enters touches. */
void cl_port_warm(const struct Qdisc *port);
void cl_port_settle(struct Qdisc *port);
void cl_port_set(struct Qdisc *port, u32 klass, u32 kmin_bytes, u32 kmax_bytes, u32 max_p);
void cl_port_state(struct Qdisc *port, u32 klass, struct cl_queue_state *state);

int cl_queues_add(struct Qdisc *port, u32 first, u32 count);
void cl_queues_remove(u32 first, u32 count);
u32 cl_queues_count(void);
void cl_queues_states(struct cl_queue_state *states, u32 count);

/* What user space reads of a host: see hosts.c. */
struct cl_host_state {
	u64 retransmits, timeouts, out_of_order, tx_bytes;
	u64 received_packets; /* with data */
};

u32 cl_hosts_count(void);
/* A host gets a packet, whose data begins with the Ethernet header. */
void cl_hosts_received(struct net *net, const struct sk_buff *skb);
void cl_host_state(u32 host, struct cl_host_state *state);

/* Who sends flows: sample.c is told when they have none left. */
#define CL_SENT_BY_PROCESS BIT(0)
#define CL_SENT_BY_NICS BIT(1)

void cl_samples_ended(u32 sender);

int cl_forward_begin(struct net_device *dev);
void cl_forward_end(struct net_device *dev);
/* Whether what arrives at a device is forwarded: whether it is a switch's port. */
bool cl_forwards(const struct net_device *dev);

#endif
