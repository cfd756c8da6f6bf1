"""Evaluates finished runs of the papers' campaigns against the papers' claims.

A repeat gives one value; tuners are compared over seeds on which both have valid trials. Intervals
are 95 %, by Student's t, and not corrected for the number of comparisons on the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestration.analysis.balance_figures import balance_figures
from orchestration.analysis.flow_progress import FlowProgress, flow_progress
from orchestration.analysis.metrics import DoneFlows, done_flows
from orchestration.analysis.paper_metrics import PAPER_METRICS, port_figures
from orchestration.analysis.sequential import FIXED, PLAIN, Look, Looks
from orchestration.analysis.statistics import (
    Estimate,
    PairedDifference,
    paired_difference,
    t_interval,
)
from orchestration.artifacts.looks import read_looks
from orchestration.artifacts.reader import finished_trials, read_trial
from orchestration.model.condition import TUNER, factors_of, tuner_called
from orchestration.model.trial import Scalar
from orchestration.studies.papers.claims import Claim, Section, When

# tuner -> seed -> metric -> value
Values = Mapping[str, Mapping[int, Mapping[str, float]]]

BEST_STATIC, BEST_DCQCN, PLACEBO = "best-static", "best-dcqcn", "placebo"


@dataclass(frozen=True)
class Measured:
    """The metrics of one finished trial; `cell` has its tuner's label and those of its factors."""

    cell: When
    seed: int
    valid: bool
    backend: str
    flows: DoneFlows
    ports: Mapping[str, float]
    progress: FlowProgress | None = None
    repeat: int = 1
    looks: Looks = PLAIN

    def compared(self, factor: str) -> tuple[str, When]:
        """Return what it is compared as, the level of a factor, and its other factors."""
        factors = factors_of(self.cell)
        factors.pop(factor, None)
        return str(self.cell.get(factor, "")), factors


@dataclass(frozen=True)
class Compared:
    """A trial as it is compared with others: `arm` names it, `factors` are the condition."""

    arm: str
    factors: When
    trial: Measured


@dataclass(frozen=True)
class Condition:
    """One combination of factors in a section, with the metrics of all valid trials.

    Intervals are those of the `look` at which its campaign stopped, if its repeats are adaptive.
    """

    factors: When
    values: Values
    look: Look = FIXED

    @property
    def label(self) -> str:
        """`load 0.6`, or `all trials` if nothing varies; text levels stand without their factor."""
        parts = [
            level if isinstance(level, str) else f"{name} {level}"
            for name, level in self.factors.items()
        ]
        return ", ".join(parts) or "all trials"

    @property
    def seeds(self) -> int:
        """The number of seeds that at least one tuner has."""
        return len({seed for arm in self.values.values() for seed in arm})

    def estimate(self, arm: str, metric: str) -> Estimate:
        """Return the mean over the repeats; NaN for a tuner without trials."""
        return t_interval([row[metric] for row in self.values.get(arm, {}).values()], self.look)

    def difference(self, arm: str, against: str, metric: str) -> PairedDifference:
        """Return `arm` minus `against` over their common seeds."""
        mine, others = (
            {seed: row[metric] for seed, row in self.values.get(name, {}).items()}
            for name in (arm, against)
        )
        return difference_by_seed(mine, others, self.look)


def difference_by_seed(
    mine: Mapping[int, float], others: Mapping[int, float], look: Look = FIXED
) -> PairedDifference:
    """Return the values of one minus those of the other, over their common seeds."""
    seeds = sorted(set(mine) & set(others))
    return paired_difference([others[seed] for seed in seeds], [mine[seed] for seed in seeds], look)


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
    def ran(self) -> bool:
        """Whether anything was measured."""
        return self.trials > self.invalid


