"""Derive from a snapshot who stops whom, how full shared buffers are, and what hosts may send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collectors.snapshot import Snapshot
from orchestration.core.records import Floats, Ints
from orchestration.core.topology import Testbed


@dataclass(frozen=True)
class StopFigures:
    """Arrays of shape (lossless queues,), in the order of `Testbed.lossless_queues`.

    `stopping` is the share of the time since the previous snapshot for which the port had stopped
    its peer, NaN where unknown. `pauses` counts the pause frames that it sent in that time.
    """

    stopping: Floats
    pauses: Floats


@dataclass(frozen=True)
class BufferFigures:
    """Arrays of shape (switches,), in the order of `Testbed.switches`; NaN where unknown.

    `peak_bytes` is the most that was read since the previous snapshot, headroom included as in
    `held_bytes`. `size_bytes` is what each switch has.
    """

    held_bytes: Floats
    peak_bytes: Floats
    headroom_bytes: Floats
    size_bytes: int


@dataclass(frozen=True)
class HostFigures:
    """Arrays of shape (hosts,), in the order of `Testbed.hosts`; NaN where unknown.

    CNPs are counted between two readings of the hosts, some samples apart. `rate_bps` is what
    congestion control allows all flows of a host, at most its line rate, `rtt_ns` their last round
    trip; both are NaN where a host has no unfinished RoCE flow.
    """

    cnps_per_s: Floats
    rate_bps: Floats
    rtt_ns: Floats


def stop_figures(testbed: Testbed, snapshot: Snapshot) -> StopFigures | None:
    """Return who stops whom; None if no switch of the trial can."""
    key, count = "priority.pausing_ns", len(testbed.lossless_queues)
    if len(snapshot.values.get(key, ())) != count or not count:
        return None
    window_ns = snapshot.t_ns - snapshot.before_ns
    share = grown(snapshot, key) / window_ns if window_ns else np.full(count, np.nan)
    return StopFigures(np.minimum(share, 1), grown(snapshot, "priority.pauses_sent"))


def buffer_figures(testbed: Testbed, snapshot: Snapshot) -> BufferFigures | None:
    """Return what shared buffers hold; None if no switch has one."""
    held = snapshot.values.get("switch.buffer_bytes")
    if testbed.switch is None or held is None or len(held) != len(testbed.switches):
        return None
    return BufferFigures(
        known(held),
        known(snapshot.peak_buffer_bytes),
        known(snapshot.values["switch.headroom_bytes"]),
        testbed.switch.buffer_bytes,
    )


def host_figures(testbed: Testbed, snapshot: Snapshot) -> HostFigures | None:
    """Return what hosts with RoCE NICs got and may send; None if no host has one."""
    now, before = snapshot.hosts, snapshot.hosts_before
    absent = np.full(len(testbed.hosts), -1, dtype=np.int64)
    cnps, rate, rtt = (now.get(name, absent) for name in ("cnps", "rate_bps", "rtt_ns"))
    if all((values < 0).all() for values in (cnps, rate, rtt)) or len(cnps) != len(testbed.hosts):
        return None
    window_ns = snapshot.hosts_ns - snapshot.hosts_before_ns
    got = known(cnps) - known(before.get("cnps", absent))
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    return HostFigures(
        got * 1e9 / window_ns if window_ns else np.full(len(cnps), np.nan),
        np.where(rate > 0, np.minimum(rate, line_bps), np.nan),
        np.where((rtt > 0) & (rate != 0), rtt, np.nan),
    )


def stops(testbed: Testbed, figures: StopFigures) -> list[tuple[str, str, float]]:
    """Return who stops whom for which share of the time, the longest first; never none of it.

    Of several cables and classes between two devices the longest counts.
    """
    found: dict[tuple[str, str], float] = {}
    for queue, share in zip(testbed.lossless_queues, figures.stopping.tolist(), strict=True):
        if share > 0:
            pair = (queue.device, testbed.peer_device(queue.port).name)
            found[pair] = max(found.get(pair, 0.0), share)
    return sorted(((*pair, share) for pair, share in found.items()), key=lambda item: -item[2])


def devices_to_json(testbed: Testbed, snapshot: Snapshot) -> dict[str, Any]:
    """Return the figures as JSON-ready data; what a trial does not have is left out."""
    found: dict[str, Any] = {}
    if (stopping := stop_figures(testbed, snapshot)) is not None:
        found["stops"] = [
            {"device": device, "peer": peer, "share": round(share, 6)}
            for device, peer, share in stops(testbed, stopping)
        ]
    if (buffers := buffer_figures(testbed, snapshot)) is not None:
        found["switches"] = [
            {"switch": name, "size_bytes": buffers.size_bytes, **values}
            for name, values in zip(
                testbed.switches,
                plain_rows(
                    buffer_bytes=buffers.held_bytes,
                    peak_bytes=buffers.peak_bytes,
                    headroom_bytes=buffers.headroom_bytes,
                ),
                strict=True,
            )
        ]
    if (hosts := host_figures(testbed, snapshot)) is not None:
        columns = {name: getattr(hosts, name) for name in ("cnps_per_s", "rate_bps", "rtt_ns")}
        found["hosts"] = [
            {"host": name, **values}
            for name, values in zip(testbed.hosts, plain_rows(**columns), strict=True)
        ]
    return found


def plain_rows(**columns: Floats) -> list[dict[str, float | None]]:
    """Return columns as rows of rounded numbers, None for NaN."""
    plain = {
        name: [None if value != value else round(value, 6) for value in values.tolist()]
        for name, values in columns.items()
    }
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def known(values: Ints | Floats) -> Floats:
    """Return numbers with NaN for those that are not known."""
    return np.where(values < 0, np.nan, values)


def grown(snapshot: Snapshot, counter: str) -> Floats:
    """Return by how much a counter grew since the previous snapshot."""
    return known(snapshot.values[counter]) - known(snapshot.before[counter])
