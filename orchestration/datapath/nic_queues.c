// SPDX-License-Identifier: GPL-2.0-only
/* What waits at a NIC to be sent: acknowledgements and CNPs, flows by the time of their next packet,
 * and those that have not started. nic.c sends it.
 */
#include <linux/ip.h>
#include "nic_queues.h"

static void add_control(struct nic *nic, struct sk_buff *skb)
{
	cl_append(cl_nic_stopped(nic, ip_hdr(skb)->tos) ? &nic->held : &nic->control, skb);
}

void cl_nic_control(struct nic *nic, struct sk_buff *skb, u64 now_ns)
{
	cl_on_wire(skb)->at_ns = now_ns;
	add_control(nic, skb);
	qdisc_qlen_inc(nic->sch);
}

static bool later(struct rb_node *a, const struct rb_node *b)
{
	return rb_entry(a, struct flow, waiting)->next_ps < rb_entry(b, struct flow, waiting)->next_ps;
}

void cl_nic_wait(struct nic *nic, struct flow *flow, u64 not_before_ps)
{
	if (flow->sending || !cl_flow_may_send(flow))
		return;
	flow->sending = true;
	flow->next_ps = max(flow->next_ps, not_before_ps);
	rb_add_cached(&flow->waiting, &nic->waiting, later);
}

void cl_nic_progress(struct nic *nic, struct flow *flow, u64 now_ns)
{
	flow->progress_ns = now_ns;
	list_move_tail(&flow->unfinished, &nic->unfinished);
}

void cl_nic_look_ahead(struct nic *nic)
{
	nic->start_ps = nic->begun < nic->posts ?
		cl_roce.flow[nic->posted[nic->begun]].posted.start_ns * CL_PS_PER_NS : U64_MAX;
}

void cl_nic_sort(struct nic *nic)
{
	struct cl_fifo control = nic->control, held = nic->held;
	struct flow *flow, *next;

	nic->control = nic->held = (struct cl_fifo){ };
	while (control.first)
		add_control(nic, cl_take(&control));
	while (held.first)
		add_control(nic, cl_take(&held));
	list_splice_tail_init(&nic->stopped, &nic->turns);
	list_for_each_entry_safe(flow, next, &nic->turns, turn)
		if (cl_nic_stopped(nic, flow->posted.tos))
			list_move_tail(&flow->turn, &nic->stopped);
}
