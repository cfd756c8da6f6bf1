/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a policy of the user's own offers as a library. Python reads this file too. */

/* Grows when an engine can no longer call policies that were compiled before. */
#define CL_POLICY_ABI 1

/* CL_POLICY_ABI, and the size of struct cl_flow_state. (cffi reads no constants but integers.) */
extern uint32_t cl_own_abi[2];
extern struct cl_policy cl_own_policy;
