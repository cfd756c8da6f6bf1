"""One counterfactual, from the question to the answer."""

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
from tuners.registry import FORCED, RECORDED, create

# Who decides after the changed decision: the record, or the tuner from what it then sees.
Then = Literal["recorded", "tuner"]
THEN: tuple[Then, ...] = ("recorded", "tuner")


@dataclass(frozen=True)
class Variant:
    """A counterfactual: what it is called, the decision, and the setting in its place.

    It holds until `until_ns`; None: until the target's next decision.
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
    """Write the campaign of `variants` of one trial into `out/<name>.inputs`.

    Each variant is a tuner of the campaign, by its label. Raises InputError for a trial that cannot
    be replayed, or for `then` "tuner" with a tuner that cannot be asked again.
    """
    if then == "tuner":
        for knob in {variant.decision.target.knob for variant in variants}:
            _check_tuner(decisions, several=len(knob.preset) > 1)
    request = ReplayRequest(decisions.trial.folder)
    (draft,) = replay_specs(request)

    def write(folder: Path, testbed: Testbed, campaign_name: str) -> ReplayCampaign:
        base = draft.write(folder, testbed, campaign_name)
        (listed,), (recording,) = base.parent_trials, base.tuners
        entries = tuple(_entry(decisions, one, then, recording, folder) for one in variants)
        return dataclasses.replace(
            base,
            tuners=entries,
            parent_trials=tuple({**listed, "tuner": entry.label} for entry in entries),
        )

    return write_replay(request, dataclasses.replace(draft, write=write), name, out, fresh=fresh)


def _entry(
    decisions: Decisions, variant: Variant, then: Then, recording: TunerEntry, folder: Path
) -> TunerEntry:
    """Write a variant's actions; return its entry in the campaign file."""
    target = variant.decision.target
    table = decisions.tables[target.knob]
    file = f"{target.knob.table}-{re.sub(r'[^A-Za-z0-9_-]', '_', variant.label)[:60]}.csv"
    if then == "recorded":
        own = edited_actions(table, variant.decision, variant.setting, variant.until_ns)
        write_csv(folder / file, own)
        fields = {**recording.fields, "label": variant.label, target.knob.table: file}
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
    """Return the entry's fields that name the trial's own tuner, its files by absolute paths."""
    name = spec.tuner.name
    if plugins.is_file(name):
        name = f"{os.path.abspath(plugins.file_of(name))}:{plugins.short_name(name)}"
    params: dict[str, Scalar] = dict(spec.tuner.params)
    checkpoint = params.get("checkpoint")
    if isinstance(checkpoint, str) and checkpoint.endswith(".safetensors"):
        params["checkpoint"] = os.path.abspath(checkpoint)
    text = json.dumps(params, sort_keys=True)
    return {"name": FORCED, "tuner": name, "parameters": text}


def _check_tuner(decisions: Decisions, *, several: bool) -> None:
    """Raise InputError unless the trial's tuner can decide once more, on what it decided on."""
    spec = decisions.trial.spec
    what = ""
    if spec.tuner.name in (RECORDED, FORCED):
        what = f"the trial's tuner is {spec.tuner.name!r}, which decides nothing by itself"
    elif several:
        what = "a tuner may turn some of a host's parameters and leave the others"
    else:
        try:
            create(spec.tuner)
        except ValueError as error:
            what = f"the trial's tuner cannot be made: {error}"
        for file, digest in spec.files.items():
            path = Path(file)
            if not what and file.endswith((".safetensors", ".py")) and path.is_file():
                same = sha256_of(path) == digest
                what = "" if same else f"{file} is another file than the trial had"
    if what:
        raise InputError.single("--then tuner", what, "use --then recorded")


def campaign_name_of(trial: TrialSpec, *words: str) -> str:
    """Return the name of a campaign about a trial, of at most 64 characters, in small letters."""
    called = str(trial.cell.get("tuner", trial.tuner.name))
    text = "-".join([trial.campaign, called, f"r{trial.repeat}"])
    safe, ending = (re.sub(r"[^a-z0-9]+", "-", one.lower()) for one in (text, "-".join(words)))
    return f"{safe[: 63 - len(ending)].strip('-')}-{ending.strip('-')}"


def edited_actions(
    table: Columns, decision: Decision, setting: Setting, until_ns: int | None
) -> Columns:
    """Return a knob's recording with the setting of `decision` in place of its own.

    `table` holds all recorded changes of the knob, in order of time; `setting` has its columns.
    The setting holds until the target's next recorded change, or with `until_ns` until then: later
    changes before it are left out, and what the record has in force at that time comes back. A row
    that would change nothing is not added, so an unchanged decision leaves the recording as it is.
    """
    target, at_ns = decision.target, decision.at_ns
    rows = target.rows(table)
    times = table["t_ns"][rows]
    new = {name: np.array(values) for name, values in table.items()}
    added: list[tuple[int, Setting]] = []
    if decision.row is not None:
        # a target may have several rows at or before 0: the last one counts
        for name, value in setting.items():
            new[name][decision.row] = value
    elif setting != decision.setting:
        added.append((at_ns, setting))
    dropped = np.zeros(len(table["t_ns"]), dtype=bool)
    if until_ns is not None and setting != decision.setting:
        dropped[rows[(times > at_ns) & (times < until_ns)]] = True
        if until_ns not in times:
            last = rows[np.searchsorted(times, until_ns, side="right") - 1]
            back = {name: table[name][last].item() for name in setting}
            if back != setting:
                added.append((until_ns, back))
    found = {name: values[~dropped] for name, values in new.items()}
    for t_ns, values in added:  # behind the rows of the same time
        at = int(np.searchsorted(found["t_ns"], t_ns, side="right"))
        row = {"t_ns": t_ns, **target.columns, **values}
        found = {name: np.insert(column, at, row[name]) for name, column in found.items()}
    return found


