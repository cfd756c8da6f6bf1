/* SPDX-License-Identifier: GPL-2.0-only */
/* A switch's forwarding: see forward.c. */
#ifndef CLOSLOOP_FORWARD_H
#define CLOSLOOP_FORWARD_H

#include "load_balancing.h"

/* Let a switch's packets be forwarded by `paths` from now on. */
int cl_forward_balance(struct net *net, struct cl_paths *paths);

#endif
