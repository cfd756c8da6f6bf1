"""Offered and delivered load: payload in the time that is measured, by pattern and in total.

Offered is the payload of flows that start in that time; those that are to send for as long as the
trial lasts offer no amount. Delivered is the payload that the switches' ports sent to hosts in it,
whenever its flow began, repeats of lost packets included. What a port sent is divided among
patterns as if each flow had one rate from its start to its end. Without samples of ports these
rates are all there is. Shares are of the hosts' line rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inventory.topology import Testbed
from orchestration.analysis.counters import HEADER_BYTES
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import (
    DONE,
    LASTING,
    MISSING,
    STATUS_NAMES,
    Floats,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.model.roce import HEADER_BYTES as ROCE_HEADER_BYTES
from orchestration.model.trial import TrialSpec
from traffic.delivery import capacity_bytes
from traffic.schedule import class_names, expected_bytes, roce_flows

FACT = "load"


@dataclass(frozen=True)
class Load:
    """Payload in bytes of a pattern or of all; NaN if unknown. `capacity_bytes` is at line rate."""

    offered_bytes: float
    delivered_bytes: float
    capacity_bytes: float

    @property
    def offered(self) -> float:
        """The share of the hosts' line rates that was offered."""
        return self.offered_bytes / self.capacity_bytes

    @property
    def delivered(self) -> float:
        """The share of the hosts' line rates that arrived."""
        return self.delivered_bytes / self.capacity_bytes


@dataclass(frozen=True)
class TrialLoad:
    """A trial's load in its measured time, in total and by pattern, named as in its schedule."""

    measured_ns: tuple[int, int]
    total: Load
    patterns: Mapping[str, Load]

    @property
    def scalars(self) -> dict[str, float]:
        """The metrics: shares of the hosts' line rates."""
        return {"offered_load": self.total.offered, "delivered_load": self.total.delivered}


def measure_load(result: TrialResult) -> TrialLoad:
    """Return a finished trial's load. Raises InputError for a table that cannot be read.

    It is computed for trials of versions that did not write it down, and for imports.
    """
    if FACT in result.facts:
        return _from_json(result.facts[FACT])
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
    return _measure(spec, testbed, schedule, flows["end_ns"], status, result.ports)


def _places(names: NDArray[Any], known: Sequence[str]) -> Ints:
    number = {name: place for place, name in enumerate(known)}
    return np.fromiter(map(number.__getitem__, names.tolist()), np.int64, len(names))


def load_facts(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, record: TrialRecord
) -> dict[str, Any]:
    """Return the fact `load` of a trial that has just ended, JSON-ready."""
    flows = record.flows
    found = _measure(trial, testbed, schedule, flows.end_ns, flows.status, record.ports)
    return {FACT: to_json(found)}


def to_json(load: TrialLoad) -> dict[str, Any]:
    """Return a load as JSON-ready data; what is unknown is None."""

    def told(part: Load) -> dict[str, Any]:
        shares = {"offered_load": part.offered, "delivered_load": part.delivered}
        known = {
            key: round(value, 6) if math.isfinite(value) else None for key, value in shares.items()
        }
        amounts = {"offered_bytes": part.offered_bytes, "delivered_bytes": part.delivered_bytes}
        whole = {
            key: round(value) if math.isfinite(value) else None for key, value in amounts.items()
        }
        return {**known, **whole}

    return {
        **told(load.total),
        "measured_ns": list(load.measured_ns),
        "capacity_bytes": round(load.total.capacity_bytes),
        "patterns": {name: told(part) for name, part in load.patterns.items()},
    }


def _from_json(data: Mapping[str, Any]) -> TrialLoad:
    capacity = float(data["capacity_bytes"])

    def part(told: Mapping[str, Any]) -> Load:
        amounts = (told["offered_bytes"], told["delivered_bytes"])
        offered, delivered = (math.nan if value is None else float(value) for value in amounts)
        return Load(offered, delivered, capacity)

    begin_ns, end_ns = data["measured_ns"]
    patterns = {name: part(told) for name, told in data["patterns"].items()}
    return TrialLoad((begin_ns, end_ns), part(data), patterns)


