"""The recorded trials that are replayed: their flows, and their actions by knob.

They are the trial of one folder, or the valid trials of a run folder. Trials that differ only in
tuner, seed and repeat form a group, which one campaign can replay.
"""

from __future__ import annotations

import graphlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from inventory.testbed_json import testbed_to_json
from orchestration.analysis.arms import by_condition
from orchestration.core.condition import (
    TUNER,
    campaign_tuner_name,
    condition_settings,
    factor_labels,
)
from orchestration.core.csv_columns import write_csv
from orchestration.core.errors import InputError, Problem, gather
from orchestration.core.files import sha256_of
from orchestration.core.knobs import ECN, KNOBS, Knob
from orchestration.core.pattern import of_repeat
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.question import arm_of, read_question
from orchestration.results.reader import TrialResult, finished_trials, read_trial
from orchestration.results.tables import TABLES, Columns, damaged, read_table
from orchestration.results.writer import TRIAL_FILE
from traffic.patterns.replay import COLUMNS
from traffic.schedule import class_names
from tuners.recorded import columns_of, faults

_GLOB = "*?["
# The settings that are times, which a campaign has once for all of its arms.
_TIMES = (
    "duration", "drain", "warm_up", "sample_period", "action_period", "decision_latency",
    "flow_sample_period",
)  # fmt: skip
# A reading that begins up to a tenth of a period early still belongs to the next sampling time.
_EARLY_SHARE = 10


@dataclass(frozen=True)
class RecordedTrial:
    """A trial to replay: the SHA-256 of its trial.json, and its label and repeat in the replay."""

    trial: TrialResult
    sha256: str
    label: str
    repeat: int

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.trial.folder.resolve().name

    @property
    def spec(self) -> TrialSpec:
        """The specification of the trial."""
        return self.trial.spec


@dataclass(frozen=True)
class TrialGroup:
    """The recorded trials that one campaign replays, sorted by label and repeat.

    `factors` are the levels that distinguish the group from others, such as `load-0.3-size-1MB`.
    """

    factors: str
    recorded: tuple[RecordedTrial, ...]

    @property
    def repeats(self) -> tuple[int, ...]:
        """The repeats that were recorded."""
        return tuple(sorted({item.repeat for item in self.recorded}))

    @property
    def first(self) -> RecordedTrial:
        """The first recorded trial; all have the same settings."""
        return self.recorded[0]

    def of_repeat(self, repeat: int) -> tuple[RecordedTrial, ...]:
        """Return the recorded trials of a repeat, which all have the same flows."""
        return tuple(item for item in self.recorded if item.repeat == repeat)


def find_parents(run: Path, pattern: str = "") -> tuple[RecordedTrial, ...]:
    """Return the trials to replay: the trial of a trial's folder, or the valid ones of a run.

    `pattern` selects trials of a run by name, with `*`, `?` and `[...]`. An invalid trial is
    replayed only if the user gives its folder or its full name.

    Raises InputError for other folders, and if no trial is left to replay.
    """
    chosen = match_trials(run, pattern, "--trials")
    named = chosen == [run] or (bool(pattern) and not any(sign in pattern for sign in _GLOB))
    trials = gather(read_trial, chosen)
    valid = [trial for trial in trials if named or trial.stamp.valid]
    if not valid:
        what = f"none of its {len(trials)} trials is valid"
        remedy = f"to replay an invalid trial, name it: {trials[0].folder}"
        raise InputError.single(str(run), what, remedy)
    return tuple(
        RecordedTrial(
            trial,
            sha256_of(trial.folder / TRIAL_FILE),
            campaign_tuner_name(trial.spec),
            trial.spec.repeat,
        )
        for trial in valid
    )


def match_trials(run: Path, pattern: str, option: str) -> list[Path]:
    """Return the folder of a single trial, or those of a run's trials whose names match a pattern.

    Without a pattern all trials match. `option` names the pattern in errors. Raises InputError for
    a folder that is neither a trial's nor a run's, and if no name matches.
    """
    if (run / TRIAL_FILE).is_file():
        if pattern:
            remedy = f"leave {option} out, or give the run's folder: {run.parent}"
            raise InputError.single(option, f"{run} is the folder of one trial", remedy)
        return [run]
    folders = finished_trials(run)
    if not folders:
        raise InputError([_nothing_to_replay(run)])
    chosen = [folder for folder in folders if fnmatchcase(folder.name, pattern or "*")]
    if not chosen:
        what = f"no trial of {run} is called {pattern!r}"
        remedy = f"its first is {folders[0].name}; * stands for any text"
        raise InputError.single(option, what, remedy)
    return chosen


