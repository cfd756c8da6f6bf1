"""What can arrive of the load that a campaign names, within the time that is measured.

`traffic.delivery` bounds it from the schedules, for flows that have their hosts' links at line
rate. What would help is worked out for links that are shared: with processor sharing at utilisation
rho a flow of s bytes takes s / (rate (1 - rho)) on average (M/G/1-PS; Kleinrock, Queueing Systems,
volume 2, section 4.4). From an idle fabric at time 0, this gives how much of what was offered until
a time has not arrived by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestration.core.condition import in_words
from orchestration.core.records import Floats, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration
from traffic.arrivals import OfferedLoad
from traffic.delivery import arriving_bytes, capacity_bytes, offered_bytes, payload_rates_bps
from traffic.schedule import lasting_flows, make_schedule, part_of

# Of what is offered, at least this share must be able to arrive, or the plan says so. Transports
# deliver less than the bound: 57 % where it is 68 % (WebSearch at 60 % for 10 ms at 25 Gbit/s).
MIN_SHARE = 0.9
# Repeats of a condition to look at: with strata they differ little.
REPEATS = 5
_QUANTILES = 2_000
_AT = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
_FULL = 0.95  # a link as busy as this or more is reckoned with this
_LONGEST_NS = 10**12


@dataclass(frozen=True)
class DeliverableLoad:
    """The load of some conditions: asked, offered and able to arrive, shares of hosts' line rate.

    `longer_ns` is a duration with which enough could arrive, `settled_ns` a warm-up with which it
    could in a time as long as now; 0 if enough arrives, or none does. Means over some repeats.
    """

    conditions: tuple[str, ...]
    measured_ns: tuple[int, int]
    asked: float
    offered: float
    arrives: float
    longer_ns: int = 0
    settled_ns: int = 0

    @property
    def share(self) -> float:
        """What can arrive, as a share of what is offered; 1 if nothing is."""
        return self.arrives / self.offered if self.offered else 1.0

    @property
    def enough(self) -> bool:
        """Whether the load that is named can nearly arrive."""
        return self.share >= MIN_SHARE

    @property
    def where(self) -> str:
        """Its conditions: the first, and how many more have the same traffic."""
        where = self.conditions[0] or "all trials"
        if len(self.conditions) > 1:
            where += f" and {len(self.conditions) - 1} more conditions"
        return where

    @property
    def sentence(self) -> str:
        """What a plan says of these conditions, and the remedy."""
        begin_ns, end_ns = self.measured_ns
        between = f"between {_time(begin_ns)} and" if begin_ns else "within"
        said = (
            f"{self.where}: {self.offered:.1%} of the hosts' line rate is offered (asked for: "
            f"{self.asked:.1%}), and at most {self.share:.0%} of it can arrive {between} "
            f"{_time(end_ns)}"
        )
        remedies = [f"call it a load of {self.arrives:.2g}"]
        if self.settled_ns:
            length_ns = self.settled_ns + end_ns - begin_ns
            remedies.insert(
                0, f"use warm_up: {_time(self.settled_ns)} with duration: {_time(length_ns)}"
            )
        if self.longer_ns:
            remedies.insert(0, f"use duration: {_time(self.longer_ns)}")
        return f"{said}: {', or '.join(remedies)}"


def deliverable_loads(
    trials: Sequence[TrialSpec],
    testbeds: Mapping[str, Testbed],
    schedule_of: Callable[[TrialSpec, Testbed], Schedule],
    repeats: int = REPEATS,
) -> tuple[DeliverableLoad, ...]:
    """Return what can arrive under each of the conditions whose traffic names a load.

    Conditions with the same traffic are one entry. `schedule_of` gives a trial's flows; those of
    the first `repeats` repeats are looked at.
    """
    groups: dict[object, dict[int, TrialSpec]] = {}
    labels: dict[object, dict[str, None]] = {}
    for trial in trials:
        if not any(isinstance(spec, OfferedLoad) for spec in trial.traffic):
            continue
        key = (trial.testbed, trial.traffic, trial.measured_ns)
        groups.setdefault(key, {}).setdefault(trial.seed, trial)
        labels.setdefault(key, {})[", ".join(in_words(trial.cell))] = None
    found = []
    for which, by_seed in groups.items():
        some = list(by_seed.values())[:repeats]
        testbed = testbeds[some[0].testbed]
        flows = [schedule_of(trial, testbed) for trial in some]
        found.append(_of_condition(tuple(sorted(labels[which])), some, testbed, flows))
    return tuple(sorted(found, key=lambda one: one.conditions))


def shortfall_messages(trials: Sequence[TrialSpec], testbeds: Mapping[str, Testbed]) -> list[str]:
    """Return what is to be said before trials run, of the condition that lacks most, if any."""
    short = _short(deliverable_loads(trials, testbeds, make_schedule, repeats=1))
    more = f" ({len(short) - 1} more such: closloop plan CAMPAIGN)" if short[1:] else ""
    return [f"{one.sentence}{more}" for one in short[:1]]


def plan_messages(found: Sequence[DeliverableLoad]) -> list[str]:
    """Return what a plan says: the condition that lacks most, then the others with their shares.

    What would help each of the others is said once, as the duration that is enough for all.
    """
    short = _short(found)
    if not short:
        return []
    worst, *others = short
    if not others:
        return [worst.sentence]
    listed = ", ".join(f"{one.where} ({one.share:.0%})" for one in others)
    longest_ns = max(one.longer_ns for one in short)
    whole = all(one.longer_ns for one in short)
    helps = f"; duration: {_time(longest_ns)} is enough for all" if whole else ""
    return [worst.sentence, f"likewise {listed}{helps}"]


def _short(found: Sequence[DeliverableLoad]) -> list[DeliverableLoad]:
    """Return those of which too little can arrive, the worst first."""
    return sorted((one for one in found if not one.enough), key=lambda one: one.share)


def _of_condition(
    labels: tuple[str, ...],
    trials: Sequence[TrialSpec],
    testbed: Testbed,
    schedules: Sequence[Schedule],
) -> DeliverableLoad:
    first = trials[0]
    window = first.measured_ns
    capacity = capacity_bytes(testbed, window)
    offered = arrives = 0.0
    for trial, schedule in zip(trials, schedules, strict=True):
        ending = part_of(schedule, ~lasting_flows(trial, schedule))
        offered += offered_bytes(ending, window) / capacity / len(trials)
        arrives += arriving_bytes(ending, testbed, window) / capacity / len(trials)
    arrives = max(arrives, 0.0)
    asked = sum(_asked(spec, first, testbed) for spec in _loads(first))
    found = DeliverableLoad(labels, window, asked, offered, arrives)
    if found.enough:
        return found
    backlog = _Backlog(first, testbed)
    longer_ns = backlog.longer_ns(window[0])
    if longer_ns <= window[1]:  # it is not for the patterns with a load that too little arrives
        return found
    settled_ns = backlog.settled_ns(window[1] - window[0])
    return replace(found, longer_ns=longer_ns, settled_ns=settled_ns)


def _loads(trial: TrialSpec) -> list[OfferedLoad]:
    return [spec for spec in trial.traffic if isinstance(spec, OfferedLoad)]


def _asked(spec: OfferedLoad, trial: TrialSpec, testbed: Testbed) -> float:
    """Return the load that a pattern names, as a share of all hosts' line rates and the window."""
    begin_ns, end_ns = trial.measured_ns
    lasts_ns = min(spec.stop_ns, end_ns) - max(spec.start_ns, begin_ns)
    share = max(0, lasts_ns) / (end_ns - begin_ns) * spec.load
    if spec.receiver:
        whole = sum(testbed.host_rate_bps(host) for host in testbed.hosts)
        share *= testbed.host_rate_bps(spec.receiver) / whole
    return share


