"""Kernel settings of hosts and Linux switches that make a trial one, the same on every backend."""

from __future__ import annotations

from orchestration.model.trial import HostSpec

# A host keeps at most this much of one flow below TCP, as NICs with per-flow queues do. Linux'
# default of 4 MB would let an elephant fill the NIC's queue with a millisecond of data.
TSQ_LIMIT_BYTES = 65_536

# Source and destination address, protocol, source and destination port.
_FIVE_TUPLE = 0x01 | 0x02 | 0x04 | 0x10 | 0x20


def host_sysctls(host: HostSpec) -> dict[str, str]:
    """Return a host's settings: its TCP, and that flows do not know of each other."""
    return {
        "net/ipv4/tcp_congestion_control": host.congestion_control,
        "net/ipv4/tcp_rto_min_us": str(max(1, host.min_rto_ns // 1000)),
        "net/ipv4/tcp_limit_output_bytes": str(TSQ_LIMIT_BYTES),
        # a flow must not inherit what an earlier one learned about the path
        "net/ipv4/tcp_no_metrics_save": "1",
        # a flow keeps its socket's hash after a timeout, too: the flow table knows it by that
        "net/core/txrehash": "0",
    }


def switch_sysctls(seed: int, number: int) -> dict[str, str]:
    """Return the settings of switch `number`: routing, and ECMP by the five-tuple, salted."""
    salt = (seed * 2_654_435_761 + number * 40_503 + 1) & 0x7FFFFFFF
    return {
        "net/ipv4/ip_forward": "1",
        # nothing ends here: no packet's connection need be looked up
        "net/ipv4/ip_early_demux": "0",
        # 3 and not 1, which takes the sender's random socket hash where a packet still carries it
        "net/ipv4/fib_multipath_hash_policy": "3",
        "net/ipv4/fib_multipath_hash_fields": str(_FIVE_TUPLE),
        "net/ipv4/fib_multipath_hash_seed": str(salt or 1),
    }
