// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC's MLP. Weights of tuners/pretrained/rl-cc-mlp-4.safetensors; written by
 * tuners/nic/sources.py. */
#define RLCC_HISTORY 4
#define RLCC_LEAST_ACTION 52429
#define RLCC_MOST_ACTION 78643
#define RLCC_SPAN 13107
#define HIDDEN 12
#include "policy_rlcc.h"
#include "policy_rlcc_network.h"

RLCC_TABLE s16 hidden_weight[] = {
	1836, 269, 2437, -1723, -1059, -1640, 1635, -2651, 2003, -1883, 1914, 767,
	-399, 871, 2204, -374, 2316, 2701, -1685, 2031, 782, 2910, 1007, -2224,
	-281, -1174, -151, 2781, -798, -1419, 286, 964, 1881, 971, -1214, 1832,
	-265, 293, -251, -1400, 1314, 1866, -1313, 958, -814, -1342, -1407, 2046,
	1649, -1462, 961, -1955, 2428, 842, 1811, -470, -1093, -521, 2279, -668,
	-209, 1726, 1707, -557, 510, 1996, -1847, 608, 1442, 2892, -1210, -2444,
	1214, 9, -1789, 68, -1738, 1298, 102, 1374, -2636, 617, -595, -485,
	-791, 201, -373, 295, -845, -838, -2623, 771, -648, -864, 1401, -632,
};

RLCC_TABLE s16 out_weight[] = {
	45, 422, 1798, -132, -1387, -2251, 1044, -1688, 1334, -1133, -386, 892,
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
