"""One reader per source of counters."""
