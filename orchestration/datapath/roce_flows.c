// SPDX-License-Identifier: GPL-2.0-only
/* /proc/closloop/flows: all flows of a trial are posted in one call, and their results are read.
 * /proc/closloop/received: how many have been received. /proc/closloop/nics: counters of hosts.
 */
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "nic.h"
#include "nic_queues.h"
#include "policy_program.h"
#include "roce_flows.h"
#include "roce_packets.h"

/* What user space writes before the flows. */
struct settings {
	u64 cnp_interval_ns, timeout_ns;
	u64 probe_interval_ns; /* 0: no probes */
	u64 decision_latency_ns;
	u32 payload_bytes, ack_every, window_bytes, policy;
	u32 selective; /* 1: selective repeat, 0: go-back-N */
	u32 icrc;      /* 1: packets have their CRC, for a capture */
	u32 decisions, unused;
	u32 parameters[CL_MOST_PARAMETERS];
};

/* By their numbers in struct settings: POLICIES in flows.py. */
static const struct cl_policy *const policies[] = {
	&cl_policy_fixed, &cl_policy_dcqcn, &cl_policy_swift, &cl_policy_timely, &cl_policy_hpcc,
	&cl_policy_rlcc, &cl_policy_rlcc_mlp, &cl_policy_rlcc_lstm, &cl_policy_program,
};

static int add_flow(struct flow *flow, const struct posted *posted)
{
	flow->posted = *posted;
	flow->nic = cl_nic_of(posted->src);
	flow->to = cl_nic_of(posted->dst);
	if (!flow->nic || !flow->to)
		return -ENODEV;
	flow->packets = max_t(u64, 1, DIV_ROUND_UP_ULL(posted->bytes, cl_roce.payload_bytes));
	flow->state.line_bps = flow->state.rate_bps = flow->rate_bps = flow->nic->line.rate_bps;
	flow->state.payload_bytes = cl_roce.payload_bytes;
	flow->nic->posts++;
	return 0;
}

/* Those that a NIC has been given before are its own. */
static void give_parameters(const struct settings *settings)
{
	for (u32 i = 0; i < cl_roce.nics; i++) {
		struct nic *nic = cl_roce.nic[i];

		if (nic->has_own)
			continue;
		memcpy(nic->parameters, settings->parameters, sizeof(nic->parameters));
		nic->cnp_interval_ns = settings->cnp_interval_ns;
	}
}

/* With selective repeat, every flow has two bits a packet: the sender's and the receiver's. */
static int give_bits(void)
{
	u64 longs = 0;

	for (u32 i = 0; i < cl_roce.count; i++)
		longs += 2 * BITS_TO_LONGS(cl_roce.flow[i].packets);
	cl_roce.bits = vzalloc(max(1ULL, longs) * sizeof(long));
	if (!cl_roce.bits)
		return -ENOMEM;
	longs = 0;
	for (u32 i = 0; i < cl_roce.count; i++) {
		struct flow *flow = &cl_roce.flow[i];

		flow->known = cl_roce.bits + longs;
		flow->held = flow->known + BITS_TO_LONGS(flow->packets);
		longs += 2 * BITS_TO_LONGS(flow->packets);
	}
	return 0;
}

/* Give every NIC the numbers of its flows, which are ordered by their starts. */
static int hand_out(void)
{
	for (u32 i = 0; i < cl_roce.nics; i++) {
		cl_roce.nic[i]->posted = vzalloc(array_size(max(1U, cl_roce.nic[i]->posts), sizeof(u32)));
		if (!cl_roce.nic[i]->posted)
			return -ENOMEM;
		cl_roce.nic[i]->posts = 0;
	}
	for (u32 i = 0; i < cl_roce.count; i++)
		cl_roce.flow[i].nic->posted[cl_roce.flow[i].nic->posts++] = i;
	return 0;
}

