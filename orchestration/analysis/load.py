"""Offered, delivered and discarded load: payload in the measured time, by flow, pattern, in total.

Offered load is the payload of flows that start in the measured time. A long-lived flow always has
more to send, so its offered load is unknown. Delivered load is the payload that receivers accepted
in this time, whenever its flow started; discarded load is what arrived and was not kept. Shares are
of the hosts' line rates.

A port towards a host counts everything that arrives. A receiver discards what arrives a second time
and, under go-back-N, whatever does not arrive in order: InfiniBand's reliable connection keeps
nothing behind a gap (InfiniBand Architecture 1.2.1, 9.7.5.1; `RdmaHw::ReceiverCheckSeq` of HPCC's
simulator). TCP and selective repeat discard repetitions only. So a port's counter is an upper bound
of what was accepted. The accepted payload of a flow is the first of these that is known:

- samples of what its receiver had acknowledged, around the ends of the measured time (RoCE NICs);
- its size, for a flow that starts and ends in the measured time;
- for a finished flow that is only in part in the measured time: what the port towards its host
  carried besides the host's other flows; without samples of the port, as if the flow had one rate;
- for an unfinished flow the same, but only where none of the host's flows sent anything again:
  elsewhere it is unknown what its receiver kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inventory.routing import roce_flows
from orchestration.analysis.counters import HEADER_BYTES
from orchestration.analysis.flow_metrics import in_class
from orchestration.core.capabilities import mode_of
from orchestration.core.records import (
    DONE,
    LONG_LIVED,
    MISSING,
    STATUS_NAMES,
    Floats,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.core.roce import HEADER_BYTES as ROCE_HEADER_BYTES
from orchestration.core.signals import FLOW_SCOPE
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.reader import AMOUNTS, LOAD_FACT, TrialResult, is_current_load_fact
from traffic.delivery import capacity_bytes
from traffic.schedule import class_names, expected_bytes

# An acknowledgement has an extended transport header (AETH) beside the headers that data has.
_AETH_BYTES = 4
# The classes of flow sizes, which share all flows among them.
_CLASSES = ("small", "medium", "large")


@dataclass(frozen=True)
class FlowEnds:
    """How flows ended, and their progress until then; arrays (flows,) as in `FlowRecords`.

    `acked` has samples of `acked_bytes` (samples, flows), as in `TrialRecord`, or is None.
    """

    end_ns: Ints
    status: Ints
    retransmits: Ints
    acked: Samples | None = None


@dataclass(frozen=True)
class Delivered:
    """Payload in bytes in the measured time, by flow, shapes (flows,); NaN if unknown.

    `accepted` arrived for the first time, and in order or was held until it was. `discarded`
    arrived and was not kept; that of a host is divided among the flows to it, in proportion to what
    they sent again.
    """

    accepted: Floats
    discarded: Floats


def measure_delivered(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, ports: Samples
) -> Delivered:
    """Return the payload that receivers accepted and discarded in the measured time."""
    arrived = arrived_bytes(trial, testbed, schedule, ports, trial.measured_ns)
    later = arrived_bytes(trial, testbed, schedule, ports, (trial.warm_up_ns, _end_ns(trial)))
    begin_ns, stop_ns = trial.measured_ns
    accepted = _acked_at(schedule, ends, stop_ns) - _acked_at(schedule, ends, begin_ns)
    done = ends.status == DONE
    within = done & (schedule.start_ns >= begin_ns) & (ends.end_ns <= stop_ns)
    outside = (schedule.start_ns >= stop_ns) | (done & (ends.end_ns <= begin_ns))
    resent = np.where(outside, 0.0, _resent_bytes(trial, testbed, schedule, ends))
    unread = np.isnan(accepted)
    accepted[unread & within] = schedule.size_bytes[unread & within]
    accepted[unread & outside] = 0.0
    open_ = np.isnan(accepted)
    guess = _at_one_rate(trial, schedule, ends, stop_ns)
    accepted[open_ & done] = guess[open_ & done]

    def by_host(values: Floats | Ints) -> Floats:
        return np.asarray(np.bincount(schedule.dst, values, len(arrived)), dtype=np.float64)

    # For a host whose flows all finished: repetitions, overhead of programs and options of
    # acknowledgements have the same share in the window's bytes as in those until the trial's end.
    finished, in_order = by_host(~done) == 0, by_host(resent) == 0
    in_all = by_host(_at_one_rate(trial, schedule, ends, _end_ns(trial)))
    share = np.where(finished & (later > 0), in_all / np.maximum(later, 1.0), 1.0)
    rest = arrived * np.minimum(share, 1.0) - by_host(np.where(open_, 0.0, accepted))
    guessed = by_host(np.where(open_, guess, 0.0))
    counted = np.isfinite(arrived) & (finished | in_order) & (guessed > 0)
    scale = np.where(counted, np.maximum(rest, 0.0) / np.where(guessed > 0, guessed, 1.0), math.nan)
    refined = np.minimum(guess * scale[schedule.dst], schedule.size_bytes)
    accepted = np.where(open_ & counted[schedule.dst], refined, accepted)
    return Delivered(accepted, _discarded(testbed, schedule, arrived, accepted, resent, ends))


def _discarded(
    testbed: Testbed,
    schedule: Schedule,
    arrived: Floats,
    accepted: Floats,
    resent: Floats,
    ends: FlowEnds,
) -> Floats:
    """Return what hosts discarded, shape (flows,), in proportion to what each flow sent again.

    A host whose flows sent nothing again discards nothing: what arrived and is not accepted yet
    will be. Without samples of flows, no more is discarded than was sent again.
    """
    hosts = len(testbed.hosts)
    resent_to = np.bincount(schedule.dst, resent, hosts)
    excess = arrived - np.bincount(schedule.dst, accepted, hosts)
    if ends.acked is None:
        excess = np.minimum(excess, resent_to)
    discarded = np.where(resent_to == 0, 0.0, np.maximum(excess, 0.0))
    part = resent / np.where(resent_to > 0, resent_to, 1.0)[schedule.dst]
    return np.asarray(discarded[schedule.dst] * part)


def _resent_bytes(trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds) -> Floats:
    """Return the bytes that each flow sent again in the whole trial; NaN if not counted."""
    if not mode_of(trial).has_packets:  # the fluid model sends lost fluid again, none arrives twice
        return np.zeros(len(schedule))
    counted = np.where(ends.retransmits == MISSING, math.nan, ends.retransmits.astype(np.float64))
    payload = np.full(len(schedule), float(testbed.mss_bytes))
    if trial.host.roce is not None and trial.traffic:
        payload[roce_flows(testbed, trial, schedule)] = trial.host.roce.payload_bytes
    return np.asarray(counted * payload)


def _acked_at(schedule: Schedule, ends: FlowEnds, at_ns: int) -> Floats:
    """Return the bytes of each flow acknowledged until a time, (flows,); NaN without samples.

    Between two samples a flow is taken to have one rate.
    """
    size = schedule.size_bytes.astype(np.float64)
    if ends.acked is None or not len(ends.acked.t_ns):
        return np.full(len(schedule), math.nan)
    t_ns, rows = ends.acked.t_ns, ends.acked["acked_bytes"]
    counted = np.where(rows == MISSING, math.nan, rows.astype(np.float64))
    later = int(np.searchsorted(t_ns, at_ns))
    if later < len(t_ns):
        high_ns, high = np.full(len(schedule), t_ns[later]), counted[later]
    else:  # the trial was over before, so that finished flows have their size
        high_ns, high = ends.end_ns, np.where(ends.status == DONE, size, math.nan)
        high = np.where(np.isnan(counted[-1]), math.nan, high)
    low_ns, low = schedule.start_ns, np.where(np.isnan(counted[0]), math.nan, 0.0)
    if later:
        after = t_ns[later - 1] > low_ns
        low_ns = np.where(after, t_ns[later - 1], low_ns)
        low = np.where(after, counted[later - 1], low)
    part = (at_ns - low_ns) / np.maximum(high_ns - low_ns, 1)
    acked = low + (high - low) * np.clip(part, 0.0, 1.0)
    known = ~np.isnan(counted[0])
    ended = known & (ends.status == DONE) & (ends.end_ns <= at_ns)
    acked[ended] = size[ended]
    acked[known & (schedule.start_ns >= at_ns)] = 0.0
    return np.asarray(acked, dtype=np.float64)


def _at_one_rate(trial: TrialSpec, schedule: Schedule, ends: FlowEnds, stop_ns: int) -> Floats:
    """Return the bytes that each flow delivers from the warm-up's end until a time, (flows,).

    It is taken to have one rate from its start to its end.
    """
    begin_ns = trial.warm_up_ns
    ends_ns = np.where(ends.status == DONE, ends.end_ns, _end_ns(trial))
    ends_ns = np.where(ends.status == LONG_LIVED, trial.duration_ns, ends_ns)
    size = expected_bytes(trial, schedule) if trial.traffic else schedule.size_bytes
    within = np.minimum(ends_ns, stop_ns) - np.maximum(schedule.start_ns, begin_ns)
    lasts_ns = np.maximum(ends_ns - schedule.start_ns, 1)
    return np.asarray(size * np.clip(within / lasts_ns, 0.0, 1.0))


def arrived_bytes(
    trial: TrialSpec,
    testbed: Testbed,
    schedule: Schedule,
    ports: Samples,
    window_ns: tuple[int, int],
) -> Floats:
    """Return the payload that ports sent to each host in a window, (hosts,); NaN if unknown.

    It includes what arrives twice or is discarded. Between two samples a port is taken to have one
    rate. Headers are TCP's or RoCE's; for a host that receives both, by their shares of its
    payload.
    """
    arrived = np.full(len(testbed.hosts), math.nan)
    if not len(ports.t_ns):
        return arrived
    host_index = {name: index for index, name in enumerate(testbed.hosts)}
    peers = [host_index.get(testbed.peer_device(queue).name, -1) for queue in testbed.queues]
    queues = np.flatnonzero(np.array(peers) >= 0)
    host_of = np.array(peers)[queues]
    wire, packets = np.zeros(len(arrived)), np.zeros(len(arrived))
    for total, counter in ((wire, ports.tx_bytes), (packets, ports.tx_packets)):
        counts = counter[:, queues]
        read = (counts != MISSING).all(axis=0)
        grown = np.where(read, _grown(ports.t_ns, counts, window_ns), math.nan)
        np.add.at(total, host_of, grown)
    share = _roce_share(trial, testbed, schedule)
    roce = trial.host.roce
    roce_header = ROCE_HEADER_BYTES + (roce.telemetry_bytes if roce else 0)
    arrived = wire - (HEADER_BYTES + share * (roce_header - HEADER_BYTES)) * packets
    if roce is not None:
        # the number and the bytes of full packets and acknowledgements together give those of each
        full, ack = roce.payload_bytes, _AETH_BYTES
        only = share == 1
        arrived[only] = (arrived - ack * packets)[only] * full / (full - ack)
    return np.asarray(np.maximum(arrived, 0.0))


def _grown(t_ns: Ints, counters: Ints, window_ns: tuple[int, int]) -> Floats:
    """Return by how much counters (samples, n) grew in a window, (n,); they are 0 at time 0."""
    begin, end = (_at(t_ns, counters, at_ns) for at_ns in window_ns)
    return np.asarray(end - begin)


def _at(t_ns: Ints, counters: Ints, at_ns: int) -> Floats:
    """Return what counters (samples, n) have at a time, (n,), as `np.interp` does for each."""
    after = int(np.searchsorted(t_ns, at_ns, side="right"))
    before_ns, before = (t_ns[after - 1], counters[after - 1]) if after else (0, 0 * counters[0])
    if after == len(t_ns) or at_ns <= before_ns:
        return np.asarray(before, dtype=np.float64)
    slope = (counters[after] - before) / float(t_ns[after] - before_ns)
    return np.asarray(slope * float(at_ns - before_ns) + before)


def _roce_share(trial: TrialSpec, testbed: Testbed, schedule: Schedule) -> Floats:
    """Return which share of each host's payload comes from RoCE NICs, (hosts,)."""
    hosts = len(testbed.hosts)
    if trial.host.roce is None or not trial.traffic:
        return np.zeros(hosts)
    by_roce = schedule.size_bytes * roce_flows(testbed, trial, schedule)
    share = np.bincount(schedule.dst, by_roce, hosts).astype(np.float64)
    return share / np.maximum(np.bincount(schedule.dst, schedule.size_bytes, hosts), 1)


