// SPDX-License-Identifier: GPL-2.0-only
/* What ports, which write telemetry, and NICs, which ask for it and read it, have in common. */
#include "telemetry.h"

bool cl_telemetry;

const u32 cl_telemetry_mbps[16] = {
	0, 1000, 2500, 5000, 10000, 20000, 25000, 40000, 50000, 56000, 100000, 200000, 400000, 800000,
	1600000, 100,
};
