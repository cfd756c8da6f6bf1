/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef CLOSLOOP_POLICY_PROGRAM_H
#define CLOSLOOP_POLICY_PROGRAM_H

#include "policy.h"

extern struct cl_policy cl_policy_program;
bool cl_policy_program_is_there(void);

#endif
