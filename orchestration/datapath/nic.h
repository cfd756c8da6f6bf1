/* SPDX-License-Identifier: GPL-2.0-only */
/* A host's RoCE NIC: see nic.c. */
#ifndef CLOSLOOP_NIC_H
#define CLOSLOOP_NIC_H

#include "roce.h"

void cl_nic_expect(struct nic *nic);
void cl_nic_settle(struct nic *nic);

#endif
