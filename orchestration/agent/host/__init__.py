"""Services on a host: its NIC's counters and settings, and DCTCP where the kernel has none."""