def _end_ns(trial: TrialSpec) -> int:
    return trial.duration_ns + trial.drain_ns


_BYTES = tuple(f"{name}_bytes" for name in AMOUNTS)


@dataclass(frozen=True)
class Load:
    """Payload in bytes of a pattern, of a flow-size class, or of all flows; NaN if unknown.

    `capacity_bytes` is what the hosts can send at line rate. Amounts are in the order of `AMOUNTS`.
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
    """A trial's load in its measured time: in total, by pattern, and by flow-size class.

    Patterns are named as in the schedule. Trials that recorded their load in an earlier version
    have no `classes`.
    """

    measured_ns: tuple[int, int]
    total: Load
    patterns: Mapping[str, Load]
    classes: Mapping[str, Load] = field(default_factory=dict)

    def goodput_bps(self, part: Load) -> float:
        """Return the payload of a part that receivers accepted, in bit/s of the measured time."""
        begin_ns, end_ns = self.measured_ns
        return part.delivered_bytes * 8e9 / (end_ns - begin_ns)

    @property
    def scalars(self) -> dict[str, float]:
        """The metrics: shares of the hosts' line rates."""
        return {f"{name}_load": self.total.share(name) for name in AMOUNTS}


def measure_load(result: TrialResult) -> TrialLoad:
    """Return a finished trial's load. Raises InputError for a table that cannot be read.

    It is what the trial recorded, or is computed for imports and for trials of versions that did
    not record it or gave it another meaning.
    """
    if is_current_load_fact(result.facts.get(LOAD_FACT) or {}):
        return _from_json(result.facts[LOAD_FACT])
    table, flows, testbed = result.table("schedule"), result.table("flows"), result.testbed
    spec, classes = result.spec, class_names(result.spec.traffic)
    named = tuple(dict.fromkeys(table["class"].tolist()))
    if not set(named) <= set(classes):  # the traffic patterns of an import are unknown
        spec, classes = replace(spec, traffic=()), named
    schedule = Schedule(
        start_ns=table["start_ns"],
        src=_indices(table["src"], testbed.hosts),
        dst=_indices(table["dst"], testbed.hosts),
        size_bytes=table["bytes"],
        klass=_indices(table["class"], classes),
        classes=classes,
    )
    status = _indices(flows["status"], STATUS_NAMES)
    ends = FlowEnds(flows["end_ns"], status, flows["retransmits"], _sampled(result))
    return _measure(spec, testbed, schedule, ends, result.ports)


