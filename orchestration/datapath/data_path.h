/* SPDX-License-Identifier: GPL-2.0-only */
/* The emulated data path: its files, and the limits of a switch that they share.
 *
 * A file calls and includes only those above it in this list. Those above call it through pointers
 * that it gives them: an event's `happen`, a pause's `settle` and `obey`, a share's `ops`, and
 * `cl_forwarding`. What others may use of a file is in its header.
 *
 *   engine.c          the events of all ports in their order, and the moves of virtual time
 *   wire.c            a line with its cable, lists of packets, and their delivery
 *   pfc.c             pause frames by priority, made and obeyed
 *   host.c            the queueing discipline "closloop_host": the NIC of a host that speaks TCP
 *   hosts.c           /proc/closloop/hosts: TCP's counters of all hosts
 *   policy.h          what a congestion control sees and answers; telemetry.c: in packets
 *
 *   buffer.c          a switch's shared buffer
 *   watchdog.c        ports that have been stopped for too long, and who it is that stops them
 *   port.c            a port of a switch, with its queues, its wire and the cable
 *   queues.c          /proc/closloop/queues: all queues read, and thresholds set, in one call
 *   port_qdisc.c      the queueing discipline "closloop", which is a port
 *   load_balancing.c  what is the same for all switches that balance their load, and their ports
 *   conga.c           what a switch knows of the load on other ways than its own
 *   paths.c           which of several equal-cost ports a packet takes
 *   flow_table.c      /proc/closloop/flow_tables: the recent flows at each switch's queues
 *   pairs.c           /proc/closloop/pairs: the traffic matrix of edge switches
 *   forward.c         a switch's forwarding, with the kernel's own routes
 *   paths_proc.c      /proc/closloop/paths and timeouts: how switches are to balance their load
 *
 *   roce.c            flows, RoCE NICs, and what is the same for all of them
 *   roce_packets.c    packets as they are on the wire
 *   nic_queues.c      what waits at a NIC to be sent
 *   decisions.c       when what a policy decides takes effect
 *   queue_pair.c      what senders and receivers do: acknowledge, mark, send again
 *   nic.c             the queueing discipline "closloop_nic": the NIC of a host that speaks RoCE
 *   rlcc.h            RL-CC's numbers; policy_*.c: congestion controls of flows
 *   roce_flows.c      /proc/closloop/flows, received and nics
 *   parameters.c      /proc/closloop/parameters: each NIC's own, at run time
 *
 *   sample.c          /proc/closloop/samples: all of these, read at given times by the engine
 *
 * There is one CPU. Everything here runs in a softirq or with bottom halves off.
 */
#ifndef CLOSLOOP_DATA_PATH_H
#define CLOSLOOP_DATA_PATH_H

#define CL_MOST_CLASSES 8
#define CL_MOST_PORTS 1024 /* of a switch */

#endif
