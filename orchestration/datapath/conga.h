/* SPDX-License-Identifier: GPL-2.0-only */
/* CONGA: see conga.c. */
#ifndef CLOSLOOP_CONGA_H
#define CLOSLOOP_CONGA_H

#include "load_balancing.h"

void cl_conga_arrive(struct cl_paths *paths, const struct sk_buff *skb, u64 now_ns);
u32 cl_conga_metric(const struct cl_paths *paths, struct cl_exit *exit, u32 partner, u64 now_ns);
void cl_conga_leave(struct cl_paths *paths, struct cl_exit *exit, struct sk_buff *skb, u64 now_ns);
u32 cl_conga_partner(const struct cl_paths *paths, __be32 address);

#endif
