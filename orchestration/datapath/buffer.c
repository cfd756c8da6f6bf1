// SPDX-License-Identifier: GPL-2.0-only
/* The buffer that all ports of a switch share.
 *
 * Some of it is headroom, reserved for each port and lossless class. The rest is shared under a
 * dynamic threshold, alpha times what is free (Choudhury, Hahne, "Dynamic queue length thresholds
 * for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998, equation 1).
 * For a lossless class the threshold holds for what came in by one port: beyond it, the peer is told
 * to stop, and what still comes goes into the headroom; beyond that it is dropped. For any other
 * class it holds for the queue at the port that sends, and what is beyond is dropped. This is what
 * SONiC's BUFFER_PG and BUFFER_QUEUE configure (sonic-swss, doc/swss-schema.md).
 *
 * Ports are settled when somebody looks, so the counts here may be too high, never too low. Who
 * finds that there is no room has all ports of the switch settled, and looks again. While anybody is
 * told to stop, every port has an event at each departure, so that he is let go in time.
 */
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <net/dsfield.h>
#include <net/netns/generic.h>
#include "buffer.h"

#define ALPHA_UNIT_BITS 16
#define MOST_IFINDEX 65536

static unsigned int buffers_id __read_mostly;
static struct cl_buffer *buffers[CL_MOST_SWITCHES];
static u32 switches;
/* Of a switch's port, by the index of its interface, which is unique in the whole fabric: 1 + its
 * place in its switch.
 */
static u16 place_of[MOST_IFINDEX];

struct cl_share *cl_buffer_share(struct net_device *dev)
{
	struct cl_buffer *buffer = *(struct cl_buffer **)net_generic(dev_net(dev), buffers_id);
	u32 place = dev->ifindex < MOST_IFINDEX ? place_of[dev->ifindex] : 0;
	struct cl_share *share = buffer && place ? buffer->share[place - 1] : NULL;
	const struct Qdisc *now = rcu_dereference_bh(netdev_get_tx_queue(dev, 0)->qdisc);

	return share && share->port == now ? share : NULL;
}

static bool lossless(const struct cl_buffer *buffer, u32 klass)
{
	return buffer->options.lossless & BIT(klass);
}

static u32 free_bytes(const struct cl_buffer *buffer)
{
	return buffer->options.pool_bytes - min(buffer->options.pool_bytes, buffer->used_bytes);
}

static u64 threshold(const struct cl_buffer *buffer, u32 klass)
{
	if (buffer->options.xoff_bytes && lossless(buffer, klass))
		return buffer->options.xoff_bytes;
	return (u64)buffer->options.alpha[klass] * free_bytes(buffer) >> ALPHA_UNIT_BITS;
}

static bool fits(const struct cl_buffer *buffer, u32 klass, u32 held_bytes, u32 bytes)
{
	return bytes <= free_bytes(buffer) && held_bytes + bytes <= threshold(buffer, klass);
}

static void settle_all(struct cl_buffer *buffer, u64 now_ns)
{
	for (u32 i = 0; i < buffer->ports; i++) {
		struct cl_share *share = buffer->share[i];

		if (share)
			share->pause.settle(&share->pause, now_ns);
	}
}

static void tell(struct cl_share *share, u8 vector, u16 quanta, u64 now_ns)
{
	struct sk_buff *skb = cl_pause_frame(share->dev, vector, quanta);

	if (skb)
		share->ops->control(share, skb, now_ns);
}

static u8 stopping_vector(const struct cl_share *share)
{
	u8 vector = 0;

	for (u32 i = 0; i < share->classes; i++)
		if (share->stopping & BIT(i))
			vector |= cl_class_bit(share, i);
	return vector;
}

static void stop(struct cl_share *share, u32 klass, u64 now_ns)
{
	struct cl_buffer *buffer = share->buffer;

	if (share->stopping & BIT(klass))
		return;
	share->stopping |= BIT(klass);
	share->since_ns[klass] = now_ns;
	share->frames[klass]++;
	tell(share, cl_class_bit(share, klass), buffer->options.quanta, now_ns);
	if (!share->refresh.number)
		cl_schedule(&share->refresh, now_ns + share->refresh_ns);
	if (buffer->stopping++)
		return;
	for (u32 i = 0; i < buffer->ports; i++)
		if (buffer->share[i])
			buffer->share[i]->ops->expect(buffer->share[i]);
}

