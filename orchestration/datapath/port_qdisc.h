/* SPDX-License-Identifier: GPL-2.0-only */
/* The queueing discipline "closloop": see port_qdisc.c. */
#ifndef CLOSLOOP_PORT_QDISC_H
#define CLOSLOOP_PORT_QDISC_H

#include <net/sch_generic.h>

/* A qdisc of it is a port. */
extern struct Qdisc_ops cl_port_ops;

#endif
