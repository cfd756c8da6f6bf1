"""Measurement: readers of counters, the recorder, sinks."""
