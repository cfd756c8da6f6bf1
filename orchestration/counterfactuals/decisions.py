"""The decisions of a finished trial: when a target was decided on, and what was set there then.

A decision is a row of a table of actions. At a queue that a deciding tuner was asked about and left
alone, keeping the setting is a decision too. Times are sampling times: those of the readings that
decisions answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from orchestration.core.capabilities import mode_of
from orchestration.core.errors import InputError, suggest
from orchestration.core.knobs import KNOBS, ImpossibleSetting, Knob
from orchestration.core.records import Ints
from orchestration.core.signals import TARGET_COLUMNS, target_names, targets
from orchestration.core.topology import Testbed
from orchestration.core.units import (
    UnitError,
    format_duration,
    parse_duration_ns,
    parse_size_bytes,
)
from orchestration.replay.traces import actions_of
from orchestration.results.reader import TrialResult
from orchestration.results.tables import Columns
from tuners.registry import RECORDED, create

# Linux' RED has a probability as 32 bits.
_DEVICE_ROUNDING = 2.0**-30
# What a target is set to, by column.
Setting = dict[str, int | float]


@dataclass(frozen=True)
class Target:
    """Something that a knob is turned at: its number in the testbed, and its names in tables."""

    knob: Knob
    index: int
    label: str
    names: tuple[str | int, ...]

    @property
    def columns(self) -> dict[str, str | int]:
        """What a row of a table of actions has that is this target's."""
        return dict(zip(TARGET_COLUMNS[self.knob.scope], self.names, strict=True))

    def rows(self, table: Columns) -> Ints:
        """Return the rows of a table of actions that are this target's."""
        own = (table[column] == name for column, name in self.columns.items())
        return np.flatnonzero(np.logical_and.reduce(list(own)))


@dataclass(frozen=True)
class Decision:
    """A decision: `setting` is what it left in force, `row` its row, None if it kept what was.

    `next_ns` is the time of the target's next row; None if there is none.
    """

    target: Target
    at_ns: int
    setting: Setting
    row: int | None
    next_ns: int | None


