"""A trial's schedule: all its flows, known before it starts.

It depends only on the trial's traffic, seed and duration and on the testbed's hosts. So every tuner
and every backend gets the same flows (common random numbers), and comparisons between them are
paired.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestration.core.pattern import Flows, PatternSpec, Streams
from orchestration.core.records import Ints, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec


def make_schedule(trial: TrialSpec, testbed: Testbed) -> Schedule:
    """Return every flow of `trial`, sorted by start, then pattern, source and destination.

    `classes` has a name for each pattern, in the trial's order. Each pattern draws from its own
    random streams, so editing or appending a pattern does not change the flows of the others. No
    flow starts at or after `duration_ns`. Recorded flows that are equal in all these keep their
    order. Raises ValueError for a pattern that cannot run on the testbed, and InputError for an
    unknown workload or a faulty file of recorded flows.
    """
    parts: list[Flows] = []
    for index, spec in enumerate(trial.traffic):
        fitted, streams = fit_to_trial(spec, trial, testbed), Streams.spawn(trial.seed, index)
        parts.append(make_flows(fitted, testbed, streams, trial.warm_up_ns))

    def joined(name: str) -> Ints:
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *(getattr(part, name) for part in parts)])

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


def lasting_flows(trial: TrialSpec, schedule: Schedule) -> NDArray[np.bool_]:
    """Return which flows are long-lived: they send until the trial ends. Shape (flows,)."""
    return np.array([spec.lasts for spec in trial.traffic], dtype=bool)[schedule.klass]


def expected_bytes(trial: TrialSpec, schedule: Schedule) -> Ints:
    """Return the payload that each flow is likely to send, shape (flows,).

    A long-lived flow is likely to send a fair share of what the busier of its two hosts can send or
    receive during the trial's duration: all long-lived flows of that host have the same share.
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


def incast_of_flow(traffic: Sequence[PatternSpec], klass: Ints, start_ns: Ints, dst: Ints) -> Ints:
    """Return the number of the incast to which each flow belongs, -1 for none; shape (flows,).

    `klass`, `start_ns` and `dst` (flows,) are as in a `Schedule`, and may be of some of its flows.
    Flows of one pattern that start at the same time at the same receiver are one incast, at
    whatever times the pattern makes incasts. They are numbered by start, then pattern and receiver.
    """
    number = np.full(len(klass), -1, dtype=np.int64)
    chosen = np.flatnonzero(np.array([spec.incasts for spec in traffic], dtype=bool)[klass])
    keys = np.stack([dst[chosen], klass[chosen], start_ns[chosen]])
    order = np.lexsort(keys)
    first = np.diff(keys[:, order], axis=1).any(axis=0)
    number[chosen[order]] = np.cumsum(np.r_[0, first])[: len(order)]
    return number


def select_flows(schedule: Schedule, flows: NDArray[np.bool_]) -> Schedule:
    """Return a schedule with only the flows for which `flows` (flows,) is True."""
    columns = ("start_ns", "src", "dst", "size_bytes", "klass")
    return dataclasses.replace(
        schedule, **{name: getattr(schedule, name)[flows] for name in columns}
    )


def fit_to_trial(spec: PatternSpec, trial: TrialSpec, testbed: Testbed) -> PatternSpec:
    """Return a pattern as the trial uses it: until the trial's end, and with the repeat's files.

    Raises ValueError if it would start too late.
    """
    return spec.of_repeat(trial.repeat).cut(trial.duration_ns, trial.drain_ns, testbed)


def class_names(traffic: tuple[PatternSpec, ...]) -> tuple[str, ...]:
    """Return a unique name for each pattern, such as `incast/tcp` and `incast/tcp#2`.

    Files of workloads are not read.
    """
    names: list[str] = []
    for spec in traffic:
        name, number = spec.class_name, 1
        while name in names:
            number += 1
            name = f"{spec.class_name}#{number}"
        names.append(name)
    return tuple(names)


def make_flows(spec: PatternSpec, testbed: Testbed, streams: Streams, warm_up_ns: int = 0) -> Flows:
    """Return the flows of a pattern in a trial whose measurement begins at `warm_up_ns`.

    Raises ValueError if the pattern cannot run on the testbed, and InputError for a workload or a
    file of flows that cannot be read.
    """
    if problem := spec.wrong(testbed):
        raise ValueError(problem)
    return spec.make_flows(testbed, streams, warm_up_ns)
