"""A SONiC switch as seen on the switch itself: Redis, CONFIG_DB, counters, telemetry streams.

Must not import: numpy, pyroute2, orchestration.device, orchestration.backends.
"""

__all__ = ["asics", "configdb", "ipfix", "resp", "stream"]
