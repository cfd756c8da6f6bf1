"""The deliverable load: how much of the offered load can be delivered in the measured time.

A load is a share of the hosts' line rate. The *intended* load is what a campaign asks for, the
*offered* load what its schedule sends. Large flows take longer than a short trial, so that less can
be delivered: a plan warns of that, and says which times would do.

`traffic.delivery` gives an upper bound from the schedules, as if each flow had its hosts' links
alone. The times that would do are worked out for shared links: with processor sharing at
utilisation rho, a flow of s bytes takes s / (rate (1 - rho)) on average (M/G/1-PS; Kleinrock,
Queueing Systems, volume 2, section 4.4). For a fabric that is idle at time 0, this gives the bytes
that were offered before a time and not delivered by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestration.core.condition import factor_labels
from orchestration.core.records import Floats, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration
from traffic.arrivals import OfferedLoad
from traffic.delivery import capacity_bytes, deliverable_bytes, offered_bytes, payload_rates_bps
from traffic.schedule import lasting_flows, make_schedule, select_flows

# If less than this share of the offered load can be delivered, the plan says so. Transports deliver
# less than the bound: 57 % where it is 68 % (WebSearch at 60 % for 10 ms at 25 Gbit/s).
MIN_SHARE = 0.9
# How many repeats of a condition are examined: traffic is stratified, so that they differ little.
REPEATS = 5
_QUANTILES = 2_000
_PROBABILITIES = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
_MAX_UTILISATION = 0.95  # busier links are treated as if they were this busy
_LONGEST_NS = 10**12


@dataclass(frozen=True)
class DeliverableLoad:
    """The intended, offered and deliverable load of conditions that have the same traffic.

    Loads are shares of the hosts' line rate, means over some repeats. `measured_ns` are begin and
    end of the measured time. `longer_ns` is a duration with which enough could be delivered;
    `settled_ns` is a warm-up after which it could be in a time as long as now. They are 0 if enough
    is delivered already, or if none is long enough.
    """

    conditions: tuple[str, ...]
    measured_ns: tuple[int, int]
    intended: float
    offered: float
    deliverable: float
    longer_ns: int = 0
    settled_ns: int = 0

    @property
    def share(self) -> float:
        """The deliverable share of the offered load; 1 if nothing is offered."""
        return self.deliverable / self.offered if self.offered else 1.0

    @property
    def enough(self) -> bool:
        """Whether nearly all of the offered load can be delivered."""
        return self.share >= MIN_SHARE

    @property
    def where(self) -> str:
        """The first condition, and how many more have the same traffic, as text."""
        where = self.conditions[0] or "all trials"
        if len(self.conditions) > 1:
            where += f" and {len(self.conditions) - 1} more conditions"
        return where

    @property
    def sentence(self) -> str:
        """The message of a plan about these conditions, with the remedy."""
        begin_ns, end_ns = self.measured_ns
        between = f"between {_time(begin_ns)} and" if begin_ns else "within"
        shortfall = (
            f"{self.where}: {self.offered:.1%} of the hosts' line rate is offered (intended: "
            f"{self.intended:.1%}), and at most {self.share:.0%} of it can be delivered {between} "
            f"{_time(end_ns)}"
        )
        remedies = [f"report it as a load of {self.deliverable:.2g}"]
        if self.settled_ns:
            length_ns = self.settled_ns + end_ns - begin_ns
            remedies.insert(
                0, f"use warm_up: {_time(self.settled_ns)} with duration: {_time(length_ns)}"
            )
        if self.longer_ns:
            remedies.insert(0, f"use duration: {_time(self.longer_ns)}")
        return f"{shortfall}: {', or '.join(remedies)}"


def deliverable_loads(
    trials: Sequence[TrialSpec],
    testbeds: Mapping[str, Testbed],
    schedule_of: Callable[[TrialSpec, Testbed], Schedule],
    repeats: int = REPEATS,
) -> tuple[DeliverableLoad, ...]:
    """Return the deliverable load of each condition whose traffic has an intended load.

    Conditions with the same traffic are one entry. `schedule_of` returns a trial's flows; those of
    the first `repeats` repeats are examined.
    """
    groups: dict[object, dict[int, TrialSpec]] = {}
    labels: dict[object, dict[str, None]] = {}
    for trial in trials:
        if not _loads(trial):
            continue
        key = (trial.testbed, trial.traffic, trial.measured_ns)
        groups.setdefault(key, {}).setdefault(trial.seed, trial)
        labels.setdefault(key, {})[", ".join(factor_labels(trial.cell))] = None
    loads = []
    for traffic, by_seed in groups.items():
        examined = list(by_seed.values())[:repeats]
        testbed = testbeds[examined[0].testbed]
        flows = [schedule_of(trial, testbed) for trial in examined]
        loads.append(_deliverable_load(tuple(sorted(labels[traffic])), examined, testbed, flows))
    return tuple(sorted(loads, key=lambda load: load.conditions))


def shortfall_messages(trials: Sequence[TrialSpec], testbeds: Mapping[str, Testbed]) -> list[str]:
    """Return the message for the condition that falls most short, [] if none does.

    A run prints it before it begins; only one repeat of each condition is examined.
    """
    short = _short_ones(deliverable_loads(trials, testbeds, make_schedule, repeats=1))
    more = f" ({len(short) - 1} more such: closloop plan CAMPAIGN)" if short[1:] else ""
    return [f"{load.sentence}{more}" for load in short[:1]]


def plan_messages(loads: Sequence[DeliverableLoad]) -> list[str]:
    """Return a plan's messages: the condition that falls most short, then the others' shares.

    Instead of a remedy for each, there is the duration that is enough for all, if there is one.
    """
    short = _short_ones(loads)
    if not short:
        return []
    worst, *others = short
    if not others:
        return [worst.sentence]
    listed = ", ".join(f"{load.where} ({load.share:.0%})" for load in others)
    longest_ns = max(load.longer_ns for load in short)
    has_remedy = all(load.longer_ns for load in short)
    remedy = f"; duration: {_time(longest_ns)} is enough for all" if has_remedy else ""
    return [worst.sentence, f"likewise {listed}{remedy}"]


def _short_ones(loads: Sequence[DeliverableLoad]) -> list[DeliverableLoad]:
    """Return the loads of which too little can be delivered, the worst first."""
    return sorted((load for load in loads if not load.enough), key=lambda load: load.share)


def _deliverable_load(
    labels: tuple[str, ...],
    trials: Sequence[TrialSpec],
    testbed: Testbed,
    schedules: Sequence[Schedule],
) -> DeliverableLoad:
    first = trials[0]
    window = first.measured_ns
    capacity = capacity_bytes(testbed, window)
    offered = deliverable = 0.0
    for trial, schedule in zip(trials, schedules, strict=True):
        ending = select_flows(schedule, ~lasting_flows(trial, schedule))
        offered += offered_bytes(ending, window) / capacity / len(trials)
        deliverable += deliverable_bytes(ending, testbed, window) / capacity / len(trials)
    deliverable = max(deliverable, 0.0)
    intended = sum(_intended_load(spec, first, testbed) for spec in _loads(first))
    load = DeliverableLoad(labels, window, intended, offered, deliverable)
    if load.enough:
        return load
    backlog = _Backlog(first, testbed)
    longer_ns = backlog.longer_ns(window[0])
    if longer_ns <= window[1]:  # the shortfall is of other patterns, which have no intended load
        return load
    settled_ns = backlog.settled_ns(window[1] - window[0])
    return replace(load, longer_ns=longer_ns, settled_ns=settled_ns)


def _loads(trial: TrialSpec) -> list[OfferedLoad]:
    """Return a trial's patterns that have an intended load."""
    return [spec for spec in trial.traffic if isinstance(spec, OfferedLoad) and spec.load]


