"""The finished trials of the papers' campaigns, sorted by section and condition.

Two arms are compared over the seeds at which both have valid trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    campaign_tuner_name,
    factors_of,
    labels_of,
)
from orchestration.core.roce import FORMER_HPCC_TEXT, is_former_hpcc
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.papers.claims import FactorLevels, Section
from orchestration.papers.condition import Condition, Repeat, Repeats, order_transports
from orchestration.results.interim_analyses import read_interim_analyses
from orchestration.results.question import compared_factor, read_question
from orchestration.results.reader import finished_trials, read_trial

BEST_DCQCN, PLACEBO = "best-dcqcn", "placebo"
# Tuners that adapt by a rule, without learning. They are among the baselines of every section.
RULE_TUNERS = ("amt", "qaecn")


@dataclass(frozen=True)
class MeasuredTrial:
    """The measurements of one finished trial.

    `cell` has the labels of its tuner and factors; `compare` is the one of them that its campaign
    compares. `checkpoint` names the tuner's network, "" for
    the packaged one or none. `tuner` is the tuner's name, which may differ from its label; `params`
    are its parameters as text. `cautions` are reasons to run it again before it is believed.
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
    compare: str = TUNER

    def compared(self, factor: str, *, by_tuner: bool = False) -> tuple[str, FactorLevels]:
        """Return the trial's arm, a level of the compared factor, and its other factors.

        With `by_tuner`, its tuner is one of these.
        """
        factors = dict(self.cell) if by_tuner else factors_of(self.cell)
        factors.pop(factor, None)
        return str(self.cell.get(factor, "")), factors


@dataclass(frozen=True)
class ComparedTrial:
    """A trial with the arm that it belongs to, and the factors that are its condition."""

    arm: str
    factors: FactorLevels
    trial: MeasuredTrial


@dataclass(frozen=True)
class SectionResult:
    """The results of a section. `arms` are all arms to show, also those that did not run."""

    section: Section
    arms: tuple[str, ...]
    conditions: tuple[Condition, ...]
    trials: int
    invalid: int
    backends: tuple[str, ...]

    @property
    def transports(self) -> tuple[str, ...]:
        """The levels of the factor `transport`; ("",) if transports do not vary."""
        found = {condition.transport for condition in self.conditions if condition.repeats}
        return order_transports(found) if found else ("",)

    @property
    def ran(self) -> bool:
        """Whether anything was measured."""
        return self.trials > self.invalid


def is_placebo(arm: str) -> bool:
    """Return whether an arm's name is that of a placebo: `placebo` or `placebo-<tuner>`."""
    return arm == PLACEBO or arm.startswith(f"{PLACEBO}-")


def placebo_of(section: Section, arm: str, ran: tuple[str, ...]) -> str:
    """Return the placebo of a learned arm: what the section says, else the nearest name that ran.

    The nearest name is `placebo-<arm>`, else one with a part of the arm's name, as `placebo-pet`
    for `pet-without-flows`, else `placebo`.
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
    planned, compare = read_interim_analyses(folder), read_question(folder).compare
    measured = []
    for number, path in enumerate(folders):
        result = read_trial(path)
        measured.append(
            MeasuredTrial(
                cell={
                    TUNER: campaign_tuner_name(result.spec),
                    **factors_of(labels_of(result.spec)),
                },
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
                compare=compare,
            )
        )
        progress(number + 1, len(folders))
    return tuple(measured)


def _cautions(spec: TrialSpec) -> Iterator[str]:
    """Yield the reasons to run a trial again: it had parameters of DCQCN that were corrected."""
    roce = spec.host.roce
    if roce is not None and is_former_hpcc(roce.parameters):
        yield f"trials under DCQCN had {FORMER_HPCC_TEXT}"
    if check_network(spec):
        yield f"networks for DCQCN were trained in part under {FORMER_HPCC_TEXT}"


def evaluate_section(section: Section, trials: tuple[MeasuredTrial, ...]) -> SectionResult:
    """Return a section's results, from the trials of its campaign."""
    chosen = [trial for trial in trials if matches_levels(trial.cell, section.only)]
    compare = _compared_factor(section, chosen)
    by_tuner = compare != TUNER and _has_several_tuners(chosen, compare)
    selected = [
        ComparedTrial(*trial.compared(compare, by_tuner=by_tuner), trial) for trial in chosen
    ]
    if section.arms:
        # the baselines are shown in every section
        shown_arms = {*section.arms, BEST_STATIC, BEST_DCQCN, ORACLE, *RULE_TUNERS}
        selected = [one for one in selected if one.arm in shown_arms or is_placebo(one.arm)]
    printed = [item.when for item in section.printed if item.when]
    printed = [when for number, when in enumerate(printed) if when not in printed[:number]]
    measured = sorted({_sort_key(trial.factors): trial.factors for trial in selected}.items())
    # levels that are numbers by size, others in the paper's order
    ordered = sorted(
        measured,
        key=lambda item: (_numeric_levels(item[1]), _condition_rank(item[1], printed), item[0]),
    )
    shown = [factors for _, factors in ordered]
    shown += [when for when in printed if not any(matches_levels(f, when) for f in shown)]
    return SectionResult(
        section=section,
        arms=_arms(section, selected),
        conditions=tuple(
            Condition(
                factors,
                _repeats(section, selected, factors),
                _last_analysis(selected, factors).confidence,
            )
            for factors in shown
        ),
        trials=len(selected),
        invalid=sum(not item.trial.valid for item in selected),
        backends=tuple(sorted({item.trial.backend for item in selected})),
    )


