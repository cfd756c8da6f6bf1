"""Tuners of ECN marking thresholds."""
