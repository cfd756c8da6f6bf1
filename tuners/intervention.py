"""A tuner that is overruled at a few times, and decides by itself before and after.

What it is overruled with stands in files like those of `recorded`, one a knob. A row holds from the
first reading at or after its time until the tuner is asked again; then the target gets what the
tuner wants, whether or not the tuner says so once more. A tuner that is never asked (a fixed
setting) stays overruled.
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

# Linux' RED has a probability as 32 bits, and reads it back so.
_ROUNDED = 2.0**-30
# The values of one target, by column.
_Setting = dict[str, Any]


@dataclass(eq=False)
class InterventionTuner(RecordedTuner):
    """Overrules `tuner`, which has the parameters of the JSON object `parameters`.

    Files are given as to the tuner `recorded`. `closloop whatif` writes it.
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
        """Check the files, and the tuner that is overruled."""
        super().check_testbed(testbed)
        if testbed is not None:
            self._inner.check_testbed(testbed)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the tuner's own setup, but for what is overruled at or before time 0."""
        start = super().reset(testbed, seed).action
        setup = self._inner.reset(testbed, seed)
        self._states = {knob.name: _Knob(knob.bounds(testbed)) for knob in KNOBS.values()}
        return Setup(self._overruled(setup.action, start), setup.programs)

    def act(self, observation: Observation) -> Action:
        """Ask the tuner, and overrule it where it is time to."""
        asked = self._inner.decides
        action = self._inner.act(observation) if asked else ()
        return self._overruled(action, self._until(observation.t_ns), release=asked)

    def _overruled(self, action: Action, by: Action, *, release: bool = False) -> Action:
        forced = {change.knob: change for change in by}
        own = {change.knob: change for change in action}
        made = (
            state.turn(own.get(name), forced.get(name), release=release)
            for name, state in self._states.items()
        )
        return tuple(change for change in made if change is not None)

    def facts(self) -> Mapping[str, Any]:
        """Return the tuner's own facts, and how many of the changes were made."""
        return {**self._inner.facts(), **super().facts()}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return the tuner's own training data."""
        return self._inner.trace()


@dataclass
class _Knob:
    """One knob: what the tuner wants at each target, what is set there, what is overruled."""

    bounds: Bounds
    wanted: dict[int, _Setting] = field(default_factory=dict)
    there: dict[int, _Setting] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)

    def turn(self, own: Change | None, forced: Change | None, *, release: bool) -> Change | None:
        """Return the change to make, given the tuner's own and what overrules it.

        Rows that the tuner did not ask for are made only where they differ from what is there, so
        that overruling a tuner with what it wants changes nothing at all.
        """
        rows = _rows(own)
        for target, values in _rows(self._possible(own)).items():
            self.wanted[target] = {**self.wanted.get(target, {}), **values}
        freed = self.held if release else set()
        self.held = self.held - freed
        for target in sorted(freed - rows.keys()):
            if target in self.wanted:
                self._unless_there(rows, target, self.wanted[target])
        for target, values in _rows(forced).items():
            self.held.add(target)
            if target in rows:
                rows[target] = {**rows[target], **values}
            else:
                self._unless_there(rows, target, values)
        if not rows:
            return None
        columns = next(iter(rows.values()))
        arrays = {name: np.array([row[name] for row in rows.values()]) for name in columns}
        made = Change(self.bounds.knob.name, np.array([*rows], dtype=np.int64), arrays)
        for target, values in _rows(self._possible(made)).items():
            self.there[target] = {**self.there.get(target, {}), **values}
        return made

    def _possible(self, change: Change | None) -> Change | None:
        """Return what the loop makes of a change; what it refuses it shall refuse itself."""
        try:
            return None if change is None else self.bounds.clamp(change)[0]
        except ImpossibleSetting:
            return change

    def _unless_there(self, rows: dict[int, _Setting], target: int, values: _Setting) -> None:
        there = self.there.get(target, {})
        if any(_differs(there.get(name), value) for name, value in values.items()):
            rows[target] = dict(values)


def _differs(one: float | None, other: float) -> bool:
    """Return whether two values are settings of their own: devices round probabilities."""
    return one is None or abs(one - other) > _ROUNDED


def _rows(change: Change | None) -> dict[int, _Setting]:
    """Return a change target by target, in its order."""
    if change is None:
        return {}
    columns = {name: values.tolist() for name, values in change.values.items()}
    return {
        target: {name: values[row] for name, values in columns.items()}
        for row, target in enumerate(change.targets.tolist())
    }