def _compared_factor(section: Section, trials: Sequence[MeasuredTrial]) -> str:
    """Return the factor that a section compares: what it names, else that of its campaign."""
    if not section.compare:
        return trials[0].compare if trials else TUNER
    factors = dict.fromkeys(name for trial in trials for name in factors_of(trial.cell))
    return compared_factor(section.compare, factors) or section.compare


def _has_several_tuners(trials: Sequence[MeasuredTrial], compare: str) -> bool:
    """Return whether an arm has trials of several tuners at one seed under one condition."""
    seen: dict[str, Scalar] = {}
    for trial in trials:
        key = repr((*trial.compared(compare), trial.seed))
        if seen.setdefault(key, trial.cell[TUNER]) != trial.cell[TUNER]:
            return True
    return False


def _arms(section: Section, trials: list[ComparedTrial]) -> tuple[str, ...]:
    """Return the reference, then the learned arms, then others, then the baselines."""
    known = {trial.arm for trial in trials}
    known |= {arm for item in section.printed for arm in item.arms}
    known |= {section.reference, *section.learned, *section.arms}
    rank = {section.reference: 0, BEST_STATIC: 3, BEST_DCQCN: 3, ORACLE: 4}

    def rank_of(arm: str) -> tuple[int, str]:
        usual = 1 if arm in section.learned else 5 if is_placebo(arm) else 2
        return rank.get(arm, usual), arm

    return tuple(sorted(known, key=rank_of))


def _repeats(section: Section, trials: list[ComparedTrial], factors: FactorLevels) -> Repeats:
    repeats: dict[str, dict[int, Repeat]] = {}
    for item in trials:
        if item.trial.valid and item.factors == factors:
            flows = item.trial.flows.within(section.flows_from, section.flows_to)
            metrics = _metrics(section, item.trial, flows)
            repeat = Repeat(metrics, flows, item.trial.checkpoint)
            repeats.setdefault(item.arm, {})[item.trial.seed] = repeat
    return repeats


def _last_analysis(trials: list[ComparedTrial], factors: FactorLevels) -> InterimAnalysis:
    """Return the interim analysis at which a condition is read: the last that its trials reach.

    Where a section compares the levels of a factor, a condition joins trials of several conditions
    of the campaign. Each of these had its own last analysis, and the most cautious one counts.
    """
    last: dict[str, MeasuredTrial] = {}
    for item in trials:
        if item.factors == factors:
            key = repr(factors_of(item.trial.cell))
            if key not in last or item.trial.repeat > last[key].repeat:
                last[key] = item.trial
    analyses = (trial.analysis_plan.at(trial.repeat) for trial in last.values())
    return min(analyses, key=lambda analysis: analysis.level, default=FIXED)


def _metrics(section: Section, trial: MeasuredTrial, flows: DoneFlows) -> Mapping[str, float]:
    """Return a trial's values by metric; those of long-lived flows are NaN without samples."""
    steady = trial.progress.since(section.steady_from) if trial.progress else None
    values = {**of_flows(flows), **of_progress(steady)}
    return {key: values.get(key, trial.ports.get(key, math.nan)) for key in METRICS.papers}


def matches_levels(factors: Mapping[str, Scalar], when: Mapping[str, Scalar]) -> bool:
    """Return whether a condition's factors have all levels of `when`."""
    return all(factors.get(name) == level for name, level in when.items())


def _condition_rank(factors: FactorLevels, printed: list[FactorLevels]) -> int:
    """Return the number of the first printed condition that matches; of others, the last rank."""
    matching = (rank for rank, when in enumerate(printed) if matches_levels(factors, when))
    return next(matching, len(printed))


def _numeric_levels(factors: FactorLevels) -> list[float]:
    return [float(level) for level in factors.values() if not isinstance(level, str)]


def _sort_key(factors: FactorLevels) -> tuple[tuple[str, bool, float, str], ...]:
    """Return a sort key for conditions: levels that are numbers by size, others by letter."""
    return tuple(
        (name, isinstance(level, str), 0.0 if isinstance(level, str) else float(level), str(level))
        for name, level in factors.items()
    )
