// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC's MLP. Weights of tuners/pretrained/rl-cc-mlp-3.safetensors; written by
 * tuners/nic/sources.py. */
#define RLCC_HISTORY 4
#define RLCC_LEAST_ACTION 52429
#define RLCC_MOST_ACTION 78643
#define RLCC_SPAN 13107
#define HIDDEN 12
#include "policy_rlcc.h"
#include "policy_rlcc_network.h"

RLCC_TABLE s16 hidden_weight[] = {
	-1114, -3017, 2316, 549, -2889, 456, 1500, -2615, 1122, -3561, -1922, 975,
	13, 4239, -398, -45, 3221, -3256, 2056, 2742, -6742, 3327, 2898, -2165,
	2543, 577, -419, 731, -719, 582, -163, -827, -314, 2276, -936, -300,
	-846, 4363, -3089, -5109, 5762, -3575, 1913, 5507, -4827, 1541, 5526, -2650,
	1924, -658, -567, -2192, 2022, -1564, 2257, -80, -632, -302, 794, -1529,
	-1752, 1696, -2034, -1923, 4848, -4729, 1315, 638, -488, 2504, 1838, 3563,
	1391, 544, -2418, -470, -2017, -1626, -1245, 2003, -2106, -983, -507, 2848,
	1542, 526, -1853, -77, 1779, -2340, -414, -2523, 511, 3938, 689, 934,
};

RLCC_TABLE s16 out_weight[] = {
	-134, -1980, 834, 841, -748, 706, 1071, -495, 1321, -2091, -1238, 1233,
};

#define RLCC_TABLES(X) X(hidden_weight) X(out_weight)

CL_INLINE s32 rlcc_infer(const s32 *window)
{
	s32 inputs[2 * RLCC_HISTORY], hidden[HIDDEN];

	rlcc_inputs(window, inputs, RLCC_HISTORY);
	RLCC_UNROLL
	for (u32 i = 0; i < HIDDEN; i++) {
		s32 sum = rlcc_neuron(inputs, 2 * RLCC_HISTORY, &hidden_weight[i], HIDDEN, 0);

		hidden[i] = rlcc_positive(sum);
	}
	return rlcc_action(rlcc_neuron(hidden, HIDDEN, out_weight, 1, 0));
}

CL_POLICY(rlcc_mlp, RLCC_PARAMETERS, 0);
