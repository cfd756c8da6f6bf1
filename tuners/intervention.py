"""The tuner `forced`: another tuner decides, and at a few times its decisions are overridden.

That is an intervention (Pearl, Causality, chapter 3): `closloop whatif` asks what would have come
out, had one decision been another. The settings to force stand in files like those of the tuner
`recorded`, one per knob. A row applies from the first observation at or after its time until the
inner tuner decides again. Then the target gets the setting that the inner tuner chose last, even if
the inner tuner does not repeat it. An inner tuner that never decides (a fixed setting) stays
overridden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import KNOBS, Bounds, ImpossibleSetting
from orchestration.core.records import Action, Change, Observation, Setup
from tuners.recorded import RecordedTuner
from tuners.registry import create, inner_spec

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# Linux' RED keeps a probability as 32 bits, so it reads back a rounded one.
_ROUNDING_ERROR = 2.0**-30
# The values of one target, by column.
_Setting = dict[str, Any]


@dataclass(eq=False)
class InterventionTuner(RecordedTuner):
    """Overrides decisions of `tuner`, whose parameters are the JSON object `parameters`.

    The files of settings are named as for the tuner `recorded`. `closloop whatif` writes campaigns
    with this tuner.
    """

    tuner: str = ""
    parameters: str = "{}"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._inner = create(inner_spec({"tuner": self.tuner, "parameters": self.parameters}))
        self.knobs = tuple(dict.fromkeys((*self._inner.knobs, *self.knobs)))
        self.observes = tuple(self._inner.observes)
        self.programs = tuple(self._inner.programs)

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Check the files, and the inner tuner."""
        super().check_testbed(testbed)
        if testbed is not None:
            self._inner.check_testbed(testbed)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the inner tuner's setup, overridden by the rows at or before time 0."""
        intervention = super().reset(testbed, seed).action
        setup = self._inner.reset(testbed, seed)
        self._states = {knob.name: _KnobState(knob.bounds(testbed)) for knob in KNOBS.values()}
        return Setup(self._override(setup.action, intervention), setup.programs)

    def act(self, observation: Observation) -> Action:
        """Let the inner tuner decide, and override it with the rows that are due."""
        decides = self._inner.decides
        action = self._inner.act(observation) if decides else ()
        return self._override(action, self._until(observation.t_ns), release=decides)

    def _override(self, inner: Action, intervention: Action, *, release: bool = False) -> Action:
        """Return the action to take; with `release`, earlier rows no longer apply."""
        inner_changes = {change.knob: change for change in inner}
        interventions = {change.knob: change for change in intervention}
        changes = (
            state.override(inner_changes.get(name), interventions.get(name), release=release)
            for name, state in self._states.items()
        )
        return tuple(change for change in changes if change is not None)

    def facts(self) -> Mapping[str, Any]:
        """Return the inner tuner's facts, and how many of the recorded changes were made."""
        return {**self._inner.facts(), **super().facts()}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return the inner tuner's training data."""
        return self._inner.trace()


@dataclass
class _KnobState:
    """One knob during a trial.

    `chosen` has what the inner tuner chose last at each target, `applied` what is set there, and
    `overridden` the targets that a forced row holds.
    """

    bounds: Bounds
    chosen: dict[int, _Setting] = field(default_factory=dict)
    applied: dict[int, _Setting] = field(default_factory=dict)
    overridden: set[int] = field(default_factory=set)

    def override(
        self, inner: Change | None, intervention: Change | None, *, release: bool
    ) -> Change | None:
        """Return the change to make, given the inner tuner's change and the intervention.

        A row that the inner tuner did not return is made only if it differs from what is set. So
        forcing a tuner to do what it does anyway changes nothing at all.
        """
        rows = _rows(inner)
        for target, values in _rows(self._clamped(inner)).items():
            self.chosen[target] = {**self.chosen.get(target, {}), **values}
        released = self.overridden if release else set()
        self.overridden = self.overridden - released
        for target in sorted(released - rows.keys()):
            if target in self.chosen:
                self._add_if_new(rows, target, self.chosen[target])
        for target, values in _rows(intervention).items():
            self.overridden.add(target)
            if target in rows:
                rows[target] = {**rows[target], **values}
            else:
                self._add_if_new(rows, target, values)
        if not rows:
            return None
        columns = next(iter(rows.values()))
        arrays = {name: np.array([row[name] for row in rows.values()]) for name in columns}
        change = Change(self.bounds.knob.name, np.array([*rows], dtype=np.int64), arrays)
        for target, values in _rows(self._clamped(change)).items():
            self.applied[target] = {**self.applied.get(target, {}), **values}
        return change

    def _clamped(self, change: Change | None) -> Change | None:
        """Return a change as the loop will apply it: within the knob's bounds.

        An impossible setting stays as it is: the loop refuses it, with its own message.
        """
        try:
            return None if change is None else self.bounds.clamp(change)[0]
        except ImpossibleSetting:
            return change

    def _add_if_new(self, rows: dict[int, _Setting], target: int, values: _Setting) -> None:
        """Add a target's setting to `rows`, unless it is what the target has."""
        applied = self.applied.get(target, {})
        if any(_differs(applied.get(name), value) for name, value in values.items()):
            rows[target] = dict(values)


def _differs(before: float | None, after: float) -> bool:
    """Whether two values differ by more than a device's rounding of probabilities."""
    return before is None or abs(before - after) > _ROUNDING_ERROR


def _rows(change: Change | None) -> dict[int, _Setting]:
    """Return a change as one setting per target, in the order of its targets."""
    if change is None:
        return {}
    columns = {name: values.tolist() for name, values in change.values.items()}
    return {
        target: {name: values[row] for name, values in columns.items()}
        for row, target in enumerate(change.targets.tolist())
    }