def _sampled(result: TrialResult) -> Samples | None:
    """Return a trial's samples of the flows' acknowledged bytes; None if there are none."""
    table, flows = result.table("flow_samples"), len(result.table("flows")["flow_id"])
    rows = len(table["t_ns"]) // max(1, flows)
    if not rows:
        return None
    acked = table["acked_bytes"].reshape(flows, rows).T
    return Samples(table["t_ns"][:rows], {"acked_bytes": acked})


def _indices(names: NDArray[Any], known: Sequence[str]) -> Ints:
    """Return the index of each name in `known`."""
    index = {name: number for number, name in enumerate(known)}
    return np.fromiter(map(index.__getitem__, names.tolist()), np.int64, len(names))


def load_facts(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, record: TrialRecord
) -> dict[str, Any]:
    """Return the fact `load` of a trial that has just ended, JSON-ready."""
    return {LOAD_FACT: to_json(_measure(trial, testbed, schedule, ends_of(record), record.ports))}


def ends_of(record: TrialRecord) -> FlowEnds:
    """Return how a trial's flows ended, with the samples of them that it has."""
    flows = record.flows
    acked = record.acked or record.samples.get(FLOW_SCOPE)
    return FlowEnds(flows.end_ns, flows.status, flows.retransmits, acked)


