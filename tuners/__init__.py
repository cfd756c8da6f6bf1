"""Tuners: what sets ECN thresholds per queue. `registry.create` makes a tuner by name."""
