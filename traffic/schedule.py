"""A trial's schedule: all its flows, known before it starts. Seeded and pure.

It depends only on the trial's traffic, seed and duration and on the testbed's hosts. So every tuner
and every backend gets the same flows, and comparisons between them are paired.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inventory.routing import Path, PathTable, attachment
from inventory.topology import Testbed
from orchestration.core.capabilities import mode_of
from orchestration.core.records import Ints, Schedule
from orchestration.core.roce import BDP_WINDOW, HEADER_BYTES, RoceSpec
from orchestration.core.trial import (
    ROCE_CONTROLS,
    ConcurrentSpec,
    PatternSpec,
    PoissonSpec,
    ReplaySpec,
    SingleFlowSpec,
    TrialSpec,
    of_repeat,
)


def make_schedule(trial: TrialSpec, testbed: Testbed) -> Schedule:
    """Return every flow of `trial`, sorted by start, then pattern, source and destination.

    `classes` has a name for each pattern, in the trial's order. Each pattern draws from its own
    random streams: editing or appending a pattern does not change the flows of the others. No flow
    starts at or after `duration_ns`. Recorded flows that tie keep their order. Raises ValueError
    for a pattern that is impossible on the testbed, and InputError for an unknown workload or a bad
    file of recorded flows.
    """
    # here and not above: a guest reads a schedule and makes none
    from traffic.patterns import Flows, Streams, make_flows

    parts: list[Flows] = []
    for index, spec in enumerate(trial.traffic):
        whole, streams = within(spec, trial, testbed), Streams.spawn(trial.seed, index)
        parts.append(make_flows(whole, testbed, streams, trial.warm_up_ns))

    def joined(name: str) -> Ints:
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate([none, *(getattr(part, name) for part in parts)])

    start_ns, src, dst, size_bytes = map(joined, ("start_ns", "src", "dst", "size_bytes"))
    klass = np.repeat(np.arange(len(parts), dtype=np.int64), [len(p.start_ns) for p in parts])
    order = np.lexsort((dst, src, klass, start_ns))
    return Schedule(
        start_ns=start_ns[order],
        src=src[order],
        dst=dst[order],
        size_bytes=size_bytes[order],
        klass=klass[order],
        classes=class_names(trial.traffic),
    )


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


def lasting_flows(trial: TrialSpec, schedule: Schedule) -> NDArray[np.bool_]:
    """Return which flows send for as long as the trial lasts, shape (flows,)."""
    return np.array([_lasts(spec) for spec in trial.traffic], dtype=bool)[schedule.klass]


def _lasts(spec: PatternSpec) -> bool:
    return isinstance(spec, ConcurrentSpec) and not spec.size_bytes


def expected_bytes(trial: TrialSpec, schedule: Schedule) -> Ints:
    """Return what flows are likely to send, shape (flows,): of those that last, a fair share.

    They share the busier of their two hosts with the others that last, for the trial's duration.
    """
    lasting = lasting_flows(trial, schedule)
    if not lasting.any():
        return schedule.size_bytes
    sent, received = (
        np.bincount(side[lasting])[side[lasting]] for side in (schedule.src, schedule.dst)
    )
    share = trial.duration_ns / (trial.duration_ns + trial.drain_ns) / np.maximum(sent, received)
    size_bytes = schedule.size_bytes.copy()
    size_bytes[lasting] = (size_bytes[lasting] * share).astype(np.int64)
    return size_bytes


def part_of(schedule: Schedule, flows: NDArray[np.bool_]) -> Schedule:
    """Return the schedule of only some of its flows."""
    columns = ("start_ns", "src", "dst", "size_bytes", "klass")
    return dataclasses.replace(
        schedule, **{name: getattr(schedule, name)[flows] for name in columns}
    )


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


def within(spec: PatternSpec, trial: TrialSpec, testbed: Testbed) -> PatternSpec:
    """Return a trial's pattern, its window cut at the trial's end, with the file of its repeat.

    Flows that last are given what the fastest host can send until the trial's end. A single flow
    has no window: raises ValueError if it would start too late.
    """
    if isinstance(spec, ConcurrentSpec):
        latest_ns = spec.start_ns + spec.within_ns + spec.spread_ns
        if latest_ns >= trial.duration_ns:
            raise ValueError(
                f"concurrent flows start until {latest_ns} ns, when the trial's "
                f"{trial.duration_ns} ns are over: let them start earlier"
            )
        if _lasts(spec):
            rate_bps = max(testbed.host_rate_bps(host) for host in testbed.hosts)
            lasts_ns = trial.duration_ns + trial.drain_ns - spec.start_ns
            return dataclasses.replace(spec, size_bytes=-(-rate_bps * lasts_ns // (8 * 10**9)))
        return spec
    if isinstance(spec, SingleFlowSpec):
        if spec.start_ns >= trial.duration_ns:
            raise ValueError(
                f"the flow from {spec.src} to {spec.dst} starts at {spec.start_ns} ns, "
                f"when the trial's {trial.duration_ns} ns are over: start it earlier"
            )
        return spec
    if isinstance(spec, ReplaySpec):
        spec = dataclasses.replace(spec, file=of_repeat(spec.file, trial.repeat))
    return dataclasses.replace(spec, stop_ns=min(spec.stop_ns, trial.duration_ns))


def class_names(traffic: tuple[PatternSpec, ...]) -> tuple[str, ...]:
    """Return a name for each pattern: `incast/tcp` in class tcp, the second one `incast/tcp#2`.

    A congestion control of its own is named, too: `incast/cubic`.

    The replay of a recorded class keeps that class's name. Files of workloads are not read.
    """
    from traffic.workloads import workload_name

    names: list[str] = []
    for spec in traffic:
        name: str = spec.kind
        if isinstance(spec, PoissonSpec):
            name += f":{workload_name(spec.workload)}"
        if isinstance(spec, ReplaySpec) and spec.recorded_class:
            name = spec.recorded_class
        elif spec.queue_class:
            name += f"/{spec.queue_class}"
        if spec.congestion_control and not isinstance(spec, ReplaySpec):
            name += f"/{spec.congestion_control}"
        taken, number = name, 1
        while taken in names:
            number += 1
            taken = f"{name}#{number}"
        names.append(taken)
    return tuple(names)