/* /proc/closloop/flows. Written once: struct settings, then every flow, by start. Read: results. */
static ssize_t flows_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	u32 count = (size - sizeof(struct settings)) / sizeof(struct posted);
	struct settings settings;
	struct posted posted;
	ssize_t error;

	if (cl_roce.flow)
		return -EBUSY;
	if (size < sizeof(settings) || copy_from_user(&settings, from, sizeof(settings)))
		return -EFAULT;
	if (settings.policy >= ARRAY_SIZE(policies) || !settings.payload_bytes ||
	    settings.payload_bytes > PAGE_SIZE * 2 - ICRC_BYTES || !settings.ack_every)
		return -EINVAL;
	cl_roce.policy = policies[settings.policy];
	if (cl_roce.policy == &cl_policy_program && !cl_policy_program_is_there())
		return -ENOENT;
	cl_telemetry = cl_roce.policy->telemetry;
	cl_roce.payload_bytes = settings.payload_bytes;
	cl_roce.ack_every = settings.ack_every;
	cl_roce.window_bytes = settings.window_bytes;
	cl_roce.timeout_ns = settings.timeout_ns;
	cl_roce.probe_interval_ns = settings.probe_interval_ns;
	cl_roce.decision_latency_ns = settings.decision_latency_ns;
	cl_roce.decisions = settings.decisions;
	cl_roce.selective = settings.selective;
	cl_roce.icrc = settings.icrc;
	give_parameters(&settings);
	cl_roce.flow = vzalloc(array_size(max(1U, count), sizeof(struct flow)));
	if (!cl_roce.flow)
		return -ENOMEM;
	from += sizeof(settings);
	for (u32 i = 0; i < count; i++) {
		if (copy_from_user(&posted, from + i * sizeof(posted), sizeof(posted)))
			return -EFAULT;
		error = add_flow(&cl_roce.flow[i], &posted);
		if (error)
			return error;
	}
	cl_roce.count = count;
	error = hand_out();
	if (!error && cl_roce.selective)
		error = give_bits();
	if (error)
		return error;
	local_bh_disable();
	for (u32 i = 0; i < cl_roce.nics; i++) {
		cl_nic_look_ahead(cl_roce.nic[i]);
		cl_nic_expect(cl_roce.nic[i]);
	}
	cl_roce.ended = !count;
	local_bh_enable();
	return size;
}

static ssize_t flows_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	u32 first = *at / sizeof(struct result), count = 0;

	for (; first + count < cl_roce.count && (count + 1) * sizeof(struct result) <= size; count++) {
		struct flow *flow = &cl_roce.flow[first + count];

		flow->result.rate_bps = flow->rate_bps;
		flow->result.acked_bytes = min((u64)flow->acked * cl_roce.payload_bytes,
					       flow->posted.bytes);
		if (copy_to_user(to + count * sizeof(struct result), &flow->result,
				 sizeof(struct result)))
			return -EFAULT;
	}
	*at += count * sizeof(struct result);
	return count * sizeof(struct result);
}

static const struct proc_ops flows_ops = {
	.proc_read = flows_read,
	.proc_write = flows_write,
	.proc_lseek = default_llseek,
};

/* /proc/closloop/received: how many flows have been received, as a number of 32 bits. */
static ssize_t received_read(struct file *file, char __user *to, size_t size, loff_t *unused)
{
	if (size < sizeof(cl_roce.received) || copy_to_user(to, &cl_roce.received, sizeof(cl_roce.received)))
		return -EFAULT;
	return sizeof(cl_roce.received);
}

static const struct proc_ops received_ops = {
	.proc_read = received_read,
	.proc_lseek = noop_llseek,
};

void cl_nic_state(u32 number, struct nic_state *state)
{
	struct nic *nic = cl_roce.nic[number];
	struct flow *flow;

	cl_nic_settle(nic);
	*state = (struct nic_state){
		.cnps = nic->cnps,
		.resent = nic->resent,
		.rtt_ns = nic->rtt_ns,
		.received_packets = nic->received_packets,
		.out_of_order_packets = nic->out_of_order_packets,
		.timeouts = nic->timeouts,
		.address = nic->address,
	};
	list_for_each_entry(flow, &nic->unfinished, unfinished) {
		state->rate_bps += flow->rate_bps;
		state->flows++;
	}
}

/* /proc/closloop/nics: struct nic_state of every NIC, as they were made. */
static ssize_t nics_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	u32 first = *at / sizeof(struct nic_state), count = 0;

	for (; first + count < cl_roce.nics && (count + 1) * sizeof(struct nic_state) <= size; count++) {
		struct nic_state state;

		local_bh_disable();
		cl_nic_state(first + count, &state);
		local_bh_enable();
		if (copy_to_user(to + count * sizeof(state), &state, sizeof(state)))
			return -EFAULT;
	}
	*at += count * sizeof(struct nic_state);
	return count * sizeof(struct nic_state);
}

static const struct proc_ops nics_ops = {
	.proc_read = nics_read,
	.proc_lseek = default_llseek,
};

static int __init begin(void)
{
	cl_roce.zeros = alloc_pages(GFP_KERNEL | __GFP_ZERO | __GFP_COMP, 1);
	if (!cl_roce.zeros || !proc_create("closloop/flows", 0600, NULL, &flows_ops) ||
	    !proc_create("closloop/received", 0600, NULL, &received_ops) ||
	    !proc_create("closloop/nics", 0600, NULL, &nics_ops))
		return -ENOMEM;
	return 0;
}
late_initcall(begin);