static void let_go(struct cl_share *share, u32 klass, u64 now_ns)
{
	share->stopping &= ~BIT(klass);
	share->buffer->stopping--;
	share->stopping_ns[klass] += now_ns - share->since_ns[klass];
	tell(share, cl_class_bit(share, klass), 0, now_ns);
	if (!share->stopping)
		cl_cancel(&share->refresh);
}

/* Say again that the peer is stopped, before it runs out. */
static void refresh(struct cl_event *event)
{
	struct cl_share *share = container_of(event, struct cl_share, refresh);
	u64 now_ns = cl_now_ns();

	if (!share->stopping)
		return;
	for (u32 i = 0; i < share->classes; i++)
		share->frames[i] += !!(share->stopping & BIT(i));
	tell(share, stopping_vector(share), share->buffer->options.quanta, now_ns);
	cl_schedule(&share->refresh, now_ns + share->refresh_ns);
}

/* Let go who may: nothing of his is in the headroom, and he is below his threshold again. */
static void let_go_all(struct cl_buffer *buffer, u64 now_ns)
{
	for (u32 i = 0; i < buffer->ports; i++) {
		struct cl_share *share = buffer->share[i];

		if (!share || !share->stopping)
			continue;
		for (u32 klass = 0; klass < share->classes; klass++)
			if ((share->stopping & BIT(klass)) && !share->headroom_used[klass] &&
			    (!share->shared_bytes[klass] ||
			     share->shared_bytes[klass] + buffer->options.xon_offset_bytes <=
				     threshold(buffer, klass)))
				let_go(share, klass, now_ns);
	}
}

bool cl_buffer_admit(struct cl_share *out, struct sk_buff *skb, u32 klass, u32 backlog_bytes,
		     u64 now_ns)
{
	struct cl_buffer *buffer = out->buffer;
	u32 bytes = qdisc_pkt_len(skb);
	u32 place = skb->skb_iif < MOST_IFINDEX ? place_of[skb->skb_iif] : 0;
	struct cl_share *in = place ? buffer->share[place - 1] : NULL;
	bool counted_in = in && lossless(buffer, klass);
	u32 held_bytes = counted_in ? in->shared_bytes[klass] : backlog_bytes;

	cl_on_wire(skb)->from = counted_in ? place : 0;
	if (unlikely(!fits(buffer, klass, held_bytes, bytes))) {
		settle_all(buffer, now_ns);
		if (counted_in)
			held_bytes = in->shared_bytes[klass];
		if (!fits(buffer, klass, held_bytes, bytes)) {
			if (!counted_in)
				return false;
			stop(in, klass, now_ns);
			if (in->headroom_used[klass] + bytes > in->headroom_bytes) {
				buffer->lossless_drops++;
				return false;
			}
			in->headroom_used[klass] += bytes;
			buffer->headroom_used += bytes;
			return true;
		}
	}
	if (counted_in)
		in->shared_bytes[klass] += bytes;
	buffer->used_bytes += bytes;
	return true;
}

void cl_buffer_release(struct cl_share *out, struct sk_buff *skb, u32 klass, u64 now_ns)
{
	struct cl_buffer *buffer = out->buffer;
	u32 bytes = qdisc_pkt_len(skb), place = cl_on_wire(skb)->from;
	struct cl_share *in = place ? buffer->share[place - 1] : NULL;

	if (in) {
		u32 headroom = min(in->headroom_used[klass], bytes);

		in->headroom_used[klass] -= headroom;
		buffer->headroom_used -= headroom;
		bytes -= headroom;
		in->shared_bytes[klass] -= min(in->shared_bytes[klass], bytes);
	}
	buffer->used_bytes -= min(buffer->used_bytes, bytes);
	if (buffer->stopping)
		let_go_all(buffer, now_ns);
}

int cl_buffer_join(struct cl_share *share, const struct cl_buffer_options *options, u64 rate_bps,
		   struct netlink_ext_ack *extack)
{
	struct cl_buffer **of_net = net_generic(dev_net(share->dev), buffers_id);
	struct cl_buffer *buffer = *of_net;
	int ifindex = share->dev->ifindex;

