/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The packet engine as a library: one translation unit, with the congestion controls that it has.
 *
 * A file calls and includes only those above it in this list, but for the few functions that are
 * declared here: what is below them, they call.
 *
 *   packet.h      what a packet is; lists.h: packets in lists
 *   routes.c      shortest paths, and which of them a flow takes
 *   pause.c       the pauses that a port has received
 *   buffer.c      the buffer that the ports of a switch share
 *   watchdog.c    ports that have been stopped for too long
 *   port.c        a port of a switch
 *   switch.c      a switch in a window of time
 *   queue_pair.c  senders and receivers of flows
 *   nic.c         a NIC in a window of time
 *   windows.c     the whole fabric, window by window
 *   state.c       what is read and set in between
 *   build.c       how an engine is made of arrays
 */
#include "engine.h"
#include "lists.h"

static void settle_all(struct cl_engine *e, struct fabric_switch *s, u64 now_ns);
static void obey(struct cl_engine *e, struct fabric_switch *s, u32 port, u64 now_ns);
static void settle(struct cl_engine *e, struct fabric_switch *s, struct out *o, u64 now_ns);
static void take_back(struct cl_engine *e, struct fabric_switch *s, struct out *o);
static void wait_for_turn(struct cl_engine *e, u32 flow, u64 not_before_ps);
static void add_control(struct cl_engine *e, struct nic *n, const struct packet *p);
static void leave_unfinished(struct cl_engine *e, struct nic *n, u32 flow);

/* each policy's function has the same name in its file */
#define happen happen_fixed
#include "../policy_fixed.c"
#undef happen
#define happen happen_dcqcn
#include "../policy_dcqcn.c"
#undef happen

#include "routes.c"
#include "pause.c"
#include "buffer.c"
#include "watchdog.c"
#include "port.c"
#include "switch.c"
#include "queue_pair.c"
#include "nic.c"
#include "windows.c"
#include "state.c"
#include "build.c"
