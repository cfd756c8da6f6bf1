/* The data path's engine on a stand-in for the kernel's clock: see test_event_engine.py. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32, __be32;
typedef uint16_t u16;
typedef uint8_t u8;

#define U32_MAX UINT32_MAX
#define U64_MAX UINT64_MAX
#define BIT(n) (1U << (n))
#define SMP_CACHE_BYTES 64
#define __init
#define unlikely(x) (x)
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define WARN_ON_ONCE(x) (x)
#define prefetch(x) __builtin_prefetch(x)
#define DECLARE_BITMAP(name, bits) u64 name[(bits) / 64]
#define DECLARE_PER_CPU(type, name) extern type name
#define this_cpu_read(x) false
#define DECLARE_TASKLET(name, function) void (*name)(struct tasklet_struct *) = function
#define tasklet_schedule(x) ((void)(x))
#define subsys_initcall(x) int (*unused_begin)(void) = x

struct tasklet_struct;
struct hrtimer_cpu_base;
struct net;
struct net_device;
struct sk_buff;
struct Qdisc;
struct Qdisc_ops;

struct time_travel_event {
	u64 time;
	bool pending;
};

static u64 clock_ns;

static u64 ktime_get_ns(void)
{
	return clock_ns;
}

static void time_travel_del_event(struct time_travel_event *event)
{
	event->pending = false;
}

static void time_travel_add_event_rel(struct time_travel_event *event, u64 after_ns)
{
	event->pending = true;
	event->time = clock_ns + after_ns;
}

static void time_travel_set_event_fn(struct time_travel_event *event,
				     void (*function)(struct time_travel_event *event))
{
	(void)event;
	(void)function;
}

static void __set_bit(u32 bit, u64 *map)
{
	map[bit / 64] |= 1ULL << bit % 64;
}

static void __clear_bit(u32 bit, u64 *map)
{
	map[bit / 64] &= ~(1ULL << bit % 64);
}

static u32 find_next_bit(const u64 *map, u32 bits, u32 from)
{
	while (from < bits && !(map[from / 64] >> from % 64 & 1))
		from++;
	return from;
}

static u32 find_first_bit(const u64 *map, u32 bits)
{
	return find_next_bit(map, bits, 0);
}

#include "engine.c"

#define EVENTS 400

static struct cl_event events[EVENTS];
static void (*on_happen)(u32 number, u64 now_ns);
static u32 jumps;

/* Each fifth time something else would run before the next event. */
bool time_travel_jump(unsigned long long ns)
{
	if (++jumps % 5 == 0)
		return false;
	clock_ns = ns;
	return true;
}

static void happened(struct cl_event *event)
{
	on_happen(event - events, cl_now_ns());
}

static void warmed(const struct cl_event *event, u32 away)
{
	if (!event->number || away < 1 || away >= CL_WARM_FIRST)
		__builtin_trap();
}

void reset(void (*callback)(u32 number, u64 now_ns))
{
	memset(events, 0, sizeof(events));
	for (u32 i = 0; i < EVENTS; i++) {
		events[i].happen = happened;
		events[i].warm = warmed;
	}
	memset(entry, 0, sizeof(entry));
	memset(wheel, 0, sizeof(wheel));
	memset(taken, 0, sizeof(taken));
	free_numbers = used_numbers = in_wheel = in_heap = jumps = 0;
	wheel_ns = orders = clock_ns = 0;
	wake.pending = false;
	on_happen = callback;
}

void schedule(u32 number, u64 at_ns)
{
	cl_schedule(&events[number], at_ns);
}

void schedule_last(u32 number, u64 at_ns)
{
	cl_schedule_last(&events[number], at_ns);
}

void cancel(u32 number)
{
	cl_cancel(&events[number]);
}

/* All that is scheduled happens. */
void go(void)
{
	while (wake.pending) {
		wake.pending = false;
		clock_ns = max(clock_ns, wake.time);
		run(NULL);
	}
}
