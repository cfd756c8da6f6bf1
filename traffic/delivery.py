"""How much of a schedule can be delivered by a time, in any fabric and with any congestion control.

A flow sends nothing before it starts, and a host's link carries no more than its rate in either
direction. A link delivers most if it is never idle while it has something to send. What it has not
delivered at a time, its backlog, is then the unfinished work of a queue with that rate (Lindley,
"The theory of queues with a single server", Proc. Cambridge Phil. Soc. 48, 1952). So even with
infinitely fast links between switches, a fabric can deliver at most everything except the larger of
two sums: the backlogs of all senders' links, and those of all receivers' links.
"""

from __future__ import annotations

import numpy as np

from orchestration.core.records import Floats, Ints, Schedule
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed


def payload_rates_bps(testbed: Testbed) -> Floats:
    """Return the rate of TCP payload in full packets on each host's link, shape (hosts,)."""
    payload = testbed.mss_bytes
    packet = payload + TCP_IP_HEADER_BYTES + ETHERNET_HEADER_BYTES + testbed.framing_bytes
    line_bps = [testbed.host_rate_bps(host) for host in testbed.hosts]
    return np.array(line_bps, dtype=np.float64) * payload / packet


def capacity_bytes(testbed: Testbed, window_ns: tuple[int, int]) -> float:
    """Return the bytes that all hosts' links carry in a window at line rate, in one direction."""
    line_bps = sum(testbed.host_rate_bps(host) for host in testbed.hosts)
    return line_bps * (window_ns[1] - window_ns[0]) / 8e9


def offered_bytes(schedule: Schedule, window_ns: tuple[int, int]) -> int:
    """Return the payload of the flows that start in a window."""
    start_ns = schedule.start_ns
    return int(schedule.size_bytes[(start_ns >= window_ns[0]) & (start_ns < window_ns[1])].sum())


def deliverable_bytes(schedule: Schedule, testbed: Testbed, window_ns: tuple[int, int]) -> float:
    """Return the payload that can be delivered in a window.

    It is the payload offered in the window, less the growth of the backlog. No fabric delivers more
    in a window that begins at 0. A window that begins later may start with a larger backlog than
    the one computed here, because links may have been slower than their line rate before.
    """
    rates_bps = payload_rates_bps(testbed)
    backlogs = [
        [_backlog_bytes(schedule, side, rates_bps, t_ns) for t_ns in window_ns]
        for side in (schedule.src, schedule.dst)
    ]
    growth = max(at_end - at_begin for at_begin, at_end in backlogs)
    return offered_bytes(schedule, window_ns) - growth


def _backlog_bytes(schedule: Schedule, host: Ints, rates_bps: Floats, t_ns: int) -> float:
    """Return what the hosts' links have not carried at a time if they were never idle with work.

    `host` (flows,) is the host whose link each flow uses: its source or its destination.
    """
    started = np.flatnonzero(schedule.start_ns < t_ns)
    if not len(started):
        return 0.0
    started = started[np.argsort(host[started], kind="stable")]  # a schedule is sorted by start
    owner, size = host[started], schedule.size_bytes[started].astype(np.float64)
    # for each flow: what its link could carry since the flow's start
    carried = rates_bps[owner] * (t_ns - schedule.start_ns[started]) / 8e9
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    last = np.r_[first[1:], len(owner)] - 1
    cumulative = np.cumsum(size)
    at_last_of_host = np.repeat(cumulative[last], last - first + 1)
    # the busy period at this time began with the flow for which this difference is largest
    backlog = at_last_of_host - (cumulative - size) - carried
    return float(np.maximum(np.maximum.reduceat(backlog, first), 0.0).sum())