def _intended_load(spec: OfferedLoad, trial: TrialSpec, testbed: Testbed) -> float:
    """Return a pattern's intended load, as a share of all hosts' line rates and measured time."""
    begin_ns, end_ns = trial.measured_ns
    lasts_ns = min(spec.stop_ns, end_ns) - max(spec.start_ns, begin_ns)
    share = max(0, lasts_ns) / (end_ns - begin_ns) * spec.load
    if spec.receiver:
        total_bps = sum(testbed.host_rate_bps(host) for host in testbed.hosts)
        share *= testbed.host_rate_bps(spec.receiver) / total_bps
    return share


class _Backlog:
    """The undelivered part of a load that began at time 0 and goes on, by processor sharing."""

    def __init__(self, trial: TrialSpec, testbed: Testbed) -> None:
        rates_bps, specs = payload_rates_bps(testbed), _loads(trial)
        lines_bps = float(sum(testbed.host_rate_bps(host) for host in testbed.hosts))
        used = sum(spec.load for spec in specs if not spec.receiver)
        self._parts: list[tuple[float, float, Floats]] = []
        for spec in specs:
            rate_bps = float(rates_bps.mean())
            rho = used * lines_bps / float(rates_bps.sum())
            if spec.receiver:
                rate_bps = float(rates_bps[testbed.hosts.index(spec.receiver)])
                rho = spec.load * testbed.host_rate_bps(spec.receiver) / rate_bps
            weight = spec.load * rate_bps * (1 if spec.receiver else len(testbed.hosts))
            bytes_per_ns = rate_bps / 8e9 * (1 - min(rho, _MAX_UTILISATION))
            self._parts.append((weight, bytes_per_ns, spec.quantiles(_PROBABILITIES)))
        self._weight = sum(weight for weight, _, _ in self._parts)

    def longer_ns(self, from_ns: int) -> int:
        """Return a duration with which enough is delivered from `from_ns` on, 0 if none has."""

        def share(length_ns: float) -> float:
            return self._share(from_ns, from_ns + length_ns)

        length_ns = _shortest_ns(share)
        return _rounded_up(from_ns + length_ns) if length_ns else 0

    def settled_ns(self, length_ns: int) -> int:
        """Return a warm-up after which enough is delivered in `length_ns`, 0 if there is none."""
        return _rounded_up(_shortest_ns(lambda from_ns: self._share(from_ns, from_ns + length_ns)))

    def _share(self, from_ns: float, to_ns: float) -> float:
        grown = self._unfinished_ns(to_ns) - self._unfinished_ns(from_ns)
        return 1 - grown / (to_ns - from_ns)

    def _unfinished_ns(self, at_ns: float) -> float:
        """Return the undelivered bytes at a time, as the time in which so many are offered."""
        total = 0.0
        for weight, bytes_per_ns, size in self._parts:
            possible_bytes = bytes_per_ns * at_ns  # of a flow that started at time 0
            short = size**2 / (2 * bytes_per_ns)
            left = np.where(size <= possible_bytes, short, at_ns * (size - possible_bytes / 2))
            total += weight * float(left.mean() / size.mean())
        return total / self._weight


def _shortest_ns(share: Callable[[float], float]) -> float:
    """Return the shortest time for which the share is enough, within 1 %; 0 if none is."""
    high = 1e5
    while share(high) < MIN_SHARE:
        high *= 2
        if high > _LONGEST_NS:
            return 0.0
    low = high / 2
    while high - low > high / 100:
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) >= MIN_SHARE else (middle, high)
    return high


def _rounded_up(ns: float) -> int:
    """Round up to two significant digits."""
    step = 10 ** max(0, len(str(int(ns))) - 2)
    rounded: int = -(-int(ns) // step) * step
    return rounded


def _time(ns: int) -> str:
    return format_duration(ns, 6)