def _nothing_to_replay(run: Path) -> Problem:
    """Return the problem with a folder that has no finished trials."""
    where = str(run)
    if not run.exists():
        remedy = (
            "give a run folder, runs/<campaign>, or one of its trials (or flows to replay: a CSV)"
        )
        return Problem(where, "there is no such file or folder", remedy)
    runs = sorted(path.name for path in run.iterdir() if finished_trials(path))
    if runs:
        return Problem(where, f"has {len(runs)} runs", f"give one of them: {run / runs[0]}")
    remedy = "give a run folder with finished trials, runs/<campaign>, or the folder of one trial"
    return Problem(where, f"is not a run folder: no {TRIAL_FILE} is in it", remedy)


def group_parents(parents: Sequence[RecordedTrial]) -> tuple[TrialGroup, ...]:
    """Return the parents in groups, one for each campaign.

    Repeats keep their numbers, so that they are paired in comparisons.
    """
    by_key: dict[str, list[RecordedTrial]] = {}
    for parent in parents:
        by_key.setdefault(_key(parent), []).append(parent)
    groups = []
    for group in by_key.values():
        spec = group[0].spec
        factors = "-".join(factor_labels(spec.cell, "-")) or campaign_tuner_name(spec)
        groups.append(
            TrialGroup(factors if len(by_key) > 1 else "", tuple(_with_unique_names(group)))
        )
    return tuple(groups)


@dataclass(frozen=True)
class ArmsOfCondition:
    """Groups of one condition. `arms` has them by arm if one campaign can replay them all.

    `factors` are the levels that distinguish the condition from others.
    """

    factors: str
    groups: tuple[TrialGroup, ...]
    arms: Mapping[str, TrialGroup]


def group_by_arms(groups: Sequence[TrialGroup]) -> tuple[ArmsOfCondition, ...]:
    """Return the groups by condition, where the replayed campaign compares other than its tuners.

    The arms of a condition become those of one campaign if they have the same fabric, flows, times,
    tuners and repeats; the baseline comes first.
    """
    question = read_question(groups[0].first.trial.folder.resolve().parent)
    compare = question.compare
    specs = [group.first.spec for group in groups]
    if compare == TUNER or not all(compare in spec.cell for spec in specs):
        return tuple(ArmsOfCondition(group.factors, (group,), {}) for group in groups)
    conditions = by_condition(groups, lambda group: group.first.spec, compare)
    found = []
    for condition in conditions:
        arms = {arm_of(group.first.spec, "", compare): group for group in condition}
        order = sorted(arms, key=[*question.arms, *arms].index)
        cell = dict(condition[0].first.spec.cell)
        del cell[compare]
        factors = "-".join(factor_labels(cell, "-")) if len(conditions) > 1 else ""
        one_campaign = len(arms) == len(condition) > 1 and _are_alike(condition)
        found.append(
            ArmsOfCondition(
                factors,
                tuple(condition),
                {arm: arms[arm] for arm in order} if one_campaign else {},
            )
        )
    return tuple(found)


def _are_alike(groups: Sequence[TrialGroup]) -> bool:
    """Return whether groups have the same fabric, times, labels, repeats and flows."""

    def settings(group: TrialGroup) -> object:
        spec = group.first.spec
        names = sorted((item.label, item.repeat) for item in group.recorded)
        times = [getattr(spec, f"{name}_ns") for name in _TIMES]
        return testbed_to_json(group.first.trial.testbed), names, times, spec.clock

    first, *others = groups
    return all(settings(group) == settings(first) for group in others) and all(
        np.array_equal(flows[name], schedule_of(group.of_repeat(repeat)[0].trial)[name])
        for repeat in first.repeats
        for flows in (schedule_of(first.of_repeat(repeat)[0].trial),)
        for name in COLUMNS
        for group in others
    )


def _key(parent: RecordedTrial) -> str:
    """Return a key that is equal for parents that one campaign file can describe.

    It contains the fabric itself, not the name of its file.
    """
    spec = parent.spec
    shared = condition_settings(replace(spec, testbed="", files={}))
    times = (spec.duration_ns, spec.drain_ns, spec.action_period_ns)
    # imported flows have no patterns to distinguish them
    imported = "" if spec.traffic else parent.label
    fabric = testbed_to_json(parent.trial.testbed)
    return json.dumps([shared, times, imported, fabric], sort_keys=True)


