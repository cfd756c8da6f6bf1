"""Publish runs, live and finished: to InfluxDB, and as a page of metrics."""