def measure_campaign(folder: Path, progress: Callable[[int, int], None]) -> tuple[Measured, ...]:
    """Return the finished trials of a campaign's folder; none if the folder does not exist.

    Raises InputError, naming the file, if one cannot be read.
    """
    folders = finished_trials(folder)
    planned = read_looks(folder)
    measured = []
    for number, path in enumerate(folders):
        result = read_trial(path)
        measured.append(
            Measured(
                cell={TUNER: tuner_called(result.spec), **factors_of(result.spec.cell)},
                seed=result.spec.seed,
                valid=result.stamp.valid,
                backend=result.spec.backend,
                flows=done_flows(result),
                ports={**port_figures(result), **balance_figures(result)},
                progress=flow_progress(result),
                repeat=result.spec.repeat,
                looks=Looks(planned.sizes) if planned else PLAIN,
            )
        )
        progress(number + 1, len(folders))
    return tuple(measured)


def evaluate_section(section: Section, trials: tuple[Measured, ...]) -> SectionResult:
    """Return a section's results from its campaign's trials."""
    mine = [
        Compared(*trial.compared(section.compares), trial)
        for trial in trials
        if fits(trial.cell, section.only)
    ]
    if section.arms:
        mine = [trial for trial in mine if trial.arm in section.arms]
    conditions: list[When] = []
    for item in section.printed:
        if item.when and item.when not in conditions:
            conditions.append(item.when)
    found = sorted({_key(trial.factors): trial.factors for trial in mine}.items())
    # numbers by size, words in the paper's order
    ordered = sorted(
        found, key=lambda item: (_numbers(item[1]), _place(item[1], conditions), item[0])
    )
    shown = [factors for _, factors in ordered]
    shown += [when for when in conditions if not any(fits(f, when) for f in shown)]
    return SectionResult(
        section=section,
        arms=_arms(section, mine),
        conditions=tuple(
            Condition(factors, _values(section, mine, factors), _look(mine, factors))
            for factors in shown
        ),
        trials=len(mine),
        invalid=sum(not item.trial.valid for item in mine),
        backends=tuple(sorted({item.trial.backend for item in mine})),
    )


def _arms(section: Section, trials: list[Compared]) -> tuple[str, ...]:
    """Return the reference first, then the other learned tuners, then the yardsticks."""
    known = {trial.arm for trial in trials}
    known |= {arm for item in section.printed for arm in item.arms}
    known |= {section.reference, *section.learned, *section.arms}
    rank = {section.reference: 0, BEST_STATIC: 3, BEST_DCQCN: 3, PLACEBO: 4}

    def place(arm: str) -> tuple[int, str]:
        return rank.get(arm, 1 if arm in section.learned else 2), arm

    return tuple(sorted(known, key=place))


def _values(section: Section, trials: list[Compared], factors: When) -> Values:
    values: dict[str, dict[int, Mapping[str, float]]] = {}
    for item in trials:
        if item.trial.valid and item.factors == factors:
            values.setdefault(item.arm, {})[item.trial.seed] = _figures(section, item.trial)
    return values


def _look(trials: list[Compared], factors: When) -> Look:
    """Return the look at which a condition is read: the last that its trials belong to.

    A condition may join trials of several conditions of the campaign, where a section compares the
    levels of a factor; each of these had its own last look, and the most cautious one counts.
    """
    last: dict[str, Measured] = {}
    for item in trials:
        if item.factors == factors:
            key = repr(factors_of(item.trial.cell))
            if key not in last or item.trial.repeat > last[key].repeat:
                last[key] = item.trial
    looks = (trial.looks.at(trial.repeat) for trial in last.values())
    return min(looks, key=lambda look: look.level, default=FIXED)


def _figures(section: Section, trial: Measured) -> Mapping[str, float]:
    """Return a trial's figures by metric; NaN where it has no samples of flows that last."""
    flows = trial.flows.within(section.flows_from, section.flows_to)
    steady = trial.progress.since(section.steady_from) if trial.progress else None
    figures = {**trial.ports}
    for key, metric in PAPER_METRICS.items():
        if metric.of_flows is not None:
            figures[key] = metric.of_flows(flows)
        elif metric.of_progress is not None:
            sampled = steady is not None and len(steady.t_ns) > 1
            figures[key] = metric.of_progress(steady) if steady and sampled else math.nan
    return figures


