"""Services on a host: its NIC's counters and DCQCN settings, and DCTCP where the kernel has none.

Must not import: numpy, pyroute2, orchestration.device, orchestration.backends.
"""

__all__ = ["dcqcn"]