def intervention_actions(
    table: Columns, decision: Decision, setting: Setting, times_ns: Sequence[int]
) -> Columns:
    """Return a recording that sets the decision's target only, at each of `times_ns`."""
    row = {"t_ns": 0, **decision.target.columns, **setting}
    found = {name: np.full(len(times_ns), row[name], dtype=table[name].dtype) for name in table}
    return {**found, "t_ns": np.array(times_ns, dtype=table["t_ns"].dtype)}


UNCHANGED = "unchanged"


@dataclass(frozen=True)
class PreparedQuestion:
    """A question that can be answered: its campaign, and what is changed there."""

    replay: Replay
    decisions: Decisions
    variant: Variant
    then: Then
    verify: bool

    @property
    def until_ns(self) -> int:
        """When the changed decision ends: at the next one, or with the arrivals of flows."""
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
    """What the change did. `before` and `after` are of the queue, None for other targets.

    `verified` has the columns in which the unchanged trial differs from its parent; None if it was
    not asked for.
    """

    prepared: PreparedQuestion
    trial: TrialResult
    flows: FlowChanges
    before: QueueMetrics | None
    after: QueueMetrics | None
    verified: tuple[str, ...] | None


def single_trial(run: Path, pattern: str) -> TrialResult:
    """Return the one trial of a folder, or the one of its trials that a pattern names.

    Raises InputError if it is none, or several.
    """
    found = match_trials(run, pattern, "--trial")
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:3])
        raise InputError.single("--trial", f"{run} has {len(found)} trials", f"name one: {names}")
    return read_trial(found[0])


def trials_by_label(folder: Path) -> dict[str, TrialResult]:
    """Return the finished trials of a campaign of counterfactuals by the labels of its tuners."""
    return {str(t.spec.cell["tuner"]): t for t in map(read_trial, finished_trials(folder))}


def prepare(question: Question, out: Path, *, fresh: bool = False) -> PreparedQuestion:
    """Write the campaign that answers a question. Raises InputError for what cannot be asked."""
    trial = single_trial(question.run, question.trial)
    check_repeatable(trial)
    decisions = Decisions(trial)
    then = parse_then(question.then)
    knob, setting = parse_settings(question.settings)
    if knob not in decisions.tables:
        what = f"the trial's tuner turned no {knob.plural} ({knob.name})"
        turned = ", ".join(one.name for one in decisions.tables)
        raise InputError.single("--set", what, f"change what it turned: {turned}")
    target = find_target(trial.testbed, knob, question.target)
    at_ns = _time("--at", question.at)
    decision = decisions.find(target, at_ns)
    until_ns = None
    if question.lasts:
        until_ns = at_ns + _time("--for", question.lasts)
        if until_ns <= at_ns or until_ns % decisions.period_ns:
            what = f"{question.lasts} is no whole number of the trial's decisions"
            raise InputError.single("--for", what, f"they are {decisions.period_ns} ns apart")
    whole = changed_setting(decision, setting, trial.testbed)
    label = str(trial.spec.cell.get("tuner", trial.spec.tuner.name))
    variants = [Variant(label, decision, whole, until_ns)]
    if question.verify:
        # one decision only: held longer, it would stand in the way of the tuner's next
        same = Variant(f"{label}-{UNCHANGED}", decision, decision.setting)
        variants.append(same)
    told = f"{trial.spec.id} {target.label} {at_ns} {until_ns} {sorted(whole.items())} {then}"
    mark = hashlib.sha256(f"{told} {question.verify}".encode()).hexdigest()[:6]
    name = question.name or campaign_name_of(trial.spec, "whatif", target.label, question.at, mark)
    replay = build_counterfactuals(decisions, variants, name, out, then=then, fresh=fresh)
    return PreparedQuestion(replay, decisions, variants[0], then, question.verify)


def answer(prepared: PreparedQuestion, folder: Path) -> Answer:
    """Read the finished campaign of a question. Raises InputError for tables that are damaged."""
    trials = trials_by_label(folder)
    parent, trial = prepared.decisions.trial, trials[prepared.variant.label]
    target, at_ns = prepared.variant.decision.target, prepared.variant.decision.at_ns
    is_queue = target.knob.scope == "queue"
    figures = [
        queue_metrics(one, target.index, at_ns, prepared.until_ns) if is_queue else None
        for one in (parent, trial)
    ]
    verified = None
    if prepared.verify:
        same = trials[f"{prepared.variant.label}-{UNCHANGED}"]
        verified = tuple(differing_tables(parent, same))
    return Answer(prepared, trial, flow_changes(parent, trial), figures[0], figures[1], verified)


def parse_then(text: str) -> Then:
    """Return who decides after the change. Raises InputError for an unknown word."""
    found = next((known for known in THEN if known == text), None)
    if found is None:
        raise InputError.single("--then", f"{text!r} decides nothing", f"use {' or '.join(THEN)}")
    return found


def _time(option: str, text: str) -> int:
    try:
        return 0 if text == "0" else parse_duration_ns(text)
    except UnitError as error:
        raise InputError([of_value(error, option, "like 2ms")]) from error