def to_json(load: TrialLoad) -> dict[str, Any]:
    """Return a load as JSON-ready data, with None where it is unknown."""

    def entry(part: Load) -> dict[str, Any]:
        shares = {f"{name}_load": _rounded(part.share(name), 6) for name in AMOUNTS}
        amounts = {key: _rounded(getattr(part, key)) for key in _BYTES}
        return {**shares, **amounts, "goodput_bps": _rounded(load.goodput_bps(part))}

    return {
        **entry(load.total),
        "measured_ns": list(load.measured_ns),
        "capacity_bytes": round(load.total.capacity_bytes),
        "patterns": {name: entry(part) for name, part in load.patterns.items()},
        "classes": {name: entry(part) for name, part in load.classes.items()},
    }


def _from_json(data: Mapping[str, Any]) -> TrialLoad:
    capacity = float(data["capacity_bytes"])

    def part(entry: Mapping[str, Any]) -> Load:
        amounts = (entry[key] for key in _BYTES)
        values = (*amounts, capacity)
        return Load(*[math.nan if value is None else float(value) for value in values])

    begin_ns, end_ns = data["measured_ns"]
    patterns, classes = (
        {name: part(entry) for name, entry in data.get(key, {}).items()}
        for key in ("patterns", "classes")
    )
    return TrialLoad((begin_ns, end_ns), part(data), patterns, classes)


def _rounded(value: float, digits: int | None = None) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _measure(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: FlowEnds, ports: Samples
) -> TrialLoad:
    window = trial.measured_ns
    capacity = capacity_bytes(testbed, window)
    started = (schedule.start_ns >= window[0]) & (schedule.start_ns < window[1])
    by_flow = measure_delivered(trial, testbed, schedule, ends, ports)
    offered = np.where(started, schedule.size_bytes.astype(np.float64), 0.0)
    columns = np.stack([offered, by_flow.accepted, by_flow.discarded])
    endless = ends.status == LONG_LIVED

    def sums(group: Ints, names: Sequence[str]) -> Floats:
        rows = [np.bincount(group, column, len(names)) for column in columns]
        amounts = np.stack(rows).astype(np.float64)
        amounts[0, np.unique(group[endless])] = math.nan
        return amounts

    def load(amounts: Floats) -> Load:
        return Load(*[*amounts.tolist(), capacity])

    size_class = np.select([in_class(schedule.size_bytes, name) for name in _CLASSES], range(3))
    by_pattern, by_class = sums(schedule.klass, schedule.classes), sums(size_class, _CLASSES)
    return TrialLoad(
        window,
        load(by_pattern.sum(axis=1)),
        {name: load(by_pattern[:, index]) for index, name in enumerate(schedule.classes)},
        {name: load(by_class[:, index]) for index, name in enumerate(_CLASSES)},
    )
