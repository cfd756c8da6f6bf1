"""A trial's flows on a testbed: which congestion control sends each, and its time alone. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inventory.routing import Path, PathTable, attachment
from orchestration.core.capabilities import mode_of
from orchestration.core.records import Ints, Schedule
from orchestration.core.roce import BDP_WINDOW, HEADER_BYTES, RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import ROCE_CONTROLS, PatternSpec, TrialSpec


def own_control(testbed: Testbed, spec: PatternSpec) -> str:
    """Return the congestion control of a pattern, or else of its class; "" for the hosts'."""
    if spec.congestion_control or not testbed.classes:
        return spec.congestion_control
    return testbed.classes[testbed.class_index(spec.queue_class)].congestion_control


def flow_controls(testbed: Testbed, trial: TrialSpec) -> tuple[str, ...]:
    """Return the congestion control of each of a trial's patterns."""
    return tuple(trial.host.control_of(own_control(testbed, spec)) for spec in trial.traffic)


def ignores_marks(testbed: Testbed, trial: TrialSpec) -> bool:
    """Return whether it is certain that no flow of a trial answers ECN marks."""
    return not any(map(mode_of(trial).may_answer_marks, flow_controls(testbed, trial)))


def roce_flows(testbed: Testbed, trial: TrialSpec, schedule: Schedule) -> NDArray[np.bool_]:
    """Return which flows are sent by RoCE NICs and not by TCP, shape (flows,)."""
    patterns = [control in ROCE_CONTROLS for control in flow_controls(testbed, trial)]
    return np.array(patterns, dtype=bool)[schedule.klass]


def ideal_times_ns(testbed: Testbed, schedule: Schedule, trial: TrialSpec | None = None) -> Ints:
    """Return each flow's completion time alone at line rate, in ns, shape (flows,).

    By TCP, or by RoCE NICs if `trial` says so.
    """
    paths, hosts = PathTable(testbed), testbed.hosts
    columns = (schedule.src, schedule.dst, schedule.size_bytes)
    flows = zip(*(column.tolist() for column in columns), strict=True)
    if trial is None or trial.host.roce is None:
        times = [paths.ideal_fct_ns(hosts[src], hosts[dst], size) for src, dst, size in flows]
        return np.array(times, dtype=np.int64)
    framing_bytes, by_roce = testbed.framing_bytes, roce_flows(testbed, trial, schedule).tolist()
    times = [
        _ideal_roce_ns(paths.path(hosts[src], hosts[dst]), size, trial.host.roce, framing_bytes)
        if roce
        else paths.ideal_fct_ns(hosts[src], hosts[dst], size)
        for roce, (src, dst, size) in zip(by_roce, flows, strict=True)
    ]
    return np.array(times, dtype=np.int64)


def _ideal_roce_ns(path: Path, size_bytes: int, roce: RoceSpec, framing_bytes: int) -> int:
    """The packets before the last at line rate, then the last one's way and its answer's."""
    full_bytes = roce.payload_bytes + HEADER_BYTES + roce.telemetry_bytes + framing_bytes
    before = (roce.packets(size_bytes) - 1) * full_bytes
    return 2 * path.one_way_ns - (-before * 8 * 10**9 // path.rate_bps)


def _paths(testbed: Testbed) -> Iterator[Path]:
    """Yield the paths between hosts; of hosts at the same switches, one stands for all."""
    places = {attachment(testbed, host): host for host in reversed(testbed.hosts)}.values()
    pairs = [(a, b) for a in places for b in places if a != b] or [
        (testbed.hosts[0], testbed.hosts[1])
    ]
    return itertools.starmap(PathTable(testbed).path, pairs)


def base_rtt_ns(testbed: Testbed) -> int:
    """Return the round trip of a packet on the longest path while all is idle, in ns."""
    return 2 * max(path.one_way_ns for path in _paths(testbed))


def window_bytes(testbed: Testbed, roce: RoceSpec) -> int:
    """Return how much payload a flow may have on its way, in bytes; 0 is any.

    `BDP_WINDOW` is what the longest path takes in a round trip, in whole packets.
    """
    if roce.window_bytes != BDP_WINDOW:
        return roce.window_bytes
    full_bytes = roce.payload_bytes + HEADER_BYTES + roce.telemetry_bytes
    most_bits = max(path.rate_bps * 2 * path.one_way_ns for path in _paths(testbed))
    packets = -(-most_bits // (8 * 10**9 * (full_bytes + testbed.framing_bytes)))
    return packets * roce.payload_bytes
