"""What is measured: readers of counters, the recorder, features, sinks."""
