// SPDX-License-Identifier: GPL-2.0-only
/* Pause frames by priority, made and obeyed.
 *
 * The frame is that of IEEE 802.1Qbb-2011 (IEEE 802.3-2018, annex 31D): a MAC control frame with
 * opcode 0x0101, a vector of the priorities that it is about, and for each a time in quanta of 512
 * bit times of the line. A time that is not renewed runs out; a time of 0 lets go at once.
 */
#include <linux/etherdevice.h>
#include "pfc.h"

#define OPCODE_PFC 0x0101
#define BITS_PER_QUANTUM 512
#define FRAME_BYTES 60 /* without the check sequence */

struct frame {
	struct ethhdr eth;
	__be16 opcode, vector, quanta[CL_PRIORITIES];
} __packed;

/* Of all switches: how many classes there are, and their priorities. */
static u32 classes;
static u8 priorities[CL_PRIORITIES];

static const u8 control_address[ETH_ALEN] = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x01 };

u32 cl_priority_of(u8 tos)
{
	u32 klass = tos >> 3; /* as class_of in port.c */

	return priorities[klass < classes ? klass : 0];
}

void cl_priorities_set(u32 count, const u8 *of_classes)
{
	classes = count;
	memcpy(priorities, of_classes, sizeof(priorities));
}

u64 cl_quanta_ns(u64 quanta, u64 rate_bps)
{
	return div64_u64(quanta * BITS_PER_QUANTUM * NSEC_PER_SEC, rate_bps);
}

struct sk_buff *cl_pause_frame(struct net_device *dev, u8 vector, u16 quanta)
{
	struct sk_buff *skb = alloc_skb(NET_SKB_PAD + FRAME_BYTES, GFP_ATOMIC);
	struct frame *frame;

	if (!skb)
		return NULL;
	skb_reserve(skb, NET_SKB_PAD);
	frame = skb_put_zero(skb, FRAME_BYTES);
	ether_addr_copy(frame->eth.h_dest, control_address);
	ether_addr_copy(frame->eth.h_source, dev->dev_addr);
	frame->eth.h_proto = htons(ETH_P_PAUSE);
	frame->opcode = htons(OPCODE_PFC);
	frame->vector = htons(vector);
	for (u32 i = 0; i < CL_PRIORITIES; i++)
		if (vector & BIT(i))
			frame->quanta[i] = htons(quanta);
	skb->dev = dev;
	skb->protocol = htons(ETH_P_PAUSE);
	skb_reset_mac_header(skb);
	qdisc_skb_cb(skb)->pkt_len = skb->len;
	return skb;
}

u64 cl_paused_ns(const struct cl_pause *pause, u32 priority, u64 now_ns)
{
	u64 running_ns = pause->told & BIT(priority) ? now_ns - pause->since_ns[priority] : 0;

	return pause->paused_ns[priority] + running_ns;
}

static void let_go(struct cl_pause *pause, u32 priority, u64 now_ns)
{
	pause->paused_ns[priority] = cl_paused_ns(pause, priority, now_ns);
	pause->told &= ~BIT(priority);
}

/* Schedule the first time that runs out. */
static void expect(struct cl_pause *pause)
{
	u64 first_ns = U64_MAX;

	for (u32 i = 0; i < CL_PRIORITIES; i++)
		if (pause->told & BIT(i))
			first_ns = min(first_ns, pause->until_ns[i]);
	if (first_ns == U64_MAX)
		cl_cancel(&pause->run_out);
	else
		cl_schedule(&pause->run_out, first_ns);
}

static void run_out(struct cl_event *event)
{
	struct cl_pause *pause = container_of(event, struct cl_pause, run_out);
	u64 now_ns = cl_now_ns();

	pause->settle(pause, now_ns);
	for (u32 i = 0; i < CL_PRIORITIES; i++)
		if ((pause->told & BIT(i)) && pause->until_ns[i] <= now_ns)
			let_go(pause, i, now_ns);
	expect(pause);
	pause->obey(pause, now_ns);
}

void cl_pause_init(struct cl_pause *pause, u64 rate_bps,
		   void (*settle)(struct cl_pause *pause, u64 now_ns),
		   void (*obey)(struct cl_pause *pause, u64 now_ns))
{
	pause->rate_bps = rate_bps;
	pause->settle = settle;
	pause->obey = obey;
	pause->run_out.happen = run_out;
}

void cl_pause_receive(struct cl_pause *pause, struct sk_buff *skb)
{
	const struct frame *frame = (const struct frame *)skb_mac_header(skb);
	u64 now_ns = cl_now_ns();

	if (skb_headlen(skb) < sizeof(*frame) - ETH_HLEN || frame->opcode != htons(OPCODE_PFC))
		return;
	pause->settle(pause, now_ns);
	for (u32 i = 0; i < CL_PRIORITIES; i++) {
		u16 quanta = ntohs(frame->quanta[i]);

		if (!(ntohs(frame->vector) & BIT(i)))
			continue;
		if (!quanta) {
			if (pause->told & BIT(i))
				let_go(pause, i, now_ns);
			continue;
		}
		if (!(pause->told & BIT(i)))
			pause->since_ns[i] = now_ns;
		pause->told |= BIT(i);
		pause->last_ns[i] = now_ns;
		pause->until_ns[i] = now_ns + cl_quanta_ns(quanta, pause->rate_bps);
		pause->frames[i]++;
	}
	expect(pause);
	pause->obey(pause, now_ns);
}
