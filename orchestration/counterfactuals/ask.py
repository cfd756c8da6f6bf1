"""One counterfactual: a trial is run again with one decision changed, and compared with itself.

`prepare` turns a question into a campaign, `answer` reads the campaign's finished trials. In
virtual time a trial repeats to the bit, so that every difference is an effect of the change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from orchestration.core import plugins
from orchestration.core.csv_columns import write_csv
from orchestration.core.errors import InputError
from orchestration.core.files import sha256_of
from orchestration.core.problems import of_value
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.core.units import UnitError, parse_duration_ns
from orchestration.counterfactuals.decisions import (
    Decision,
    Decisions,
    Setting,
    changed_setting,
    check_repeatable,
    find_target,
    parse_settings,
)
from orchestration.counterfactuals.effects import (
    FlowChanges,
    QueueMetrics,
    differing_tables,
    flow_changes,
    queue_metrics,
)
from orchestration.counterfactuals.question import Question
from orchestration.replay.build import Replay, write_replay
from orchestration.replay.campaign_file import ReplayCampaign, TunerEntry
from orchestration.replay.request import ReplayRequest
from orchestration.replay.specs import replay_specs
from orchestration.replay.traces import match_trials
from orchestration.results.reader import TrialResult, finished_trials, read_trial
from orchestration.results.tables import Columns
from tuners.registry import INTERVENTION, RECORDED, create

# Who decides after the changed decision: the recorded actions, or the tuner, which is asked again.
Then = Literal["recorded", "tuner"]
THEN: tuple[Then, ...] = ("recorded", "tuner")


@dataclass(frozen=True)
class Variant:
    """A counterfactual: its label, the changed decision, and the setting in its place.

    The setting holds until `until_ns`, or if that is None until the target's next decision.
    """

    label: str
    decision: Decision
    setting: Setting
    until_ns: int | None = None


def build_counterfactuals(
    decisions: Decisions,
    variants: Sequence[Variant],
    name: str,
    out: Path,
    *,
    then: Then = "recorded",
    fresh: bool = False,
) -> Replay:
    """Write a campaign of counterfactuals of one trial into `out/<name>.inputs`.

    Each variant is a tuner of the campaign, with the variant's label. Raises InputError for a trial
    that cannot be replayed, and for `then` "tuner" with a tuner that cannot be asked again.
    """
    if then == "tuner":
        for knob in {variant.decision.target.knob for variant in variants}:
            _check_tuner(decisions, several=len(knob.preset) > 1)
    request = ReplayRequest(decisions.trial.folder)
    (draft,) = replay_specs(request)

    def write(folder: Path, testbed: Testbed, campaign_name: str) -> ReplayCampaign:
        base = draft.write(folder, testbed, campaign_name)
        (parent,), (recorded,) = base.parent_trials, base.tuners
        entries = tuple(_entry(decisions, variant, then, recorded, folder) for variant in variants)
        return dataclasses.replace(
            base,
            tuners=entries,
            parent_trials=tuple({**parent, "tuner": entry.label} for entry in entries),
        )

    return write_replay(request, dataclasses.replace(draft, write=write), name, out, fresh=fresh)


def _entry(
    decisions: Decisions, variant: Variant, then: Then, recorded: TunerEntry, folder: Path
) -> TunerEntry:
    """Write a variant's actions into `folder`; return its tuner's entry in the campaign file.

    `recorded` is the entry that repeats the trial's own actions.
    """
    target = variant.decision.target
    table = decisions.tables[target.knob]
    file = f"{target.knob.table}-{re.sub(r'[^A-Za-z0-9_-]', '_', variant.label)[:60]}.csv"
    if then == "recorded":
        own = edited_actions(table, variant.decision, variant.setting, variant.until_ns)
        write_csv(folder / file, own)
        fields = {**recorded.fields, "label": variant.label, target.knob.table: file}
        return TunerEntry(fields, variant.label)
    at_ns, period_ns = variant.decision.at_ns, decisions.period_ns
    until_ns = at_ns + 1 if variant.until_ns is None else variant.until_ns
    times_ns = range(at_ns, until_ns, period_ns)
    write_csv(
        folder / file, intervention_actions(table, variant.decision, variant.setting, times_ns)
    )
    inner = _absolute(decisions.trial.spec)
    return TunerEntry({**inner, "label": variant.label, target.knob.table: file}, variant.label)


def _absolute(spec: TrialSpec) -> dict[str, str]:
    """Return the fields of an entry that names the trial's own tuner, with absolute paths."""
    name = spec.tuner.name
    if plugins.is_file(name):
        name = f"{os.path.abspath(plugins.file_of(name))}:{plugins.short_name(name)}"
    params: dict[str, Scalar] = dict(spec.tuner.params)
    checkpoint = params.get("checkpoint")
    if isinstance(checkpoint, str) and checkpoint.endswith(".safetensors"):
        params["checkpoint"] = os.path.abspath(checkpoint)
    text = json.dumps(params, sort_keys=True)
    return {"name": INTERVENTION, "tuner": name, "parameters": text}