def _with_unique_names(group: Sequence[RecordedTrial]) -> list[RecordedTrial]:
    """Return the trials with unique pairs of label and repeat, sorted by these."""
    labels = [item.label for item in group]
    repeats = [item.repeat for item in group]
    if len(set(zip(labels, repeats, strict=True))) < len(group):
        # a factor that varies the tuner's own parameters becomes part of its label
        labels = ["-".join(map(str, item.spec.cell.values())) or item.spec.id for item in group]
    if len(set(labels)) == 1 and (min(repeats) < 1 or len(set(repeats)) < len(repeats)):
        repeats = list(range(1, len(group) + 1))
    seen: dict[tuple[str, int], RecordedTrial] = {}
    for item, label, repeat in zip(group, labels, repeats, strict=True):
        other = seen.setdefault((label, repeat), replace(item, label=label, repeat=repeat))
        if other.trial is not item.trial:
            what = f"is repeat {repeat} of {label!r}, as {other.trial.folder.name} is"
            remedy = "replay them one by one, or choose some with --trials"
            raise InputError.single(str(item.trial.folder), what, remedy)
    return [seen[key] for key in sorted(seen)]


def write_actions(
    folder: Path, ending: str, trials: Mapping[int, TrialResult], scaled_to: Testbed | None
) -> dict[str, str]:
    """Write the actions of one tuner's trials, which are given by repeat, into `folder`.

    Return the names of the files by the tables of their knobs. The names end in `ending`, in which
    `{repeat}` is replaced. With `scaled_to`, thresholds are scaled to the rates of that testbed.
    Raises InputError for trials whose actions cannot be replayed.
    """
    by_repeat = {repeat: actions_of(trial) for repeat, trial in trials.items()}
    used = [knob for knob in KNOBS.values() if any(knob in made for made in by_repeat.values())]
    for repeat, by_knob in by_repeat.items():
        for knob in used:
            # a knob that was set in other repeats only gets a file without rows
            actions: Mapping[str, Any] = by_knob.get(knob, dict.fromkeys(columns_of(knob), ()))
            if knob is ECN and knob in by_knob and scaled_to is not None:
                actions = scaled(by_knob[knob], trials[repeat].testbed, scaled_to)
            write_csv(folder / of_repeat(knob.table + ending, repeat), actions)
    return {knob.table: knob.table + ending for knob in used}


def actions_of(trial: TrialResult) -> dict[Knob, Columns]:
    """Return the changes of each knob that a trial set, at the sampling times they respond to.

    A reading begins some ns (on a rack some us) after its sampling time. The times are rounded to
    sampling times, because a replay's reading may begin a little earlier than the recorded one. The
    columns are those of the tuner `recorded` (`tuners.recorded`).

    Raises InputError for a trial that set no knob, for a table with times out of order, and for
    impossible settings.
    """
    tables = {knob: trial.table(knob.table) for knob in KNOBS.values()}
    used = {knob: table for knob, table in tables.items() if len(table["t_ns"])}
    if not used:
        remedy = "let a tuner decide instead: --tuner secn1"
        where = str(trial.folder / TABLES[ECN.table].file)
        raise InputError.single(where, "the trial has no recorded actions", remedy)
    period_ns = trial.spec.sample_period_ns
    return {knob: _actions(trial, knob, table, period_ns) for knob, table in used.items()}


