"""A trial's schedule: all its flows, known before it starts. Seeded and pure.

It depends only on the trial's traffic, seed and duration and on the testbed's hosts. So every tuner
and every backend gets the same flows, and comparisons between them are paired.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from inventory.routing import PathTable, attachment
from inventory.topology import Testbed
from orchestration.model.records import Ints, Schedule
from orchestration.model.roce import HEADER_BYTES, RoceSpec
from orchestration.model.trial import (
    PatternSpec,
    PoissonSpec,
    ReplaySpec,
    SingleFlowSpec,
    TrialSpec,
    of_repeat,
)
from traffic.patterns import Flows, Streams, make_flows
from traffic.workloads import workload_name


def make_schedule(trial: TrialSpec, testbed: Testbed) -> Schedule:
    """Return every flow of `trial`, sorted by start, then pattern, source and destination.

    `classes` has a name for each pattern, in the trial's order. Each pattern draws from its own
    random streams: editing or appending a pattern does not change the flows of the others. No flow
    starts at or after `duration_ns`. Recorded flows that tie keep their order. Raises ValueError
    for a pattern that is impossible on the testbed, and InputError for an unknown workload or a bad
    file of recorded flows.
    """
    parts: list[Flows] = []
    for index, spec in enumerate(trial.traffic):
        flows = make_flows(_within(spec, trial), testbed, Streams.spawn(trial.seed, index))
        parts.append(flows)

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


def ideal_times_ns(testbed: Testbed, schedule: Schedule, roce: RoceSpec | None = None) -> Ints:
    """Return each flow's completion time alone at line rate, in ns, shape (flows,).

    By TCP, or by RoCE NICs as `roce` describes them.
    """
    paths, hosts = PathTable(testbed), testbed.hosts
    if roce is not None:
        return _ideal_roce_ns(testbed, paths, schedule, roce)
    columns = (schedule.src, schedule.dst, schedule.size_bytes)
    flows = zip(*(column.tolist() for column in columns), strict=True)
    times = [paths.ideal_fct_ns(hosts[src], hosts[dst], size) for src, dst, size in flows]
    return np.array(times, dtype=np.int64)


def base_rtt_ns(testbed: Testbed) -> int:
    """Return the round trip of a packet on the longest path while all is idle, in ns."""
    paths = PathTable(testbed)
    # of hosts with the same switch, one stands for all
    places = {attachment(testbed, host): host for host in reversed(testbed.hosts)}.values()
    pairs = [(a, b) for a in places for b in places if a != b] or [testbed.hosts[:2]]
    return 2 * max(paths.path(a, b).one_way_ns for a, b in pairs)


def _ideal_roce_ns(testbed: Testbed, paths: PathTable, schedule: Schedule, roce: RoceSpec) -> Ints:
    """The packets before the last at line rate, then the last one's way and its answer's."""
    full_bytes = roce.payload_bytes + HEADER_BYTES + roce.telemetry_bytes + testbed.framing_bytes
    times = []
    for src, dst, size in zip(
        schedule.src.tolist(), schedule.dst.tolist(), schedule.size_bytes.tolist(), strict=True
    ):
        path = paths.path(testbed.hosts[src], testbed.hosts[dst])
        before = max(0, -(-size // roce.payload_bytes) - 1) * full_bytes
        times.append(2 * path.one_way_ns - (-before * 8 * 10**9 // path.rate_bps))
    return np.array(times, dtype=np.int64)


def _within(spec: PatternSpec, trial: TrialSpec) -> PatternSpec:
    """Return the pattern with its window cut at the trial's end, and with the file of its repeat.

    A single flow has no window: raises ValueError if it would start too late.
    """
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

    The replay of a recorded class keeps that class's name. Files of workloads are not read.
    """
    names: list[str] = []
    for spec in traffic:
        name: str = spec.kind
        if isinstance(spec, PoissonSpec):
            name += f":{workload_name(spec.workload)}"
        if isinstance(spec, ReplaySpec) and spec.recorded_class:
            name = spec.recorded_class
        elif spec.queue_class:
            name += f"/{spec.queue_class}"
        taken, number = name, 1
        while taken in names:
            number += 1
            taken = f"{name}#{number}"
        names.append(taken)
    return tuple(names)
