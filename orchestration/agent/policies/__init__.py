"""Congestion control on a host, for its TCP connections or in its NIC: deployed, removed, reported.

Must not import: numpy, pyroute2, orchestration.device, orchestration.backends.
"""

__all__: list[str] = []