def _actions(trial: TrialResult, knob: Knob, table: Columns, period_ns: int) -> Columns:
    where, t_ns = str(trial.folder / TABLES[knob.table].file), table["t_ns"]
    refuse_rows(where, np.diff(t_ns) < 0, "has an earlier t_ns than the one above it", 1)
    kept = {
        name: table[name] for name in knob.column_names if not _is_left_alone(knob, name, table)
    }
    for wrong, what, _ in faults(knob, kept):
        refuse_rows(where, wrong, f"has {what}" if what.startswith("not") else f"is wrong, {what}")
    samples = (t_ns + period_ns // _EARLY_SHARE) // period_ns * period_ns
    timed = {**table, "t_ns": np.where(t_ns > 0, samples, t_ns)}
    return {name: timed[name] for name in columns_of(knob, kept)}


def _is_left_alone(knob: Knob, name: str, table: Columns) -> bool:
    """Return whether no tuner has set a column, because its values are out of a tuner's bounds.

    After a change of some columns all columns of the target are read back and recorded. A column
    out of bounds throughout is what the campaign set.
    """
    (column,) = (column for column in knob.columns if column.name == name)
    if not knob.preset or column.maximum is None:
        return False
    values = table[name]
    return bool(((values < column.minimum) | (values > column.maximum)).all())


def scaled(actions: Columns, before: Testbed, after: Testbed) -> Columns:
    """Return the actions with each port's kmin and kmax scaled in proportion to its new rate.

    Raises InputError for a port that only one of the testbeds has.
    """
    rates = [{(p.device, p.name): p.rate_bps for p in each.ports} for each in (before, after)]
    ports = list(zip(actions["device"].tolist(), actions["port"].tolist(), strict=True))
    known: dict[tuple[Any, Any], float] = {}
    for port in dict.fromkeys(ports):
        if any(port not in each for each in rates):
            what = f"{port[0]}:{port[1]} is not in both testbeds"
            raise InputError.single("--scale-thresholds", what, "leave it out")
        known[port] = rates[1][port] / rates[0][port]
    factor = np.fromiter((known[port] for port in ports), np.float64, len(ports))
    names = ("kmin_bytes", "kmax_bytes")
    return {**actions, **{n: np.rint(actions[n] * factor).astype(np.int64) for n in names}}


def schedule_of(trial: TrialResult) -> Columns:
    """Return a trial's schedule. Raises InputError if it is not in the order of a schedule."""
    path = trial.folder / TABLES["schedule"].file
    where, table = str(path), read_table(path, "schedule")
    refuse_rows(where, np.diff(table["start_ns"]) < 0, "starts before the one above it", 1)
    refuse_rows(
        where, np.diff(table["flow_id"]) != 1, "has not the flow_id after the one above it", 1
    )
    if not len(table["start_ns"]):
        raise InputError.single(where, "the trial has no flows", "choose a trial with flows")
    return table


def shared_schedule(group: TrialGroup, repeat: int) -> Columns:
    """Return the flows of a repeat, which must be the same for all of its tuners."""
    shared: Columns | None = None
    digests: dict[str, RecordedTrial] = {}
    for recording in group.of_repeat(repeat):
        schedule = schedule_of(recording.trial)
        digests.setdefault(_digest(schedule), recording)
        shared = shared or schedule
    if len(digests) > 1:
        first, second = (str(item.trial.folder) for item in list(digests.values())[:2])
        what = f"its flows differ from those of {first}, which is the same repeat"
        raise InputError.single(second, what, "choose one tuner's trials with --trials")
    assert shared is not None  # each repeat of a group has a trial
    return shared


def _digest(schedule: Columns) -> str:
    digest = hashlib.sha256()
    for name in ("start_ns", "bytes"):
        digest.update(schedule[name].tobytes())
    for name in ("src", "dst", "class"):
        digest.update("\n".join(schedule[name].tolist()).encode())
    return digest.hexdigest()


def class_order(trial: TrialResult, schedule: Columns) -> tuple[str, ...]:
    """Return the classes with flows, in the order of their patterns.

    Imported flows have no patterns; their order follows from that of flows that start together.
    """
    used = tuple(dict.fromkeys(schedule["class"].tolist()))
    declared = class_names(trial.spec.traffic)
    if set(used) <= set(declared):
        return tuple(name for name in declared if name in used)
    after: dict[str, dict[str, None]] = {name: {} for name in used}
    together = np.flatnonzero(np.diff(schedule["start_ns"]) == 0)
    klass = schedule["class"]
    for before, then in zip(klass[together].tolist(), klass[together + 1].tolist(), strict=True):
        if before != then:
            after[then][before] = None
    try:
        return tuple(graphlib.TopologicalSorter(after).static_order())
    except graphlib.CycleError:
        return used


def keeps_flow_numbers(schedule: Columns, order: Sequence[str], testbed: Testbed) -> bool:
    """Return whether a replay with this order of classes numbers the flows as the schedule does."""
    host = {name: number for number, name in enumerate(testbed.hosts)}
    klass = {name: number for number, name in enumerate(order)}

    def numbers(column: str, of_name: Mapping[str, int]) -> Ints:
        names = schedule[column].tolist()
        return np.fromiter((of_name.get(name, -1) for name in names), np.int64, len(names))

    keys = (numbers("dst", host), numbers("src", host), numbers("class", klass))
    sorted_rows = np.lexsort((*keys, schedule["start_ns"]))
    return bool(np.array_equal(sorted_rows, np.arange(len(sorted_rows))))


def refuse_rows(where: str, wrong: np.ndarray[Any, Any], what: str, offset: int = 0) -> None:
    """Raise InputError for the first wrong row; `wrong` begins with row number `offset`."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise damaged(Path(where), f"row {int(rows[0]) + offset + 1} {what}")
