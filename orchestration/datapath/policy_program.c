// SPDX-License-Identifier: GPL-2.0-only
/* A policy that is a BPF program, and /proc/closloop/policy, where it is attached.
 *
 * It is of the type that takes any struct as its context ("syscall"). That one may sleep and call
 * the system; here it runs in a softirq, so a program that calls anything is refused.
 */
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/proc_fs.h>
#include <linux/uaccess.h>
#include "policy_program.h"

static struct bpf_prog *program;
static struct cl_context context;

static void happen(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	context.flow = *flow;
	memcpy(context.parameters, parameters, sizeof(context.parameters));
	memcpy(context.hop, hop, flow->hops * sizeof(*hop));
	rcu_read_lock();
	bpf_prog_run(program, &context);
	rcu_read_unlock();
	flow->rate_bps = context.flow.rate_bps;
	flow->window_bytes = context.flow.window_bytes;
	memcpy(flow->own, context.flow.own, sizeof(flow->own));
}

struct cl_policy cl_policy_program = { "program", happen, CL_MOST_PARAMETERS, 0 };

bool cl_policy_program_is_there(void)
{
	return program;
}

static bool calls(const struct bpf_prog *prog)
{
	for (u32 i = 0; i < prog->len; i++)
		if (prog->insnsi[i].code == (BPF_JMP | BPF_CALL))
			return true;
	return false;
}

/* Written once: the program's file descriptor, and whether its packets ask for telemetry. */
static ssize_t policy_write(struct file *file, const char __user *from, size_t size, loff_t *unused)
{
	u32 numbers[2];
	struct bpf_prog *prog;

	if (program)
		return -EBUSY;
	if (size != sizeof(numbers) || copy_from_user(numbers, from, sizeof(numbers)))
		return -EINVAL;
	prog = bpf_prog_get_type(numbers[0], BPF_PROG_TYPE_SYSCALL);
	if (IS_ERR(prog))
		return PTR_ERR(prog);
	if (prog->aux->max_ctx_offset > sizeof(context) || calls(prog)) {
		bool far = prog->aux->max_ctx_offset > sizeof(context);

		bpf_prog_put(prog);
		return far ? -ERANGE : -EPERM;
	}
	cl_policy_program.telemetry = !!numbers[1];
	program = prog;
	return size;
}

static const struct proc_ops policy_ops = {
	.proc_write = policy_write,
	.proc_lseek = noop_llseek,
};

static int __init begin(void)
{
	return proc_create("closloop/policy", 0600, NULL, &policy_ops) ? 0 : -ENOMEM;
}
late_initcall(begin);
