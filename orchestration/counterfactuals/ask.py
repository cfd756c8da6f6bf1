"""One counterfactual, from the question to the answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from orchestration.core.errors import InputError
from orchestration.core.problems import of_value
from orchestration.core.units import UnitError, parse_duration_ns
from orchestration.counterfactuals.build import THEN, Then, Variant, build_counterfactuals, name_of
from orchestration.counterfactuals.decisions import (
    Decisions,
    changed,
    check_repeatable,
    parse_settings,
    target_of,
)
from orchestration.counterfactuals.effects import (
    FlowChanges,
    QueueFigures,
    differing_tables,
    flow_changes,
    queue_figures,
)
from orchestration.replay.build import Replay
from orchestration.replay.recordings import named_trials
from orchestration.results.reader import TrialResult, finished_trials, read_trial

UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Question:
    """What is asked, as the user wrote it; `lasts` "" means until the next decision."""

    run: Path
    at: str
    target: str
    settings: tuple[str, ...]
    trial: str = ""
    lasts: str = ""
    then: str = "recorded"
    verify: bool = False
    name: str = ""


@dataclass(frozen=True)
class Asked:
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
        if self.then == "tuner" and len(self.decisions.asked_ns):
            return decision.at_ns + self.decisions.period_ns
        return (
            max(spec.duration_ns, decision.at_ns) if decision.next_ns is None else decision.next_ns
        )


@dataclass(frozen=True)
class Answer:
    """What the change did. `before` and `after` are of the queue, None for other targets.

    `verified` has the columns in which the unchanged trial differs from its parent; None if it was
    not asked for.
    """

    asked: Asked
    trial: TrialResult
    flows: FlowChanges
    before: QueueFigures | None
    after: QueueFigures | None
    verified: tuple[str, ...] | None


def the_trial(run: Path, pattern: str) -> TrialResult:
    """Return the one trial of a folder, or the one of its trials that a pattern names.

    Raises InputError if it is none, or several.
    """
    found = named_trials(run, pattern, "--trial")
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:3])
        raise InputError.single("--trial", f"{run} has {len(found)} trials", f"name one: {names}")
    return read_trial(found[0])


def by_label(folder: Path) -> dict[str, TrialResult]:
    """Return the finished trials of a campaign of counterfactuals by the labels of its tuners."""
    return {str(t.spec.cell["tuner"]): t for t in map(read_trial, finished_trials(folder))}


def prepare(question: Question, out: Path, *, fresh: bool = False) -> Asked:
    """Write the campaign that answers a question. Raises InputError for what cannot be asked."""
    trial = the_trial(question.run, question.trial)
    check_repeatable(trial)
    decisions = Decisions(trial)
    then = parse_then(question.then)
    knob, setting = parse_settings(question.settings)
    if knob not in decisions.tables:
        turned = ", ".join(one.name for one in decisions.tables)
        raise InputError.single(
            "--set",
            f"the trial's tuner turned no {knob.plural} ({knob.name})",
            f"change what it turned: {turned}",
        )
    target = target_of(trial.testbed, knob, question.target)
    at_ns = _time("--at", question.at)
    decision = decisions.find(target, at_ns)
    until_ns = None
    if question.lasts:
        until_ns = at_ns + _time("--for", question.lasts)
        if until_ns <= at_ns or until_ns % decisions.period_ns:
            raise InputError.single(
                "--for",
                f"{question.lasts} is no whole number of the trial's decisions",
                f"they are {decisions.period_ns} ns apart",
            )
    whole = changed(decision, setting, trial.testbed)
    label = str(trial.spec.cell.get("tuner", trial.spec.tuner.name))
    variants = [Variant(label, decision, whole, until_ns)]
    if question.verify:
        # one decision only: held longer, it would stand in the way of the tuner's next
        same = Variant(f"{label}-{UNCHANGED}", decision, decision.setting)
        variants.append(same)
    told = f"{trial.spec.id} {target.label} {at_ns} {until_ns} {sorted(whole.items())} {then}"
    mark = hashlib.sha256(f"{told} {question.verify}".encode()).hexdigest()[:6]
    name = question.name or name_of(trial.spec, "whatif", target.label, question.at, mark)
    replay = build_counterfactuals(decisions, variants, name, out, then=then, fresh=fresh)
    return Asked(replay, decisions, variants[0], then, question.verify)


def answer(asked: Asked, folder: Path) -> Answer:
    """Read the finished campaign of a question. Raises InputError for tables that are damaged."""
    trials = by_label(folder)
    parent, trial = asked.decisions.trial, trials[asked.variant.label]
    target, at_ns = asked.variant.decision.target, asked.variant.decision.at_ns
    is_queue = target.knob.scope == "queue"
    figures = [
        queue_figures(one, target.index, at_ns, asked.until_ns) if is_queue else None
        for one in (parent, trial)
    ]
    verified = None
    if asked.verify:
        same = trials[f"{asked.variant.label}-{UNCHANGED}"]
        verified = tuple(differing_tables(parent, same))
    return Answer(asked, trial, flow_changes(parent, trial), figures[0], figures[1], verified)


def parse_then(text: str) -> Then:
    """Return who decides after the change. Raises InputError for an unknown word."""
    for known in THEN:
        if text == known:
            return known
    raise InputError.single("--then", f"{text!r} decides nothing", f"use {' or '.join(THEN)}")


def _time(option: str, text: str) -> int:
    try:
        return 0 if text == "0" else parse_duration_ns(text)
    except UnitError as error:
        raise InputError([of_value(error, option, "like 2ms")]) from error