def fits(factors: Mapping[str, Scalar], when: Mapping[str, Scalar]) -> bool:
    """Return whether a condition's factors have the levels of `when`."""
    return all(factors.get(name) == level for name, level in when.items())


def _place(factors: When, conditions: list[When]) -> int:
    return next(
        (place for place, when in enumerate(conditions) if fits(factors, when)), len(conditions)
    )


def _numbers(factors: When) -> list[float]:
    return [float(level) for level in factors.values() if not isinstance(level, str)]


def _key(factors: When) -> tuple[tuple[str, bool, float, str], ...]:
    """Return a sort key for conditions: numbers by size, words by letter."""
    return tuple(
        (name, isinstance(level, str), 0.0 if isinstance(level, str) else float(level), str(level))
        for name, level in factors.items()
    )


Verdict = Literal["reproduced", "partly", "not reproduced", "no data"]
# The result for a claim under one condition: as the paper says, in its direction only, or not.
Finding = Literal["as claimed", "direction only", "no"]
# The difference is None for a claim about a value.
Row = tuple[Condition, PairedDifference | None, Finding]


@dataclass(frozen=True)
class ClaimResult:
    """A claim, its verdict, and per condition the difference (None for a value) and the finding."""

    claim: Claim
    verdict: Verdict
    findings: tuple[Row, ...]


def evaluate_claim(claim: Claim, result: SectionResult) -> ClaimResult:
    """Evaluate a claim against the measurements.

    Under one condition, a comparison is `as claimed` if its 95 % interval excludes 0 in the claimed
    direction and reaches the least effect that the paper claims. It is `direction only` if the
    interval excludes 0 but does not reach it. The claim is reproduced if every condition is as
    claimed and, if the paper says `up to`, one of them reaches half of that. It is not reproduced
    if no condition shows the direction.
    """
    rows: list[Row] = []
    for condition in result.conditions:
        if not fits(condition.factors, claim.when):
            continue
        if claim.direction == "value":
            estimate = condition.estimate(claim.arm, claim.metric)
            if estimate.n >= 2:
                rows.append((condition, None, _value_finding(claim, estimate)))
            continue
        difference = condition.difference(claim.arm, claim.against, claim.metric)
        if difference.n >= 2:
            rows.append((condition, difference, _finding(claim, difference)))
    return ClaimResult(claim, _verdict(claim, rows), tuple(rows))


def toward(claim: Claim, difference: PairedDifference) -> float:
    """Return the largest plausible change in the claimed direction: the far end of the interval."""
    if claim.direction == "lower":
        return -difference.relative_low
    return difference.relative_high


def _finding(claim: Claim, difference: PairedDifference) -> Finding:
    if claim.direction == "same":
        inside = (
            difference.relative_low >= -claim.within and difference.relative_high <= claim.within
        )
        if inside:
            return "as claimed"
        return "direction only" if abs(difference.relative) <= claim.within else "no"
    real = difference.high < 0 if claim.direction == "lower" else difference.low > 0
    if not real:
        return "no"
    reaches = claim.least <= 0 or toward(claim, difference) >= claim.least
    return "as claimed" if reaches else "direction only"


def _value_finding(claim: Claim, estimate: Estimate) -> Finding:
    low, high = claim.low or 0.0, claim.high or 0.0
    if low <= estimate.mean <= high:
        return "as claimed"
    return "direction only" if estimate.low <= high and estimate.high >= low else "no"


def _verdict(claim: Claim, rows: list[Row]) -> Verdict:
    if not rows:
        return "no data"
    findings = [finding for _, _, finding in rows]
    if all(finding == "no" for finding in findings):
        return "not reproduced"
    if any(finding != "as claimed" for finding in findings):
        return "partly"
    if claim.best is not None:
        largest = max(toward(claim, diff) for _, diff, _ in rows if diff is not None)
        if not largest >= claim.best / 2:
            return "partly"
    return "reproduced"