@dataclass(frozen=True)
class Decisions:
    """The decisions of a trial, which must be one that can be repeated to the bit."""

    trial: TrialResult

    @cached_property
    def tables(self) -> dict[Knob, Columns]:
        """The recorded changes of each knob, at sampling times. Raises InputError without any."""
        return dict(actions_of(self.trial))

    @cached_property
    def tuner_call_times_ns(self) -> Ints:
        """The times after 0 at which the tuner was asked; none if it never is, or is not known."""
        spec = self.trial.spec
        try:
            asked = spec.tuner.name != RECORDED and create(spec.tuner).decides
        except ValueError:  # a user's own tuner whose file is gone
            asked = False
        count = int(self.trial.facts.get("decisions", 0)) if asked else 0
        return np.arange(1, count + 1, dtype=np.int64) * self.period_ns

    @property
    def period_ns(self) -> int:
        """The time between two decisions."""
        spec = self.trial.spec
        return max(1, spec.action_period_ns // spec.sample_period_ns) * spec.sample_period_ns

    def find(self, target: Target, at_ns: int) -> Decision:
        """Return the decision on a target at a time.

        Raises InputError, with the nearest times of decisions, if there is none at that time.
        """
        table = self.tables[target.knob]
        rows = target.rows(table)
        times = table["t_ns"][rows]
        if not len(rows):
            where = f"{target.knob.scope} {target.label}"
            raise InputError.single(where, "nothing was ever set there", "choose another")
        every = np.union1d(times, self.tuner_call_times_ns[self.tuner_call_times_ns >= times[0]])
        if at_ns not in every:
            raise InputError.single("--at", *_no_decision(target, at_ns, every))
        before = int(np.searchsorted(times, at_ns, side="right"))
        row = int(rows[before - 1])
        present = [name for name in target.knob.column_names if name in table]
        setting = {name: table[name][row].item() for name in present}
        return Decision(
            target,
            at_ns,
            setting,
            row if times[before - 1] == at_ns else None,
            int(times[before]) if before < len(times) else None,
        )


def _no_decision(target: Target, at_ns: int, every: Ints) -> tuple[str, str]:
    place = int(np.searchsorted(every, at_ns))
    near = [format_duration(int(t), 6) for t in every[max(0, place - 1) : place + 1]]
    last = format_duration(int(every[-1]), 6)
    count = f"{len(every)} decisions, the last at {last}" if len(every) > 1 else "one decision"
    return (
        f"nothing was decided on {target.label} at {format_duration(at_ns, 6)}",
        f"the nearest: {' and '.join(near)} (it has {count})",
    )


def find_target(testbed: Testbed, knob: Knob, name: str) -> Target:
    """Return a knob's target by its name: `leaf1:eth0`, `leaf1:eth0/1`, a switch, a host.

    Raises InputError for a name that the testbed does not have.
    """
    labels = targets(testbed, knob.scope)
    known = {label: place for place, label in enumerate(labels)}
    # a port's queues are /0, /1 ...; of a port with one queue, the number is left out
    plain = name.removesuffix("/0")
    found = next((known[each] for each in (name, plain, f"{name}/0") if each in known), None)
    if found is None and knob.scope == "queue":
        numbered = [f"{queue.device}:{queue.name}/{queue.klass}" for queue in testbed.queues]
        several = [label for label in numbered if label.startswith(f"{name}/")]
        if name in numbered:
            found = numbered.index(name)
        elif len(several) > 1:
            what = f"{name} has {len(several)} queues"
            raise InputError.single("--queue", what, f"name one of them: {', '.join(several)}")
    if found is None:
        what = f"testbed {testbed.name} has no {knob.scope} {name!r}"
        remedy = f"{suggest(name, labels)}they are {labels[0]} to {labels[-1]}"
        raise InputError.single("--queue", what, remedy)
    return Target(knob, found, labels[found], target_names(testbed, knob.scope)[found])


def parse_settings(texts: list[str] | tuple[str, ...]) -> tuple[Knob, Setting]:
    """Return the knob of settings such as `kmin=20KB`, and their values in base units.

    A unit may be left out of a column's name. Raises InputError for text that is no setting, for
    unknown columns, and for columns of several knobs.
    """
    columns = {
        name: (knob, column)
        for knob in KNOBS.values()
        for column in knob.columns
        for name in (column.name, column.short)
    }
    shorts = [column.short for knob in KNOBS.values() for column in knob.columns]
    chosen: dict[str, Knob] = {}
    setting: Setting = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise InputError.single("--set", f"{text!r} is no setting", "write it like kmin=20KB")
        if name not in columns:
            remedy = f"{suggest(name, columns)}there are {', '.join(shorts)}"
            raise InputError.single("--set", f"no knob has {name!r}", remedy)
        knob, column = columns[name]
        chosen[knob.name] = knob
        setting[column.name] = _number(text, value, column.unit, whole=column.dtype == "int64")
    if len(chosen) != 1:
        names = ", ".join(chosen) or "nothing"
        what = f"sets {names}" if chosen else "nothing is set"
        raise InputError.single("--set", what, "set one knob, like kmin=20KB")
    return next(iter(chosen.values())), setting


def _number(text: str, value: str, unit: str, *, whole: bool) -> int | float:
    readers = {"B": parse_size_bytes, "ns": parse_duration_ns}
    try:
        if unit in readers and not value.lstrip("-").isdigit():
            return readers[unit](value)
        return int(value) if whole else float(value)
    except (UnitError, ValueError) as error:
        remedy = "like kmin=20KB, pmax=0.25, timeout=100us"
        raise InputError.single("--set", f"{text!r}: {error}", remedy) from error


def changed_setting(decision: Decision, setting: Setting, testbed: Testbed) -> Setting:
    """Return the whole setting that a changed decision leaves in force.

    Raises InputError if no device can have it.
    """
    target = decision.target
    unknown = [name for name in setting if name not in decision.setting]
    if unknown:
        what = f"the trial did not turn {', '.join(unknown)}"
        raise InputError.single("--set", what, "set what its tuner turned")
    # what a device rounds, such as 0.25 read back as 0.2500000001, is no change
    own = {
        name: decision.setting[name]
        if abs(decision.setting[name] - value) < _DEVICE_ROUNDING
        else value
        for name, value in setting.items()
    }
    whole = {**decision.setting, **own}
    try:
        change = target.knob.change([target.index], **whole)
        bounds = target.knob.bounds(testbed)
        bounds.check(change)
        clamped, count = bounds.clamp(change)
        if count:
            kept = ", ".join(f"{n}={v[0]}" for n, v in clamped.values.items())
            raise ImpossibleSetting(f"the device would have {kept}")
    except ImpossibleSetting as error:
        now = ", ".join(f"{name}={value}" for name, value in decision.setting.items())
        remedy = f"correct it; {target.label} had {now}"
        raise InputError.single("--set", error.what, remedy) from error
    return whole


def check_repeatable(trial: TrialResult) -> None:
    """Raise InputError for a trial that cannot be repeated to the bit, or that is invalid."""
    spec, where = trial.spec, str(trial.folder)
    mode = mode_of(spec)
    if not mode.deterministic:
        why = "it ran in real time" if mode.real_time else "it was imported"
        remedy = (
            "replay it in virtual time, and ask about the replay (it may want more options, and "
            f"says which): closloop replay {trial.folder} --on emulated"
        )
        raise InputError.single(where, f"{why}, so no trial repeats it to the bit", remedy)
    if not trial.stamp.valid:
        reasons = "; ".join(reason.text for reason in trial.stamp.reasons)
        raise InputError.single(where, f"the trial is invalid: {reasons}", "choose a valid trial")