	if (!buffer) {
		if (options->number >= CL_MOST_SWITCHES || buffers[options->number])
			return -EEXIST;
		buffer = kvzalloc(sizeof(*buffer), GFP_KERNEL);
		if (!buffer)
			return -ENOMEM;
		buffer->options = *options;
		buffers[options->number] = *of_net = buffer;
		switches = max(switches, options->number + 1);
		cl_priorities_set(share->classes, options->priority);
	}
	if (buffer->ports == CL_MOST_PORTS || ifindex >= MOST_IFINDEX || place_of[ifindex]) {
		NL_SET_ERR_MSG(extack, "too many ports, or two of one index, in the shared buffers");
		return -E2BIG;
	}
	share->place = buffer->ports++;
	buffer->share[share->place] = share;
	place_of[ifindex] = share->place + 1;
	share->buffer = buffer;
	share->headroom_bytes = options->headroom_bytes;
	share->refresh.happen = refresh;
	share->refresh_ns = max(1ULL, cl_quanta_ns(options->quanta, rate_bps) / 2);
	return 0;
}

void cl_buffer_leave(struct cl_share *share)
{
	if (!share->buffer)
		return;
	cl_cancel(&share->refresh);
	cl_cancel(&share->watch);
	cl_cancel(&share->pause.run_out);
	share->buffer->stopping -= hweight8(share->stopping);
	share->buffer->share[share->place] = NULL;
	place_of[share->dev->ifindex] = 0;
	share->buffer = NULL;
}

static void read_port(const struct cl_share *share, struct cl_pause_state *states, u64 now_ns)
{
	for (u32 i = 0; i < share->classes; i++) {
		u32 priority = share->buffer->options.priority[i];
		bool stopping = share->stopping & BIT(i);

		states[i] = (struct cl_pause_state){
			.frames_received = share->pause.frames[priority],
			.paused_ns = cl_paused_ns(&share->pause, priority, now_ns),
			.frames_sent = share->frames[i],
			.stopping_ns = share->stopping_ns[i] +
				       (stopping ? now_ns - share->since_ns[i] : 0),
			.held_bytes = share->shared_bytes[i] + share->headroom_used[i],
			.headroom_bytes = share->headroom_used[i],
		};
	}
}

void cl_pauses_states(struct cl_pause_state *states, u32 count)
{
	u64 now_ns = cl_now_ns();

	for (u32 i = 0; i < switches; i++) {
		if (!buffers[i])
			continue;
		settle_all(buffers[i], now_ns);
		for (u32 j = 0; j < buffers[i]->ports; j++) {
			const struct cl_share *share = buffers[i]->share[j];

			if (share && share->first_queue + share->classes <= count)
				read_port(share, &states[share->first_queue], now_ns);
		}
	}
}

void cl_buffers_states(struct cl_buffer_state *states, u32 count)
{
	u64 now_ns = cl_now_ns();

	for (u32 i = 0; i < min(count, switches); i++) {
		if (!buffers[i])
			continue;
		settle_all(buffers[i], now_ns);
		states[i] = (struct cl_buffer_state){
			.lossless_drops = buffers[i]->lossless_drops,
			.used_bytes = buffers[i]->used_bytes + buffers[i]->headroom_used,
			.headroom_bytes = buffers[i]->headroom_used,
		};
	}
}

/* /proc/closloop/buffers: a struct cl_buffer_state for each switch. */
static ssize_t buffers_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	size_t bytes = min_t(size_t, size, switches * sizeof(struct cl_buffer_state));
	struct cl_buffer_state *states = kvzalloc(max_t(size_t, bytes, 1), GFP_KERNEL);
	ssize_t result = bytes;

	if (!states)
		return -ENOMEM;
	local_bh_disable();
	cl_buffers_states(states, bytes / sizeof(*states));
	local_bh_enable();
	if (copy_to_user(to, states, bytes))
		result = -EFAULT;
	kvfree(states);
	return result;
}

static const struct proc_ops buffers_ops = {
	.proc_read = buffers_read,
	.proc_lseek = noop_llseek,
};

static void __net_exit forget(struct net *net)
{
	struct cl_buffer **of_net = net_generic(net, buffers_id);

	if (!*of_net)
		return;
	buffers[(*of_net)->options.number] = NULL;
	kvfree(*of_net);
}

static struct pernet_operations of_switches = {
	.exit = forget,
	.id = &buffers_id,
	.size = sizeof(struct cl_buffer *),
};

static int __init begin(void)
{
	if (!proc_create("closloop/buffers", 0400, NULL, &buffers_ops))
		return -ENOMEM;
	return register_pernet_subsys(&of_switches);
}
late_initcall(begin);
