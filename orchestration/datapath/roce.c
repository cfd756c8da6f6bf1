// SPDX-License-Identifier: GPL-2.0-only
/* What all RoCE NICs of this guest have in common. */
#include "roce.h"

struct roce cl_roce;

struct nic *cl_nic_of(__be32 address)
{
	for (u32 i = 0; i < cl_roce.nics; i++)
		if (cl_roce.nic[i]->address == address)
			return cl_roce.nic[i];
	return NULL;
}
