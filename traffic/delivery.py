"""What can arrive of a schedule by a time, whatever the fabric and the congestion control do.

A flow sends nothing before it starts, and a host's link carries no more than its rate, either way.
A link that is never idle while it has something to send delivers most: what it then still has at a
time is the unfinished work of a queue with that rate (Lindley, "The theory of queues with a single
server", Proc. Cambridge Phil. Soc. 48, 1952). So a fabric whose links between switches were
infinitely fast could at best deliver all but the larger of two sums of backlogs, of the senders'
links and of the receivers'.
"""

from __future__ import annotations

import numpy as np

from orchestration.core.records import Floats, Ints, Schedule
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed


def payload_rates_bps(testbed: Testbed) -> Floats:
    """Return what each host's link carries of TCP's payload in full packets, shape (hosts,)."""
    payload = testbed.mss_bytes
    packet = payload + TCP_IP_HEADER_BYTES + ETHERNET_HEADER_BYTES + testbed.framing_bytes
    line_bps = [testbed.host_rate_bps(host) for host in testbed.hosts]
    return np.array(line_bps, dtype=np.float64) * payload / packet


def capacity_bytes(testbed: Testbed, window_ns: tuple[int, int]) -> float:
    """Return what all hosts' links carry in a window at line rate, in one direction."""
    line_bps = sum(testbed.host_rate_bps(host) for host in testbed.hosts)
    return line_bps * (window_ns[1] - window_ns[0]) / 8e9


def offered_bytes(schedule: Schedule, window_ns: tuple[int, int]) -> int:
    """Return the payload of the flows that start in a window."""
    start_ns = schedule.start_ns
    return int(schedule.size_bytes[(start_ns >= window_ns[0]) & (start_ns < window_ns[1])].sum())


def deliverable_bytes(schedule: Schedule, testbed: Testbed, window_ns: tuple[int, int]) -> float:
    """Return what can arrive in a window: what is offered in it, and the backlog's difference.

    With a window that begins at 0, no fabric delivers more. A later one may begin with a larger
    backlog than is counted here, where links are slower than at line rate before it.
    """
    rates_bps = payload_rates_bps(testbed)
    shortfalls = [
        [_backlog_bytes(schedule, side, rates_bps, at_ns) for at_ns in window_ns]
        for side in (schedule.src, schedule.dst)
    ]
    more = max(late - early for early, late in shortfalls)
    return offered_bytes(schedule, window_ns) - more


def _backlog_bytes(schedule: Schedule, host: Ints, rates_bps: Floats, at_ns: int) -> float:
    """Return what the hosts' links, never idle with work, have not carried at a time."""
    begun = np.flatnonzero(schedule.start_ns < at_ns)
    if not len(begun):
        return 0.0
    begun = begun[np.argsort(host[begun], kind="stable")]  # a schedule is sorted by start
    owner, size = host[begun], schedule.size_bytes[begun].astype(np.float64)
    could = rates_bps[owner] * (at_ns - schedule.start_ns[begun]) / 8e9
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    last = np.r_[first[1:], len(owner)] - 1
    upto = np.cumsum(size)
    mine = np.repeat(upto[last], last - first + 1)
    # the busy period that is going on began with the flow for which this is most
    left = mine - (upto - size) - could
    return float(np.maximum(np.maximum.reduceat(left, first), 0.0).sum())
