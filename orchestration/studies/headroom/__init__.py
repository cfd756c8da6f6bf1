"""Headroom over a map of conditions: what any tuner can win, by condition and objective."""
