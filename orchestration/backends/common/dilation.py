"""Time dilation: a trial whose seconds take `trial.scale` seconds of the clock.

A machine that cannot forward packets at a testbed's rates can run a slowed-down copy of it (Gupta
et al., NSDI 2006). Devices get rates divided by the factor (`inventory.rack`), and every duration
is multiplied by it (`dilated_trial`). The rig in real time works with these. The loop, the tuner
and the records see the trial as it was written, through `_DilatedRig`, which divides the clock's
times by the factor. Why nothing else changes:
docs/decisions/0076-real-time-trials-divide-rates-by-a-factor.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import KNOBS
from orchestration.core.ports import Observer, Outcome, Rig
from orchestration.core.records import (
    MISSING,
    Action,
    Applied,
    Change,
    HostReading,
    Observation,
    Program,
    Samples,
    Schedule,
)
from orchestration.core.signals import SIGNALS, Scope, recorded
from orchestration.core.trial import TrialSpec

_Spec = TypeVar("_Spec")
_Array = NDArray[Any]
_TIME_SIGNALS = frozenset(signal.key for signal in SIGNALS if signal.unit == "ns")
_RATE_SIGNALS = frozenset(signal.key for signal in SIGNALS if signal.unit == "bit/s")
_TIME_SETTINGS = {
    (knob.name, column.name) for knob in KNOBS.values() for column in knob.columns
    if column.unit == "ns"
}  # fmt: skip
# Congestion controls with constants in seconds of the clock, which the factor does not change.
_WITH_CLOCK_SECONDS = {
    "cubic": "its window grows with seconds since the last loss",
    "bbr": "it measures the base round-trip time every 10 s",
}


def dilated_trial(trial: TrialSpec) -> TrialSpec:
    """Return the trial with every duration `scale` times longer, for the settings of devices.

    The tuner's parameters stay the same: the tuner decides in the trial's own time.
    """
    return _dilated(trial, trial.scale)


def _dilated(spec: _Spec, factor: int) -> _Spec:
    """Multiply all durations (fields `*_ns`) of a frozen spec and of the specs inside it."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(spec):  # type: ignore[arg-type]
        value = getattr(spec, field.name)
        if field.name.endswith("_ns") and value is not None:
            values[field.name] = value * factor
        elif dataclasses.is_dataclass(value):
            values[field.name] = _dilated(value, factor)
        elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
            values[field.name] = tuple(_dilated(item, factor) for item in value)
    return replace(spec, **values)  # type: ignore[type-var]


def dilated_schedule(schedule: Schedule, factor: int) -> Schedule:
    """Return the schedule of the same flows, each starting `factor` times later."""
    return replace(schedule, start_ns=schedule.start_ns * factor)


def dilation_findings(trial: TrialSpec) -> list[dict[str, str]]:
    """Return findings for the stamp on congestion controls that do not follow the factor."""
    controls = {trial.host.congestion_control, *(s.congestion_control for s in trial.traffic)}
    return [
        {
            "code": "scale",
            "severity": "warning",
            "text": f"{name} does not scale: {why}, and a second of the trial takes {trial.scale}",
        }
        for name, why in _WITH_CLOCK_SECONDS.items()
        if trial.scale > 1 and name in controls
    ]


def dilated_rig(rig: Rig, factor: int) -> Rig:
    """Return a rig over `rig` whose time is the time of `rig` divided by the factor."""
    return rig if factor == 1 else _DilatedRig(rig, factor)


