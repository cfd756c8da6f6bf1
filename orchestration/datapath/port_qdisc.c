// SPDX-License-Identifier: GPL-2.0-only
/* The queueing discipline "closloop": how user space makes a port and takes it away.
 *
 * What the port does is in port.c. Here it gets its numbers in /proc/closloop/queues, its share in
 * the buffer of its switch, and forwarding.
 */
#include <net/pkt_sched.h>
#include "port.h"
#include "port_qdisc.h"
#include "queues.h"
#include "watchdog.h"

/* Packets leave by `arrive`, not by the device's transmission. */
static struct sk_buff *port_dequeue(struct Qdisc *sch)
{
	return NULL;
}

static int port_init(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct port *port = qdisc_priv(sch);
	struct cl_port_options options;
	int error = cl_read_options(sch, opt, &options, sizeof(options), &port->peer, extack);

	if (error)
		return error;
	if (!options.rate_bps || !options.classes || options.classes > CL_MOST_CLASSES) {
		NL_SET_ERR_MSG(extack, "a port needs a rate, and 1 to 8 classes");
		return -EINVAL;
	}
	port->sch = sch;
	port->dev = qdisc_dev(sch);
	cl_port_init(port, &options);
	error = cl_queues_add(sch, port->first_queue, port->classes);
	if (error)
		return error;
	port->listed = true;
	if (options.buffer.pool_bytes) {
		error = cl_buffer_join(&port->share, &options.buffer, options.rate_bps, extack);
		if (error)
			return error;
		cl_watch_init(&port->share);
	}
	if (options.forwards) {
		error = cl_forwarding.begin(port->dev);
		port->forwards = !error;
	}
	return error;
}

static void port_reset(struct Qdisc *sch)
{
	cl_port_reset(qdisc_priv(sch));
}

static void port_destroy(struct Qdisc *sch)
{
	struct port *port = qdisc_priv(sch);

	cl_port_reset(port);
	cl_buffer_leave(&port->share);
	if (port->forwards)
		cl_forwarding.end(port->dev);
	if (port->listed)
		cl_queues_remove(port->first_queue, port->classes);
}

static int port_dump(struct Qdisc *sch, struct sk_buff *skb)
{
	struct port *port = qdisc_priv(sch);
	struct cl_port_options options = {
		.rate_bps = port->line.rate_bps,
		.delay_ns = port->line.delay_ns,
		.framing_bytes = port->line.framing_bytes,
		.first_queue = port->first_queue,
		.classes = port->classes,
		.forwards = port->forwards,
	};
	struct nlattr *nest = nla_nest_start(skb, TCA_OPTIONS);

	for (u32 i = 0; i < port->classes; i++) {
		options.queue[i].limit_bytes = port->queue[i].limit_bytes;
		options.queue[i].quantum_bytes = port->queue[i].quantum_bytes;
	}
	if (!nest || nla_put(skb, CL_OPTIONS, sizeof(options), &options))
		return -EMSGSIZE;
	return nla_nest_end(skb, nest);
}

struct Qdisc_ops cl_port_ops = {
	.id = "closloop",
	.priv_size = sizeof(struct port),
	.enqueue = cl_port_enqueue,
	.dequeue = port_dequeue,
	.peek = qdisc_peek_dequeued,
	.init = port_init,
	.reset = port_reset,
	.destroy = port_destroy,
	.dump = port_dump,
	.owner = THIS_MODULE,
};

static int __init begin(void)
{
	return register_qdisc(&cl_port_ops);
}
device_initcall(begin);
