"""The decisions of a finished trial: when its tuner decided on a target, and what it set there.

A target is a queue, switch or host with a knob. Each row of a table of actions is a decision. Where
the tuner was asked about a queue and did not change it, keeping the setting is a decision, too. The
time of a decision is the sampling time of the observation that it responds to.
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
from orchestration.replay.engines import check_version
from orchestration.replay.traces import actions_of
from orchestration.results.reader import TrialResult
from orchestration.results.tables import Columns
from tuners.registry import RECORDED, create

# Linux' RED holds a probability in 32 bits, so that it is read back rounded.
_DEVICE_ROUNDING = 2.0**-30
# The values that a target is set to, by column.
Setting = dict[str, int | float]


@dataclass(frozen=True)
class Target:
    """What a knob is set at: a queue, switch or host, by its number in the testbed and its names.

    `names` are its values in the columns of a table of actions.
    """

    knob: Knob
    index: int
    label: str
    names: tuple[str | int, ...]

    @property
    def columns(self) -> dict[str, str | int]:
        """The columns of a table of actions that name the target, with this target's values."""
        return dict(zip(TARGET_COLUMNS[self.knob.scope], self.names, strict=True))

    def rows(self, table: Columns) -> Ints:
        """Return the rows of a table of actions that are about this target."""
        own = (table[column] == name for column, name in self.columns.items())
        return np.flatnonzero(np.logical_and.reduce(list(own)))


@dataclass(frozen=True)
class Decision:
    """A decision on a target at a time, and the setting in force after it.

    `row` is its row in the table of actions, None if it kept the setting as it was. `next_ns` is
    the time of the target's next row, None if there is none.
    """

    target: Target
    at_ns: int
    setting: Setting
    row: int | None
    next_ns: int | None


