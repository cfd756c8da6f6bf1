/* pacing.bpf.c with helpers of its own: one connection, whose rate and time tests set and read. */
#define HELPER(number)
#include "pacing.bpf.c"

char flows[1];
struct flow held;
u32 there, rate_set, former_rate = ~0U, wanted, refuse;
u64 clock_ns;

struct flow *map_lookup(void *map, const void *key)
{
	return there ? &held : 0;
}

long map_update(void *map, const void *key, const void *value, u64 flags)
{
	held = *(const struct flow *)value;
	there = 1;
	return 0;
}

long map_delete(void *map, const void *key)
{
	there = 0;
	return 0;
}

u64 now_ns(void)
{
	return clock_ns;
}

u64 socket_cookie(void *context)
{
	return 7;
}

long set_option(void *context, int level, int name, void *value, int bytes)
{
	if (refuse)
		return -1;
	rate_set = *(u32 *)value;
	return 0;
}

long get_option(void *context, int level, int name, void *value, int bytes)
{
	*(u32 *)value = former_rate;
	return 0;
}

long want(void *context, int flags)
{
	wanted = flags;
	return 0;
}
