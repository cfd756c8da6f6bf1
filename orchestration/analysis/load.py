"""Offered, delivered and discarded load: payload in the time that is measured, by pattern and in
total.

Offered is the payload of flows that start in that time; flows that are to send for as long as the
trial lasts always have more to send, so that nobody can say how much they offer. Delivered is what
receivers accepted in it, whenever its flow began, and discarded what arrived and was thrown away:
see `delivered`. Shares are of the hosts' line rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.analysis.delivered import Ends, measure_delivered
from orchestration.core.records import (
    LASTING,
    STATUS_NAMES,
    Floats,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.core.signals import FLOW_SCOPE
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.reader import AMOUNTS, LOAD_FACT, TrialResult, is_current
from traffic.delivery import capacity_bytes
from traffic.schedule import class_names

_BYTES = tuple(f"{name}_bytes" for name in AMOUNTS)


@dataclass(frozen=True)
class Load:
    """Payload in bytes of a pattern or of all; NaN if unknown. `capacity_bytes` is at line rate.

    The amounts are in the order of `AMOUNTS`.
    """

    offered_bytes: float
    delivered_bytes: float
    discarded_bytes: float
    capacity_bytes: float

    def share(self, amount: str) -> float:
        """Return the share of the hosts' line rates of one of `AMOUNTS`."""
        return float(getattr(self, f"{amount}_bytes") / self.capacity_bytes)


@dataclass(frozen=True)
class TrialLoad:
    """A trial's load in its measured time, in total and by pattern, named as in its schedule."""

    measured_ns: tuple[int, int]
    total: Load
    patterns: Mapping[str, Load]

    @property
    def scalars(self) -> dict[str, float]:
        """The metrics: shares of the hosts' line rates."""
        return {f"{name}_load": self.total.share(name) for name in AMOUNTS}


def measure_load(result: TrialResult) -> TrialLoad:
    """Return a finished trial's load. Raises InputError for a table that cannot be read.

    It is computed for trials of versions that did not write it down or meant something else by it,
    and for imports.
    """
    if is_current(result.facts.get(LOAD_FACT) or {}):
        return _from_json(result.facts[LOAD_FACT])
    table, flows, testbed = result.table("schedule"), result.table("flows"), result.testbed
    spec, classes = result.spec, class_names(result.spec.traffic)
    there = tuple(dict.fromkeys(table["class"].tolist()))
    if not set(there) <= set(classes):  # of an import nobody knows the patterns
        spec, classes = replace(spec, traffic=()), there
    schedule = Schedule(
        start_ns=table["start_ns"],
        src=_places(table["src"], testbed.hosts),
        dst=_places(table["dst"], testbed.hosts),
        size_bytes=table["bytes"],
        klass=_places(table["class"], classes),
        classes=classes,
    )
    status = _places(flows["status"], STATUS_NAMES)
    ends = Ends(flows["end_ns"], status, flows["retransmits"], _sampled(result))
    return _measure(spec, testbed, schedule, ends, result.ports)


def _sampled(result: TrialResult) -> Samples | None:
    """Return what flows had acknowledged at their samples; None if there are none."""
    table, flows = result.table("flow_samples"), len(result.table("flows")["flow_id"])
    rows = len(table["t_ns"]) // max(1, flows)
    if not rows:
        return None
    acked = table["acked_bytes"].reshape(flows, rows).T
    return Samples(table["t_ns"][:rows], {"acked_bytes": acked})


def _places(names: NDArray[Any], known: Sequence[str]) -> Ints:
    number = {name: place for place, name in enumerate(known)}
    return np.fromiter(map(number.__getitem__, names.tolist()), np.int64, len(names))


def load_facts(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, record: TrialRecord
) -> dict[str, Any]:
    """Return the fact `load` of a trial that has just ended, JSON-ready."""
    return {LOAD_FACT: to_json(_measure(trial, testbed, schedule, ends_of(record), record.ports))}


def ends_of(record: TrialRecord) -> Ends:
    """Return how a trial's flows ended, with the readings of them that it has."""
    flows = record.flows
    acked = record.acked or record.samples.get(FLOW_SCOPE)
    return Ends(flows.end_ns, flows.status, flows.retransmits, acked)


def to_json(load: TrialLoad) -> dict[str, Any]:
    """Return a load as JSON-ready data; what is unknown is None."""

    def told(part: Load) -> dict[str, Any]:
        shares = {f"{name}_load": _rounded(part.share(name), 6) for name in AMOUNTS}
        amounts = {key: _rounded(getattr(part, key)) for key in _BYTES}
        return {**shares, **amounts}

    return {
        **told(load.total),
        "measured_ns": list(load.measured_ns),
        "capacity_bytes": round(load.total.capacity_bytes),
        "patterns": {name: told(part) for name, part in load.patterns.items()},
    }


def _from_json(data: Mapping[str, Any]) -> TrialLoad:
    capacity = float(data["capacity_bytes"])

    def part(told: Mapping[str, Any]) -> Load:
        amounts = (told[key] for key in _BYTES)
        return Load(*[math.nan if one is None else float(one) for one in (*amounts, capacity)])

    begin_ns, end_ns = data["measured_ns"]
    patterns = {name: part(told) for name, told in data["patterns"].items()}
    return TrialLoad((begin_ns, end_ns), part(data), patterns)


def _rounded(value: float, digits: int | None = None) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _measure(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: Ends, ports: Samples
) -> TrialLoad:
    window = trial.measured_ns
    capacity, count = capacity_bytes(testbed, window), len(schedule.classes)
    begun = (schedule.start_ns >= window[0]) & (schedule.start_ns < window[1])
    offered = np.bincount(schedule.klass, schedule.size_bytes * begun, count).astype(np.float64)
    offered[np.unique(schedule.klass[ends.status == LASTING])] = math.nan
    found = measure_delivered(trial, testbed, schedule, ends, ports)
    delivered, discarded = (
        np.bincount(schedule.klass, by_flow, count) for by_flow in (found.accepted, found.discarded)
    )
    columns = np.stack([offered, delivered, discarded])

    def load(amounts: Floats) -> Load:
        return Load(*[*amounts.tolist(), capacity])

    return TrialLoad(
        window,
        load(columns.sum(axis=1)),
        {name: load(columns[:, place]) for place, name in enumerate(schedule.classes)},
    )