class _Backlog:
    """What has not arrived of a load that began at time 0 and goes on, by processor sharing."""

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
            bytes_per_ns = rate_bps / 8e9 * (1 - min(rho, _FULL))
            self._parts.append((weight, bytes_per_ns, spec.quantiles(_AT)))
        self._weight = sum(weight for weight, _, _ in self._parts)

    def longer_ns(self, from_ns: int) -> int:
        """Return an end of the trial until which enough arrives from `from_ns` on, 0 if none."""

        def share(length_ns: float) -> float:
            return self._share(from_ns, from_ns + length_ns)

        length_ns = _minimum(share)
        return _rounded(from_ns + length_ns) if length_ns else 0

    def settled_ns(self, length_ns: int) -> int:
        """Return a warm-up after which enough arrives in a time of `length_ns`, 0 if none."""
        return _rounded(_minimum(lambda from_ns: self._share(from_ns, from_ns + length_ns)))

    def _share(self, from_ns: float, to_ns: float) -> float:
        grown = self._unfinished_ns(to_ns) - self._unfinished_ns(from_ns)
        return 1 - grown / (to_ns - from_ns)

    def _unfinished_ns(self, at_ns: float) -> float:
        """Return what has not arrived by a time, as the time in which so much is offered."""
        total = 0.0
        for weight, bytes_per_ns, size in self._parts:
            could = bytes_per_ns * at_ns
            short = size**2 / (2 * bytes_per_ns)
            left = np.where(size <= could, short, at_ns * (size - could / 2))
            total += weight * float(left.mean() / size.mean())
        return total / self._weight


def _minimum(share: Callable[[float], float]) -> float:
    """Return the shortest time for which the share is enough, to a hundredth; 0 if none is."""
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


def _rounded(ns: float) -> int:
    """Round up to two digits."""
    step = 10 ** max(0, len(str(int(ns))) - 2)
    whole: int = -(-int(ns) // step) * step
    return whole


def _time(ns: int) -> str:
    return format_duration(ns, 6)
