"""What sends a schedule's flows: sockets in guests, and programs such as perftest and iperf3.

A driver is offered in the entry-point group `closloop.drivers`.
Must not import: tuners, orchestration.backends, orchestration.campaign.
"""

__all__ = ["connections", "programs", "rack", "rack_programs"]
