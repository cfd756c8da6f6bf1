"""Traffic: flow sizes, arrival patterns, a trial's schedule, and the drivers that send it."""
