/* SPDX-License-Identifier: GPL-2.0-only */
/* RL-CC's networks as BPF: what policy_rlcc_network.h has for C, to the bit.
 *
 * A BPF program here has no tables, no calls, and variables of 512 bytes; the kernel's verifier
 * follows each way through it, a million instructions in all. So loops over weights are unrolled,
 * and the compiler puts these into the instructions; and only tanh branches, whose ways meet again.
 */
#ifndef CLOSLOOP_POLICY_RLCC_NETWORK_BPF_H
#define CLOSLOOP_POLICY_RLCC_NETWORK_BPF_H

#define RLCC_UNROLL _Pragma("GCC unroll 256")
/* Keep what is behind a pointer in memory: in registers it needs more room when these are saved. */
#define RLCC_FORGET(pointer) asm volatile("" : "+r"(pointer) : : "memory")

/* All bits, if a number is below 0. The compiler may not see that, or it makes branches of it. */
CL_INLINE s64 rlcc_below_zero(s64 value)
{
	s64 mask = value >> 63;

	asm("" : "+r"(mask));
	return mask;
}

CL_INLINE s32 rlcc_within(s64 value, s32 most)
{
	value = most + ((value - most) & rlcc_below_zero(value - most));
	return ((value + most) & ~rlcc_below_zero(value + most)) - most;
}

CL_INLINE s32 rlcc_positive(s32 value)
{
	return value & ~rlcc_below_zero(value);
}

/* The line of one step of the table, by comparisons: of halves, of their halves, ... */
#define RLCC_TANH_1(from) \
	(rlcc_tanh_table[from] + \
	 ((s32)(rlcc_tanh_table[(from) + 1] - rlcc_tanh_table[from]) * rest >> 11))
#define RLCC_TANH_2(from) \
	(at < (from) + 1 ? RLCC_TANH_1(from) : RLCC_TANH_1((from) + 1))
#define RLCC_TANH_4(from) \
	(at < (from) + 2 ? RLCC_TANH_2(from) : RLCC_TANH_2((from) + 2))
#define RLCC_TANH_8(from) \
	(at < (from) + 4 ? RLCC_TANH_4(from) : RLCC_TANH_4((from) + 4))
#define RLCC_TANH_16(from) \
	(at < (from) + 8 ? RLCC_TANH_8(from) : RLCC_TANH_8((from) + 8))
#define RLCC_TANH_32(from) \
	(at < (from) + 16 ? RLCC_TANH_16(from) : RLCC_TANH_16((from) + 16))
#define RLCC_TANH_64(from) \
	(at < (from) + 32 ? RLCC_TANH_32(from) : RLCC_TANH_32((from) + 32))
#define RLCC_TANH_128(from) \
	(at < (from) + 64 ? RLCC_TANH_64(from) : RLCC_TANH_64((from) + 64))
#define RLCC_TANH_256(from) \
	(at < (from) + 128 ? RLCC_TANH_128(from) : RLCC_TANH_128((from) + 128))

CL_INLINE s32 rlcc_tanh(s32 x)
{
	s32 sign = rlcc_below_zero(x), size = (x ^ sign) - sign, rest = size & 2047;
	s32 value = RLCC_ONE;
	u32 at = (u32)size >> 11;

	if (at < RLCC_TANH_STEPS)
		value = RLCC_TANH_256(0);
	return (value ^ sign) - sign;
}

#endif
