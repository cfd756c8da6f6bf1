// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC's MLP. Weights of tuners/pretrained/rl-cc-mlp.safetensors; written by
 * tuners/nic/sources.py. */
#define RLCC_HISTORY 4
#define RLCC_LEAST_ACTION 52429
#define RLCC_MOST_ACTION 78643
#define RLCC_SPAN 13107
#define HIDDEN 12
#include "policy_rlcc.h"
#include "policy_rlcc_network.h"

RLCC_TABLE s16 hidden_weight[] = {
	14, 2246, -2107, 2235, -622, -516, 1630, -134, 328, -2697, 1300, 139,
	-686, 1276, -939, -479, -1877, -414, -1639, -1235, 1153, -1068, -237, 2622,
	2346, 1102, -117, -1133, -1378, 2354, 78, -1603, 598, 1055, 501, 2077,
	-2192, 42, -141, -2415, 664, 1911, 389, -1247, 1553, 120, -102, 1408,
	-1751, 1607, 598, 1465, -1222, 1550, -1516, -1774, 1734, 1489, 1825, -202,
	-1041, -2510, 891, 1055, 1608, -979, -1425, 623, 1405, 2499, -1875, -89,
	1996, -374, 163, -2359, 1190, 2135, 1684, 2255, 760, -1573, 1291, -1525,
	1787, -2281, 1826, -1498, -787, -779, 891, -1775, -662, -2304, -1335, -376,
};

RLCC_TABLE s16 out_weight[] = {
	-1629, 533, -807, 770, 307, -326, 1501, 218, 1227, -961, 173, -1338,
};

#define RLCC_TABLES(X) X(hidden_weight) X(out_weight)

CL_INLINE s32 rlcc_infer(const s32 *window)
{
	s32 inputs[2 * RLCC_HISTORY], hidden[HIDDEN];

	rlcc_inputs(window, inputs, RLCC_HISTORY);
	for (u32 i = 0; i < HIDDEN; i++) {
		hidden[i] = rlcc_neuron(inputs, 2 * RLCC_HISTORY, hidden_weight, HIDDEN, i, 0);
		if (hidden[i] < 0)
			hidden[i] = 0;
	}
	return rlcc_action(rlcc_neuron(hidden, HIDDEN, out_weight, 1, 0, 0));
}

CL_POLICY(rlcc_mlp, RLCC_PARAMETERS, 0);