class _DilatedRig:
    """A rig over another one, whose clock runs `factor` times faster than this one's."""

    def __init__(self, rig: Rig, factor: int) -> None:
        self._rig = rig
        self._factor = factor

    def start(self) -> None:
        self._rig.start()

    def now_ns(self) -> int:
        return self._rig.now_ns() // self._factor

    def wait_until(self, t_ns: int) -> bool:
        return self._rig.wait_until(t_ns * self._factor)

    def observe(self) -> Observation:
        return self._observation(self._rig.observe())

    def apply(self, action: Action) -> Applied:
        longer = tuple(_converted(change, self._longer) for change in action)
        return self._applied(self._rig.apply(longer))

    def install(self, programs: Sequence[Program]) -> None:
        self._rig.install(programs)

    def flows_done(self) -> int:
        return self._rig.flows_done()

    def last_hosts(self) -> HostReading | None:
        reading = self._rig.last_hosts()
        if reading is None:
            return None
        return HostReading(reading.t_ns // self._factor, self._values("host", reading.values))

    def finish(self, observer: Observer) -> Outcome:
        outcome = self._rig.finish(_TrialTime(observer, self))
        flows, sampled = outcome.flows, outcome.sampled_flows
        return replace(
            outcome,
            flows=replace(
                flows, sent_ns=self._shorter(flows.sent_ns), end_ns=self._shorter(flows.end_ns)
            ),
            hosts=self._samples("host", outcome.hosts),
            events=[replace(event, t_ns=event.t_ns // self._factor) for event in outcome.events],
            sampled_flows=None if sampled is None else self._samples("flow", sampled),
            acked=None if outcome.acked is None else self._samples("flow", outcome.acked),
        )

    def _applied(self, applied: Applied) -> Applied:
        changes = tuple(_converted(change, self._shorter) for change in applied.changes)
        return Applied(applied.t_ns // self._factor, changes)

    def _observation(self, observation: Observation) -> Observation:
        took_ns = observation.took_ns
        if took_ns is not None:
            # rounded up, plus one ns because the start was rounded down
            took_ns = np.where(took_ns == MISSING, MISSING, took_ns // self._factor + 2)
        return Observation(
            t_ns=observation.t_ns // self._factor,
            age_ns=self._shorter(observation.age_ns),
            values={key: self._value(key, array) for key, array in observation.values.items()},
            settings={
                knob: {
                    name: self._shorter(array) if (knob, name) in _TIME_SETTINGS else array
                    for name, array in columns.items()
                }
                for knob, columns in observation.settings.items()
            },
            taken_ns=None if observation.taken_ns is None else observation.taken_ns // self._factor,
            taken_by={key: array // self._factor for key, array in observation.taken_by.items()},
            took_ns=took_ns,
        )

    def _samples(self, scope: Scope, samples: Samples) -> Samples:
        return Samples(samples.t_ns // self._factor, self._values(scope, samples.values))

    def _values(self, scope: Scope, values: Mapping[str, _Array]) -> dict[str, _Array]:
        keys = {signal.name: signal.key for signal in recorded(scope)}
        return {name: self._value(keys.get(name, name), array) for name, array in values.items()}

    def _value(self, key: str, array: _Array) -> _Array:
        if key in _TIME_SIGNALS:
            return self._shorter(array)
        return self._longer(array) if key in _RATE_SIGNALS else array

    def _shorter(self, array: _Array) -> _Array:
        """Divide times by the factor; missing values stay missing."""
        return np.where(array == MISSING, MISSING, array // self._factor)

    def _longer(self, array: _Array) -> _Array:
        """Multiply by the factor: times of the trial, or rates that devices report."""
        return np.where(array == MISSING, MISSING, array * self._factor)


class _TrialTime:
    """An observer that passes a rig's readings on to another observer, in the trial's time."""

    def __init__(self, observer: Observer, rig: _DilatedRig) -> None:
        self._observer = observer
        self._rig = rig

    def observed(self, observation: Observation) -> None:
        self._observer.observed(self._rig._observation(observation))

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        observed_ns, decided_ns = (t_ns // self._rig._factor for t_ns in (observed_ns, decided_ns))
        self._observer.applied(observed_ns, decided_ns, self._rig._applied(applied))


def _converted(change: Change, convert: Any) -> Change:
    """Return a change whose durations were converted by `convert`."""
    values = {
        name: convert(array) if (change.knob, name) in _TIME_SETTINGS else array
        for name, array in change.values.items()
    }
    return Change(change.knob, change.targets, values)
