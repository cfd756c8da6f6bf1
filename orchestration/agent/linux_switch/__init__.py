"""Services on a Linux switch: RED, marking without RED, path selection, flow tables.

Must not import: numpy, pyroute2, orchestration.device, orchestration.backends.
"""

__all__ = ["flow_layout", "marks"]
