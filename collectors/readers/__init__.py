"""Decoders, one for each source of counters: RED queues, flow tables, and the ns-3 program.

`tc` reads queueing disciplines over netlink, `flows` the recent flows of each queue, `ns3` the
words that the simulator writes.
Must not import: collectors.sinks, tuners, orchestration.backends.
"""

__all__ = ["flows", "ns3", "tc"]