def _measure(
    trial: TrialSpec,
    testbed: Testbed,
    schedule: Schedule,
    end_ns: Ints,
    status: Ints,
    ports: Samples,
) -> TrialLoad:
    window = trial.measured_ns
    capacity, count = capacity_bytes(testbed, window), len(schedule.classes)
    lasting = status == LASTING
    begun = (schedule.start_ns >= window[0]) & (schedule.start_ns < window[1]) & ~lasting
    offered = np.bincount(schedule.klass, schedule.size_bytes * begun, count)
    at_host = np.zeros((len(testbed.hosts), count))
    np.add.at(
        at_host, (schedule.dst, schedule.klass), _at_one_rate(trial, schedule, end_ns, status)
    )
    sent = _sent_to_hosts(trial, testbed, schedule, ports)
    whole = at_host.sum(axis=1)
    known = np.isfinite(sent) & (whole > 0)
    at_host[known] *= (sent[known] / whole[known])[:, None]
    delivered = at_host.sum(axis=0)
    # without counters nobody knows what a flow that never ends has sent
    delivered[np.unique(schedule.klass[lasting & ~known[schedule.dst]])] = math.nan
    return TrialLoad(
        window,
        Load(float(offered.sum()), float(delivered.sum()), capacity),
        {
            name: Load(float(offered[place]), float(delivered[place]), capacity)
            for place, name in enumerate(schedule.classes)
        },
    )


def _at_one_rate(trial: TrialSpec, schedule: Schedule, end_ns: Ints, status: Ints) -> Floats:
    """Return what each flow delivers in the window if it has one rate while it lasts: (flows,)."""
    begin_ns, stop_ns = trial.measured_ns
    last_ns = trial.duration_ns + trial.drain_ns
    ends_ns = np.where(status == DONE, end_ns, last_ns)
    ends_ns = np.where(status == LASTING, trial.duration_ns, ends_ns)
    size = expected_bytes(trial, schedule) if trial.traffic else schedule.size_bytes
    within = np.minimum(ends_ns, stop_ns) - np.maximum(schedule.start_ns, begin_ns)
    lasts_ns = np.maximum(ends_ns - schedule.start_ns, 1)
    return np.asarray(size * np.clip(within / lasts_ns, 0.0, 1.0))


def _sent_to_hosts(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ports: Samples
) -> Floats:
    """Return the payload that ports sent to each host in the window, (hosts,); NaN if unknown.

    Between two samples a port sends evenly. Headers are TCP's or RoCE's; at a host that gets both
    kinds, by their shares of its payload.
    """
    sent = np.full(len(testbed.hosts), math.nan)
    if not len(ports.t_ns):
        return sent
    number = {name: place for place, name in enumerate(testbed.hosts)}
    header = _header_bytes(trial, testbed, schedule)
    sent[:] = 0.0
    for place, queue in enumerate(testbed.queues):
        host = number.get(testbed.peer_device(queue).name)
        if host is None:
            continue
        counts = ports.tx_bytes[:, place], ports.tx_packets[:, place]
        if any((one == MISSING).any() for one in counts):
            sent[host] = math.nan
            continue
        wire, packets = (_grown(ports.t_ns, one, trial.measured_ns) for one in counts)
        sent[host] += wire - header[host] * packets
    return np.asarray(np.maximum(sent, 0.0))


def _grown(t_ns: Ints, counter: Ints, window_ns: tuple[int, int]) -> float:
    """Return by how much a counter grew in a window; it was 0 at time 0, when nothing was sent."""
    begin, end = np.interp(window_ns, np.r_[0, t_ns], np.r_[0, counter])
    return float(end - begin)


def _header_bytes(trial: TrialSpec, testbed: Testbed, schedule: Schedule) -> Floats:
    hosts = len(testbed.hosts)
    share = np.zeros(hosts)
    if trial.host.roce is None:
        return np.full(hosts, float(HEADER_BYTES))
    if trial.traffic:
        by_roce = schedule.size_bytes * roce_flows(testbed, trial, schedule)
        share = np.bincount(schedule.dst, by_roce, hosts).astype(np.float64)
        share /= np.maximum(np.bincount(schedule.dst, schedule.size_bytes, hosts), 1)
    of_roce = ROCE_HEADER_BYTES + trial.host.roce.telemetry_bytes
    return np.asarray(HEADER_BYTES + share * (of_roce - HEADER_BYTES))