@dataclass(frozen=True)
class Decisions:
    """The decisions of a trial, which must be repeatable to the bit (`check_repeatable`)."""

    trial: TrialResult

    @cached_property
    def tables(self) -> dict[Knob, Columns]:
        """The recorded changes of each knob, at sampling times. Raises InputError without any."""
        return dict(actions_of(self.trial))

    @cached_property
    def tuner_call_times_ns(self) -> Ints:
        """The times after 0 at which the tuner was asked; empty if it never was, or unknown."""
        spec = self.trial.spec
        try:
            asked = spec.tuner.name != RECORDED and create(spec.tuner).decides
        except ValueError:  # a user's own tuner whose file is gone
            asked = False
        count = int(self.trial.facts.get("decisions", 0)) if asked else 0
        return np.arange(1, count + 1, dtype=np.int64) * self.period_ns

    @property
    def period_ns(self) -> int:
        """The time in ns between two decisions."""
        spec = self.trial.spec
        return max(1, spec.action_period_ns // spec.sample_period_ns) * spec.sample_period_ns

    def find(self, target: Target, at_ns: int) -> Decision:
        """Return the decision on a target at a time.

        Raises InputError, with the times of the nearest decisions, if there is none.
        """
        table = self.tables[target.knob]
        rows = target.rows(table)
        times = table["t_ns"][rows]
        if not len(rows):
            where = f"{target.knob.scope} {target.label}"
            raise InputError.single(where, "nothing was ever set there", "choose another")
        calls = self.tuner_call_times_ns
        decision_times = np.union1d(times, calls[calls >= times[0]])
        if at_ns not in decision_times:
            raise InputError.single("--at", *_no_decision(target, at_ns, decision_times))
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


def _no_decision(target: Target, at_ns: int, times_ns: Ints) -> tuple[str, str]:
    """Return the problem and the remedy if no decision on a target was made at a time."""
    after = int(np.searchsorted(times_ns, at_ns))
    nearest = [format_duration(int(t), 6) for t in times_ns[max(0, after - 1) : after + 1]]
    last = format_duration(int(times_ns[-1]), 6)
    count = f"{len(times_ns)} decisions, the last at {last}"
    return (
        f"no decision on {target.label} was made at {format_duration(at_ns, 6)}",
        f"the nearest: {' and '.join(nearest)} "
        f"(it has {count if len(times_ns) > 1 else 'one decision'})",
    )


def find_target(testbed: Testbed, knob: Knob, name: str) -> Target:
    """Return a knob's target by its name: `leaf1:eth0`, `leaf1:eth0/1`, a switch, a host.

    Raises InputError for a name that the testbed does not have.
    """
    labels = targets(testbed, knob.scope)
    number_of = {label: number for number, label in enumerate(labels)}
    # a port's queues are /0, /1 ...; of a port with one queue, the number is left out
    spellings = (name, name.removesuffix("/0"), f"{name}/0")
    index = next((number_of[text] for text in spellings if text in number_of), None)
    if index is None and knob.scope == "queue":
        numbered = [f"{queue.device}:{queue.name}/{queue.klass}" for queue in testbed.queues]
        several = [label for label in numbered if label.startswith(f"{name}/")]
        if name in numbered:
            index = numbered.index(name)
        elif len(several) > 1:
            what = f"{name} has {len(several)} queues"
            raise InputError.single("--queue", what, f"name one of them: {', '.join(several)}")
    if index is None:
        what = f"testbed {testbed.name} has no {knob.scope} {name!r}"
        remedy = f"{suggest(name, labels)}they are {labels[0]} to {labels[-1]}"
        raise InputError.single("--queue", what, remedy)
    return Target(knob, index, labels[index], target_names(testbed, knob.scope)[index])


def parse_settings(texts: list[str] | tuple[str, ...]) -> tuple[Knob, Setting]:
    """Return the knob that settings such as `kmin=20KB` are about, and their values in base units.

    A column may be named without its unit. Raises InputError for text that is no setting, for
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
            raise InputError.single(
                "--set", f"{text!r} is not a setting", "write it like kmin=20KB"
            )
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
    """Return the full setting in force after a decision in which some columns are changed.

    Raises InputError for columns that the trial did not set, and for values that no device takes.
    """
    target = decision.target
    unknown = [name for name in setting if name not in decision.setting]
    if unknown:
        what = f"the trial did not set {', '.join(unknown)}"
        raise InputError.single("--set", what, "change what its tuner set")
    # a rounding by the device, such as 0.25 read back as 0.2500000001, is no change
    own = {
        name: decision.setting[name]
        if abs(decision.setting[name] - value) < _DEVICE_ROUNDING
        else value
        for name, value in setting.items()
    }
    full_setting = {**decision.setting, **own}
    try:
        change = target.knob.change([target.index], **full_setting)
        bounds = target.knob.bounds(testbed)
        bounds.check(change)
        clamped, count = bounds.clamp(change)
        if count:
            possible = ", ".join(f"{n}={v[0]}" for n, v in clamped.values.items())
            raise ImpossibleSetting(f"the device would limit it to {possible}")
    except ImpossibleSetting as error:
        now = ", ".join(f"{name}={value}" for name, value in decision.setting.items())
        remedy = f"correct it; {target.label} had {now}"
        raise InputError.single("--set", error.what, remedy) from error
    return full_setting


def check_repeatable(trial: TrialResult) -> None:
    """Raise InputError unless a trial is valid and can be repeated to the bit."""
    spec, where = trial.spec, str(trial.folder)
    mode = mode_of(spec)
    if not mode.deterministic:
        why = "it ran in real time" if mode.real_time else "it was imported"
        remedy = (
            "replay it in virtual time, and ask about the replay (which says if it needs more "
            f"options): closloop replay {trial.folder} --on emulated"
        )
        raise InputError.single(where, f"{why}, so that no trial repeats it to the bit", remedy)
    if not trial.stamp.valid:
        reasons = "; ".join(reason.text for reason in trial.stamp.reasons)
        raise InputError.single(where, f"the trial is invalid: {reasons}", "choose a valid trial")
    check_version(trial)
