"""Finished runs of the papers' campaigns by section and condition.

Tuners are compared over seeds on which both have valid trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestration.analysis.flow_metrics import DoneFlows, FlowProgress, done_flows, flow_progress
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.sequential import FIXED, PLAIN, AnalysisPlan, InterimAnalysis
from orchestration.analysis.stamp import check_network
from orchestration.analysis.trial_metrics import of_flows, of_progress, throughput_figures
from orchestration.core.condition import (
    BEST_STATIC,
    ORACLE,
    TUNER,
    factors_of,
    labels_of,
    tuner_called,
)
from orchestration.core.roce import FORMER_HPCC_TEXT, is_former_hpcc
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.papers.claims import FactorLevels, Section
from orchestration.papers.condition import Condition, Repeat, Repeats, order_transports
from orchestration.results.interim_analyses import read_interim_analyses
from orchestration.results.reader import finished_trials, read_trial

BEST_DCQCN, PLACEBO = "best-dcqcn", "placebo"
# Tuners by rule that need no learning: with the others the yardsticks that every section shows.
RULE_TUNERS = ("amt", "qaecn")


@dataclass(frozen=True)
class MeasuredTrial:
    """The metrics of one finished trial; `cell` has its tuner's label and those of its factors.

    `checkpoint` names the network that its tuner had, "" for that of the package or none. `tuner`
    is the tuner's name and not its label, `params` are its parameters as text. `cautions` say what
    is to be made anew before it is believed.
    """

    cell: FactorLevels
    seed: int
    valid: bool
    backend: str
    flows: DoneFlows
    ports: Mapping[str, float]
    progress: FlowProgress | None = None
    checkpoint: str = ""
    repeat: int = 1
    analysis_plan: AnalysisPlan = PLAIN
    tuner: str = ""
    params: str = ""
    cautions: tuple[str, ...] = ()

    def compared(self, factor: str) -> tuple[str, FactorLevels]:
        """Return what it is compared as, the level of a factor, and its other factors."""
        factors = factors_of(self.cell)
        factors.pop(factor, None)
        return str(self.cell.get(factor, "")), factors


@dataclass(frozen=True)
class ComparedTrial:
    """A trial as it is compared with others: `arm` names it, `factors` are the condition."""

    arm: str
    factors: FactorLevels
    trial: MeasuredTrial


@dataclass(frozen=True)
class SectionResult:
    """The results of a section. `arms` are the tuners to show, including those that did not run."""

    section: Section
    arms: tuple[str, ...]
    conditions: tuple[Condition, ...]
    trials: int
    invalid: int
    backends: tuple[str, ...]

    @property
    def transports(self) -> tuple[str, ...]:
        """The levels of the factor `transport`; ("",) if it has none."""
        found = {condition.transport for condition in self.conditions if condition.repeats}
        return order_transports(found) if found else ("",)

    @property
    def ran(self) -> bool:
        """Whether anything was measured."""
        return self.trials > self.invalid


def is_placebo(arm: str) -> bool:
    """Return whether an arm is a placebo by its name: `placebo` or `placebo-<tuner>`."""
    return arm == PLACEBO or arm.startswith(f"{PLACEBO}-")


def placebo_of(section: Section, arm: str, ran: tuple[str, ...]) -> str:
    """Return the placebo of a learned arm: the section's, else the nearest name that ran.

    That is `placebo-<arm>`, or with a shorter name, as `placebo-pet` for `pet-without-flows`; else
    `placebo`.
    """
    if arm in section.placebos:
        return section.placebos[arm]
    parts = arm.split("-")
    names = ["-".join([PLACEBO, *parts[:upto]]) for upto in range(len(parts), 0, -1)]
    return next((name for name in names if name in ran), PLACEBO)


def read_measured_trials(
    folder: Path, progress: Callable[[int, int], None]
) -> tuple[MeasuredTrial, ...]:
    """Return the finished trials of a campaign's folder; none if the folder does not exist.

    Raises InputError, naming the file, if one cannot be read.
    """
    folders = finished_trials(folder)
    planned = read_interim_analyses(folder)
    measured = []
    for number, path in enumerate(folders):
        result = read_trial(path)
        measured.append(
            MeasuredTrial(
                cell={TUNER: tuner_called(result.spec), **factors_of(labels_of(result.spec))},
                seed=result.spec.seed,
                valid=result.stamp.valid,
                backend=result.spec.backend,
                flows=done_flows(result),
                ports=throughput_figures(result),
                progress=flow_progress(result),
                checkpoint=str(result.spec.tuner.params.get("checkpoint", "")),
                repeat=result.spec.repeat,
                analysis_plan=AnalysisPlan(planned.sizes) if planned else PLAIN,
                tuner=result.spec.tuner.name,
                params=repr(sorted(result.spec.tuner.params.items())),
                cautions=tuple(_cautions(result.spec)),
            )
        )
        progress(number + 1, len(folders))
    return tuple(measured)


def _cautions(spec: TrialSpec) -> Iterator[str]:
    """Yield what a trial rests on that has another name, or another value, than it had."""
    roce = spec.host.roce
    if roce is not None and is_former_hpcc(roce.parameters):
        yield f"trials under DCQCN had {FORMER_HPCC_TEXT}"
    if check_network(spec):
        yield f"networks for DCQCN were trained in part under {FORMER_HPCC_TEXT}"


def evaluate_section(section: Section, trials: tuple[MeasuredTrial, ...]) -> SectionResult:
    """Return a section's results from its campaign's trials."""
    mine = [
        ComparedTrial(*trial.compared(section.compares), trial)
        for trial in trials
        if matches_levels(trial.cell, section.only)
    ]
    if section.arms:
        # yardsticks are shown in every section
        shown_arms = {*section.arms, BEST_STATIC, BEST_DCQCN, ORACLE, *RULE_TUNERS}
        mine = [one for one in mine if one.arm in shown_arms or is_placebo(one.arm)]
    conditions: list[FactorLevels] = []
    for item in section.printed:
        if item.when and item.when not in conditions:
            conditions.append(item.when)
    found = sorted({_sort_key(trial.factors): trial.factors for trial in mine}.items())
    # numbers by size, words in the paper's order
    ordered = sorted(
        found,
        key=lambda item: (_numeric_levels(item[1]), _condition_rank(item[1], conditions), item[0]),
    )
    shown = [factors for _, factors in ordered]
    shown += [when for when in conditions if not any(matches_levels(f, when) for f in shown)]
    return SectionResult(
        section=section,
        arms=_arms(section, mine),
        conditions=tuple(
            Condition(
                factors, _repeats(section, mine, factors), _last_analysis(mine, factors).confidence
            )
            for factors in shown
        ),
        trials=len(mine),
        invalid=sum(not item.trial.valid for item in mine),
        backends=tuple(sorted({item.trial.backend for item in mine})),
    )


def _arms(section: Section, trials: list[ComparedTrial]) -> tuple[str, ...]:
    """Return the reference first, then the other learned tuners, then the yardsticks."""
    known = {trial.arm for trial in trials}
    known |= {arm for item in section.printed for arm in item.arms}
    known |= {section.reference, *section.learned, *section.arms}
    rank = {section.reference: 0, BEST_STATIC: 3, BEST_DCQCN: 3, ORACLE: 4}

    def place(arm: str) -> tuple[int, str]:
        usual = 1 if arm in section.learned else 5 if is_placebo(arm) else 2
        return rank.get(arm, usual), arm

    return tuple(sorted(known, key=place))


def _repeats(section: Section, trials: list[ComparedTrial], factors: FactorLevels) -> Repeats:
    repeats: dict[str, dict[int, Repeat]] = {}
    for item in trials:
        if item.trial.valid and item.factors == factors:
            flows = item.trial.flows.within(section.flows_from, section.flows_to)
            figures = _metrics(section, item.trial, flows)
            one = Repeat(figures, flows, item.trial.checkpoint)
            repeats.setdefault(item.arm, {})[item.trial.seed] = one
    return repeats


def _last_analysis(trials: list[ComparedTrial], factors: FactorLevels) -> InterimAnalysis:
    """Return the look at which a condition is read: the last that its trials belong to.

    A condition may join trials of several conditions of the campaign, where a section compares the
    levels of a factor; each of these had its own last look, and the most cautious one counts.
    """
    last: dict[str, MeasuredTrial] = {}
    for item in trials:
        if item.factors == factors:
            key = repr(factors_of(item.trial.cell))
            if key not in last or item.trial.repeat > last[key].repeat:
                last[key] = item.trial
    analysis_plan = (trial.analysis_plan.at(trial.repeat) for trial in last.values())
    return min(analysis_plan, key=lambda look: look.level, default=FIXED)


def _metrics(section: Section, trial: MeasuredTrial, flows: DoneFlows) -> Mapping[str, float]:
    """Return a trial's figures by metric; NaN where it has no samples of flows that last."""
    steady = trial.progress.since(section.steady_from) if trial.progress else None
    figures = {**of_flows(flows), **of_progress(steady)}
    return {key: figures.get(key, trial.ports.get(key, math.nan)) for key in METRICS.papers}


def matches_levels(factors: Mapping[str, Scalar], when: Mapping[str, Scalar]) -> bool:
    """Return whether a condition's factors have the levels of `when`."""
    return all(factors.get(name) == level for name, level in when.items())


def _condition_rank(factors: FactorLevels, conditions: list[FactorLevels]) -> int:
    return next(
        (place for place, when in enumerate(conditions) if matches_levels(factors, when)),
        len(conditions),
    )


def _numeric_levels(factors: FactorLevels) -> list[float]:
    return [float(level) for level in factors.values() if not isinstance(level, str)]


def _sort_key(factors: FactorLevels) -> tuple[tuple[str, bool, float, str], ...]:
    """Return a sort key for conditions: numbers by size, words by letter."""
    return tuple(
        (name, isinstance(level, str), 0.0 if isinstance(level, str) else float(level), str(level))
        for name, level in factors.items()
    )