def _check_tuner(decisions: Decisions, *, several: bool) -> None:
    """Raise InputError unless the trial's tuner can be asked again, and is still the same.

    `several` says whether the tuner may set only some of a target's columns.
    """
    spec = decisions.trial.spec
    what = ""
    if spec.tuner.name in (RECORDED, INTERVENTION):
        what = f"the trial's tuner is {spec.tuner.name!r}, which makes no decisions of its own"
    elif several:
        what = "a tuner may set some of a host's parameters and leave the others"
    else:
        try:
            create(spec.tuner)
        except ValueError as error:
            what = f"the trial's tuner cannot be made: {error}"
        for file, digest in spec.files.items():
            path = Path(file)
            if not what and file.endswith((".safetensors", ".py")) and path.is_file():
                same = sha256_of(path) == digest
                what = "" if same else f"{file} has changed since the trial"
    if what:
        raise InputError.single("--then tuner", what, "use --then recorded")


def campaign_name_of(trial: TrialSpec, *words: str) -> str:
    """Return the name of a campaign about a trial: at most 64 lower-case characters."""
    label = str(trial.cell.get("tuner", trial.tuner.name))
    texts = "-".join([trial.campaign, label, f"r{trial.repeat}"]), "-".join(words)
    safe, ending = (re.sub(r"[^a-z0-9]+", "-", text.lower()) for text in texts)
    return f"{safe[: 63 - len(ending)].strip('-')}-{ending.strip('-')}"


def edited_actions(
    table: Columns, decision: Decision, setting: Setting, until_ns: int | None
) -> Columns:
    """Return a knob's recorded changes with `setting` in place of what `decision` set.

    `table` has all recorded changes of the knob, in order of time; `setting` has its columns. The
    setting holds until the target's next recorded change. With `until_ns` it holds until that time:
    recorded changes before it are left out, and at that time the recorded setting is restored. A
    row that would change nothing is not added, so that an unchanged decision leaves the table as it
    is.
    """
    target, at_ns = decision.target, decision.at_ns
    rows = target.rows(table)
    times = table["t_ns"][rows]
    new = {name: np.array(values) for name, values in table.items()}
    added: list[tuple[int, Setting]] = []
    if decision.row is not None:
        # a target may have several rows at or before time 0; the last one is in force
        for name, value in setting.items():
            new[name][decision.row] = value
    elif setting != decision.setting:
        added.append((at_ns, setting))
    dropped = np.zeros(len(table["t_ns"]), dtype=bool)
    if until_ns is not None and setting != decision.setting:
        dropped[rows[(times > at_ns) & (times < until_ns)]] = True
        if until_ns not in times:
            last = rows[np.searchsorted(times, until_ns, side="right") - 1]
            restored = {name: table[name][last].item() for name in setting}
            if restored != setting:
                added.append((until_ns, restored))
    edited = {name: values[~dropped] for name, values in new.items()}
    for t_ns, values in added:  # after the rows of the same time
        index = int(np.searchsorted(edited["t_ns"], t_ns, side="right"))
        row = {"t_ns": t_ns, **target.columns, **values}
        edited = {name: np.insert(column, index, row[name]) for name, column in edited.items()}
    return edited


def intervention_actions(
    table: Columns, decision: Decision, setting: Setting, times_ns: Sequence[int]
) -> Columns:
    """Return actions that give the decision's target `setting` at each of `times_ns`, and no more.

    They have the columns of `table`.
    """
    row = {"t_ns": 0, **decision.target.columns, **setting}
    actions = {name: np.full(len(times_ns), row[name], dtype=table[name].dtype) for name in table}
    return {**actions, "t_ns": np.array(times_ns, dtype=table["t_ns"].dtype)}


UNCHANGED = "unchanged"


@dataclass(frozen=True)
class PreparedQuestion:
    """A question whose campaign is written: what it changes, and where the campaign is."""

    replay: Replay
    decisions: Decisions
    variant: Variant
    then: Then
    verify: bool

    @property
    def until_ns(self) -> int:
        """When the changed setting ends: at the target's next decision, or when arrivals end."""
        decision, spec = self.variant.decision, self.decisions.trial.spec
        if self.variant.until_ns is not None:
            return self.variant.until_ns
        if self.then == "tuner" and len(self.decisions.tuner_call_times_ns):
            return decision.at_ns + self.decisions.period_ns
        if decision.next_ns is not None:
            return decision.next_ns
        return max(spec.duration_ns, decision.at_ns)


