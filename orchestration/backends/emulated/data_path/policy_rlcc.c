// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC with one small tree, made by hand after table VI of its paper: raise a rate below the
 * target by 10 %, cut it by 10 % when congested, and by less while that eases.
 */
#define RLCC_HISTORY 2
#define RLCC_LEAST_ACTION 52429 /* 0.8 */
#define RLCC_MOST_ACTION 78643  /* 1.2 */
#include "policy_rlcc.h"

CL_INLINE s32 rlcc_infer(const s32 *window)
{
	if (window[0] > 2097) /* 0.032: below the target */
		return window[2] > 2097 ? 72090 : 68813;
	if (window[0] > -3277) /* -0.05 */
		return window[2] > window[0] ? 64225 : 65536;
	return window[2] > window[0] ? 58982 : 62259;
}

CL_POLICY(rlcc, RLCC_PARAMETERS, 0);
