"""Services that send traffic from a host: with sockets, with programs, with prebuilt frames.

Must not import: numpy, scapy, orchestration.device, orchestration.backends.
"""

__all__ = ["connections", "frames", "socket_driver"]
