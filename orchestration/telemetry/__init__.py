"""What others see of a run while it goes on and after: InfluxDB, and a page of metrics."""
