/* SPDX-License-Identifier: GPL-2.0-only */
/* RL-CC's networks in integers. Activations are fractions of 2^16, weights of 2^12, in 16 bits;
 * sums have 64 bits and are rounded down. tuners/nic/fixed_point.py computes the same, to the bit,
 * and writes the files that include this one.
 */
#ifndef CLOSLOOP_POLICY_RLCC_NETWORK_H
#define CLOSLOOP_POLICY_RLCC_NETWORK_H

#include "policy_rlcc_tanh.h"

#define RLCC_WEIGHT_BITS 12
/* Weights. In training they change, see orchestration/training/rlcc/trace.c. */
#ifndef RLCC_TABLE
#define RLCC_TABLE static const
#endif
/* Deltas times 16, actions - 1 times 4, both within 16. */
#define RLCC_MOST_INPUT (16 * RLCC_ONE)
/* An LSTM's memory stays within this, which its sigmoid's last bit would not see to. */
#define RLCC_MOST_MEMORY (64 * RLCC_ONE)

#ifdef __BPF__
#include "policy_rlcc_network_bpf.h"
#else
#define RLCC_UNROLL
#define RLCC_FORGET(pointer)

CL_INLINE s32 rlcc_within(s64 value, s32 most)
{
	return value > most ? most : value < -most ? -most : value;
}

CL_INLINE s32 rlcc_positive(s32 value)
{
	return value < 0 ? 0 : value;
}

/* tanh by a table in steps of 1/32 up to 8, straight lines between them. */
CL_INLINE s32 rlcc_tanh(s32 x)
{
	u32 size = x < 0 ? -(u32)x : (u32)x, at = size >> 11;
	s32 value = RLCC_ONE;

	if (at < RLCC_TANH_STEPS)
		value = rlcc_tanh_table[at] + ((s32)(rlcc_tanh_table[at + 1] - rlcc_tanh_table[at]) *
					       (s32)(size & 2047) >> 11);
	return x < 0 ? -value : value;
}
#endif

CL_INLINE s32 rlcc_sigmoid(s32 x)
{
	return (RLCC_ONE + rlcc_tanh(x >> 1)) >> 1;
}

/* One neuron: its inputs by the column of a matrix of `width` columns, at whose first weight
 * `weights` points. `bias`: 0 or a weight
 */
CL_INLINE s32 rlcc_neuron(const s32 *inputs, u32 count, const s16 *weights, u32 width, s16 bias)
{
	s64 sum = (s64)bias * RLCC_ONE;

	RLCC_FORGET(inputs);
	RLCC_UNROLL
	for (u32 i = 0; i < count; i++)
		sum += (s64)inputs[i] * weights[i * width];
	return rlcc_within(sum >> RLCC_WEIGHT_BITS, 1 << 30);
}

/* What a network sees of a window's delta and action. */
CL_INLINE void rlcc_inputs(const s32 *window, s32 *inputs, u32 history)
{
	for (u32 i = 0; i < history; i++) {
		inputs[2 * i] = rlcc_within((s64)window[2 * i] * 16, RLCC_MOST_INPUT);
		inputs[2 * i + 1] = rlcc_within(((s64)window[2 * i + 1] - RLCC_ONE) * 4,
						RLCC_MOST_INPUT);
	}
}

/* An action in 1 +- RLCC_SPAN from the last neuron. */
CL_INLINE s32 rlcc_action(s32 output)
{
	return RLCC_ONE + (s32)((s64)rlcc_tanh(output) * RLCC_SPAN >> 16);
}

#endif
