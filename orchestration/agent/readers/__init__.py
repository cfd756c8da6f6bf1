"""The agent's services that read a device's counters, and change its queues."""
