// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC's MLP. Weights of tuners/pretrained/rl-cc-mlp-5.safetensors; written by
 * tuners/nic/sources.py. */
#define RLCC_HISTORY 4
#define RLCC_LEAST_ACTION 52429
#define RLCC_MOST_ACTION 78643
#define RLCC_SPAN 13107
#define HIDDEN 12
#include "policy_rlcc.h"
#include "policy_rlcc_network.h"

RLCC_TABLE s16 hidden_weight[] = {
	1806, 535, -431, -2071, -1386, 152, -1394, -2470, -3054, 3228, 1291, -1963,
	1021, 3210, 2784, 2656, -1798, -542, 2163, -270, 1308, -2470, 2395, -702,
	536, 985, -1485, 1125, 2482, -1766, 592, -1849, -74, 210, -1018, -867,
	1495, -238, -334, 1702, -1372, 1250, 31, 1238, 2428, -1025, 782, 259,
	-3051, 1272, -1352, 853, 106, 2939, -1046, 2880, 408, -810, 1034, 1238,
	-910, 460, 290, 1215, -2702, 1183, 1673, 1470, 1547, -2012, -63, 2704,
	-1453, 247, 1046, 1401, 3233, 1440, 758, -2055, 1286, 2172, -1246, 347,
	-2293, 3107, -70, 260, -3158, -577, 1280, 3057, 1193, -1246, 1730, -937,
};

RLCC_TABLE s16 out_weight[] = {
	2442, -531, -218, -1328, 1584, 1143, -2225, -365, -1741, 846, 498, -2145,
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