@dataclass(frozen=True)
class Answer:
    """What the change did.

    `before` and `after` are the queue's metrics without and with the change, None if the target is
    no queue. `verified` has the columns in which the unchanged trial differs from its parent; it is
    None if that was not checked.
    """

    prepared: PreparedQuestion
    trial: TrialResult
    flows: FlowChanges
    before: QueueMetrics | None
    after: QueueMetrics | None
    verified: tuple[str, ...] | None


def single_trial(run: Path, pattern: str) -> TrialResult:
    """Return the trial of a trial's folder, or the only trial of a run folder that matches.

    Raises InputError if no trial matches the pattern, or several do.
    """
    folders = match_trials(run, pattern, "--trial")
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders[:3])
        raise InputError.single("--trial", f"{run} has {len(folders)} trials", f"name one: {names}")
    return read_trial(folders[0])


def trials_by_label(folder: Path) -> dict[str, TrialResult]:
    """Return the finished trials of a campaign of counterfactuals, by their tuners' labels."""
    return {str(t.spec.cell["tuner"]): t for t in map(read_trial, finished_trials(folder))}


def prepare(question: Question, out: Path, *, fresh: bool = False) -> PreparedQuestion:
    """Write the campaign that answers a question. Raises InputError if it cannot be answered."""
    trial = single_trial(question.run, question.trial)
    check_repeatable(trial)
    decisions = Decisions(trial)
    then = parse_then(question.then)
    knob, setting = parse_settings(question.settings)
    if knob not in decisions.tables:
        what = f"the trial's tuner set no {knob.plural} ({knob.name})"
        names = ", ".join(known.name for known in decisions.tables)
        raise InputError.single("--set", what, f"change what it set: {names}")
    target = find_target(trial.testbed, knob, question.target)
    at_ns = _time("--at", question.at)
    decision = decisions.find(target, at_ns)
    until_ns = None
    if question.lasts:
        until_ns = at_ns + _time("--for", question.lasts)
        if until_ns <= at_ns or until_ns % decisions.period_ns:
            what = f"{question.lasts} is not a whole number of the trial's decision periods"
            raise InputError.single("--for", what, f"a period is {decisions.period_ns} ns")
    full_setting = changed_setting(decision, setting, trial.testbed)
    label = str(trial.spec.cell.get("tuner", trial.spec.tuner.name))
    variants = [Variant(label, decision, full_setting, until_ns)]
    if question.verify:
        # for one decision only: held longer, it would override the tuner's next decisions
        same = Variant(f"{label}-{UNCHANGED}", decision, decision.setting)
        variants.append(same)
    content = (
        f"{trial.spec.id} {target.label} {at_ns} {until_ns} {sorted(full_setting.items())} {then}"
    )
    digest = hashlib.sha256(f"{content} {question.verify}".encode()).hexdigest()[:6]
    name = question.name or campaign_name_of(
        trial.spec, "whatif", target.label, question.at, digest
    )
    replay = build_counterfactuals(decisions, variants, name, out, then=then, fresh=fresh)
    return PreparedQuestion(replay, decisions, variants[0], then, question.verify)


def answer(prepared: PreparedQuestion, folder: Path) -> Answer:
    """Read the finished campaign of a question. Raises InputError for damaged tables."""
    trials = trials_by_label(folder)
    parent, trial = prepared.decisions.trial, trials[prepared.variant.label]
    target, at_ns = prepared.variant.decision.target, prepared.variant.decision.at_ns
    is_queue = target.knob.scope == "queue"
    before, after = (
        queue_metrics(one, target.index, at_ns, prepared.until_ns) if is_queue else None
        for one in (parent, trial)
    )
    verified = None
    if prepared.verify:
        same = trials[f"{prepared.variant.label}-{UNCHANGED}"]
        verified = tuple(differing_tables(parent, same))
    return Answer(prepared, trial, flow_changes(parent, trial), before, after, verified)


def parse_then(text: str) -> Then:
    """Return who decides after the change. Raises InputError for an unknown word."""
    then = next((known for known in THEN if known == text), None)
    if then is None:
        raise InputError.single("--then", f"unknown: {text!r}", f"use {' or '.join(THEN)}")
    return then


def _time(option: str, text: str) -> int:
    try:
        return 0 if text == "0" else parse_duration_ns(text)
    except UnitError as error:
        raise InputError([of_value(error, option, "like 2ms")]) from error
