/* SPDX-License-Identifier: GPL-2.0-only */
/* Choosing among the equal-cost ports of a switch: see paths.c. */
#ifndef CLOSLOOP_PATHS_H
#define CLOSLOOP_PATHS_H

#include "load_balancing.h"

/* The routes have answered a flow with `way`: find out whether there are others. */
void cl_paths_route(struct cl_paths *paths, struct cl_path_flow *flow, const struct cl_way *way,
		    const struct sk_buff *skb, struct net *net, int generation);
/* The port by which a packet leaves. Its data begins with the IP header. */
struct cl_way *cl_paths_take(struct cl_paths *paths, struct cl_path_flow *flow,
				   struct sk_buff *skb);

#endif
