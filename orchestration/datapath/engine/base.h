/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What every file of the engine needs: types, and hints to the compiler. */
#ifndef CLOSLOOP_ENGINE_BASE_H
#define CLOSLOOP_ENGINE_BASE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../policy.h"

typedef uint16_t u16;

#define CL_NEVER UINT64_MAX
#define CL_PS_PER_NS 1000ULL
#define CL_PS_PER_S 1000000000000ULL

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define cl_fetch(at) __builtin_prefetch(at) /* asks the memory early; changes nothing */
#define CL_LINE 64 /* bytes of a cache line, about */
#define CL_ALIGNED __attribute__((aligned(CL_LINE)))

static inline u64 min64(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 max64(u64 a, u64 b)
{
	return a > b ? a : b;
}

static inline u32 min32(u32 a, u32 b)
{
	return a < b ? a : b;
}

/* The nanosecond in which what begins at `at_ps` begins. */
static inline u64 cl_begin_ns(u64 at_ps)
{
	return (at_ps + CL_PS_PER_NS - 1) / CL_PS_PER_NS;
}

/* The whole time of which `at_ns` has the last 32 bits, within two seconds of `about_ns`. */
static inline u64 cl_near_ns(u64 about_ns, u32 at_ns)
{
	return about_ns + (s64)(s32)(at_ns - (u32)about_ns);
}

/* SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
static inline u64 cl_draw(u64 *stream)
{
	u64 z = *stream += 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

#endif
