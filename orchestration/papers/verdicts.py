"""How a paper's claim is judged. The page prints the rule as `RULE`.

Everything goes by the near end of an interval, which is the end nearer to no difference: what the
sample shows at least. A claim about several conditions is judged by all of them that ran. The
likely cause of a claim that failed follows from the measurements alone, by `CAUSES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestration.analysis.quantiles import MIN_BEYOND, units
from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.analysis.student_t import detectable
from orchestration.papers.claims import Claim
from orchestration.papers.condition import Condition
from orchestration.papers.results import SectionResult, is_placebo, matches_levels, placebo_of

Verdict = Literal[
    "reproduced",
    "partly",
    "not reproduced",
    "not by learning",
    "no placebo",
    "too few flows",
    "no data",
]
VERDICTS: tuple[Verdict, ...] = (
    "reproduced",
    "partly",
    "not by learning",
    "not reproduced",
    "no placebo",
    "too few flows",
    "no data",
)
# A claim under one condition: came out as the paper says, in its direction only, or not.
Outcome = Literal["as claimed", "direction only", "no"]
# A claim counts as `partly` if its direction shows under at least this share of the conditions.
_MIN_SHARE = 0.5

RULE = f"""\
A claim is judged by the near end of the interval, which is the end nearer to no difference. Under
one condition the result is *as claimed* if that end lies beyond 0 in the claimed direction and
reaches the smallest change that the paper claims; it is *in the claimed direction* if that end only
lies beyond 0. A claim that two values are the same, or that a value lies in a range, comes out as
claimed if the whole interval lies inside the paper's margin, and in the claimed direction if only
the estimate does.

- **reproduced**: as claimed under every condition. Where the paper says "up to", the near end
  reaches half of that under at least one condition. The tuner's placebo does not pass the same
  claim against the same opponent.
- **not by learning**: as *reproduced*, but the placebo passes the claim, too: random actions do as
  well.
- **partly**: as claimed or in the claimed direction under at least half of the conditions.
- **not reproduced**: so under less than half of them.
- **no placebo**: as *reproduced*, but the placebo did not run.
- **too few flows**: the metric is a tail, and less than {MIN_BEYOND} flows lie beyond it under
  every condition. If that holds under some conditions only, these are counted and left out of the
  verdict.

*Detectable* is the minimum detectable effect: the smallest true difference that four of five
samples of this size and spread would show (two-sided test at 5 %, power 80 %). A smaller claimed
effect could not have been confirmed.
"""


@dataclass(frozen=True)
class ConditionResult:
    """The result for a claim under one condition.

    `difference` is None for a claim about a value, `estimate` is None for a comparison.
    `detectable` is the minimum detectable effect in the metric's unit.
    """

    condition: Condition
    difference: PairedDifference | None
    estimate: Estimate | None
    outcome: Outcome
    detectable: float

    @property
    def label(self) -> str:
        """The condition without its transport."""
        return self.condition.label_without_transport


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim under the conditions of one transport.

    `skipped` counts the conditions with too few flows. `placebo` is the arm that is the placebo of
    the claim's arm, "" if that has not learned; `placebo_verdict` is the verdict on the same claim
    about the placebo.
    """

    verdict: Verdict
    rows: tuple[ConditionResult, ...]
    skipped: int = 0
    placebo: str = ""
    placebo_verdict: Verdict = "no data"


@dataclass(frozen=True)
class ClaimResult:
    """A claim with a judgement for each transport; the key is "" where transports do not vary."""

    claim: Claim
    by_transport: Mapping[str, Judgement]


def evaluate_claim(claim: Claim, result: SectionResult) -> ClaimResult:
    """Judge a claim by the measurements, separately for each transport."""
    judged = {}
    for transport in result.transports:
        chosen = [
            condition
            for condition in result.conditions
            if condition.transport == transport and matches_levels(condition.factors, claim.when)
        ]
        placebo = ""
        if claim.arm in result.section.learned and not is_placebo(claim.against):
            ran = tuple({arm for condition in chosen for arm in condition.repeats})
            placebo = placebo_of(result.section, claim.arm, ran)
        judged[transport] = judge(claim, chosen, placebo)
    return ClaimResult(claim, judged)


def judge(claim: Claim, conditions: Sequence[Condition], placebo: str = "") -> Judgement:
    """Judge a claim under these conditions, and the same claim about `placebo` ("" for none)."""
    verdict, rows, skipped = _verdict_on_arm(claim, conditions)
    if not placebo:
        return Judgement(verdict, rows, skipped)
    placebo_verdict, _, _ = _verdict_on_arm(claim.model_copy(update={"arm": placebo}), conditions)
    if verdict == "reproduced" and placebo_verdict == "reproduced":
        verdict = "not by learning"
    elif verdict == "reproduced" and placebo_verdict == "no data":
        verdict = "no placebo"
    return Judgement(verdict, rows, skipped, placebo, placebo_verdict)


def near_end(claim: Claim, difference: PairedDifference) -> float:
    """Return the near end of the interval as a change in the claimed direction: a share, or NaN."""
    if claim.direction == "lower":
        return -difference.relative_high
    return difference.relative_low


def verdict_without_placebo(claim: Claim, rows: Sequence[ConditionResult]) -> Verdict:
    """Return the verdict on the conditions' results, without regard to the placebo."""
    if not rows:
        return "no data"
    shown = sum(row.outcome != "no" for row in rows)
    if shown < _MIN_SHARE * len(rows):
        return "not reproduced"
    if any(row.outcome != "as claimed" for row in rows):
        return "partly"
    if claim.best is not None and claim.direction in ("lower", "higher"):
        ends = [near_end(claim, row.difference) for row in rows if row.difference is not None]
        if not any(end >= claim.best / 2 for end in ends):
            return "partly"
    return "reproduced"


def _verdict_on_arm(
    claim: Claim, conditions: Sequence[Condition]
) -> tuple[Verdict, tuple[ConditionResult, ...], int]:
    """Return the verdict on the claim's arm, its results, and the number of skipped conditions."""
    results: list[ConditionResult] = []
    skipped = 0
    for condition in conditions:
        arms = (claim.arm,) if claim.direction == "value" else (claim.arm, claim.against)
        if not all(condition.repeats.get(arm) for arm in arms):
            continue
        if condition.has_too_few_flows(arms, claim.metric):
            skipped += 1
            continue
        row = (
            _value_result(claim, condition)
            if len(arms) == 1
            else _comparison_result(claim, condition)
        )
        if row is not None:
            results.append(row)
    if skipped and not results:
        return "too few flows", (), skipped
    return verdict_without_placebo(claim, results), tuple(results), skipped


def _comparison_result(claim: Claim, condition: Condition) -> ConditionResult | None:
    difference = condition.difference(claim.arm, claim.against, claim.metric)
    if difference.n < 2:
        return None
    minimum = condition.detectable(claim.arm, claim.against, difference)
    return ConditionResult(condition, difference, None, _outcome(claim, difference), minimum)


def _value_result(claim: Claim, condition: Condition) -> ConditionResult | None:
    estimate = condition.estimate(claim.arm, claim.metric)
    if estimate.n < 2:
        return None
    low, high = claim.low or 0.0, claim.high or 0.0
    outcome: Outcome = "no"
    if low <= estimate.mean <= high:
        inside = low <= estimate.low and estimate.high <= high
        outcome = "as claimed" if inside else "direction only"
    repeats = condition.repeats[claim.arm].values()
    freedom = units([repeat.checkpoint for repeat in repeats]) - 1
    half = (estimate.high - estimate.low) / 2
    return ConditionResult(
        condition, None, estimate, outcome, detectable(half, freedom, condition.confidence)
    )


def _outcome(claim: Claim, difference: PairedDifference) -> Outcome:
    if claim.direction == "same":
        ends = (difference.relative_low, difference.relative_high)
        if all(abs(end) <= claim.within for end in ends):
            return "as claimed"
        return "direction only" if abs(difference.relative) <= claim.within else "no"
    beyond = difference.high < 0 if claim.direction == "lower" else difference.low > 0
    if not beyond:
        return "no"
    reaches = claim.min_effect <= 0 or near_end(claim, difference) >= claim.min_effect
    return "as claimed" if reaches else "direction only"


def with_one_network(
    rows: Sequence[ConditionResult], arm: str, network: str, confidence: float
) -> list[Condition]:
    """Return the rows' conditions with one network of `arm` only, at this confidence."""
    return [
        replace(row.condition.with_network(arm, network), confidence=confidence) for row in rows
    ]


Cause = Literal["", "sample", "transport", "training", "none found"]
_RANK: dict[Verdict, int] = {"reproduced": 2, "not by learning": 2, "partly": 1}

CAUSES = """\
The *likely cause* why a claim is not reproduced follows from a rule, not from an opinion. The first
cause that applies is named. *sample*: wherever the claim fails, its effect is smaller than the
minimum detectable one, and the opposite is not beyond chance. *transport*: the verdict under the
other transport is better. *training*: one of the tuner's networks passes alone (at a confidence
corrected for choosing among them), or the claim passes if the spread between networks is left out.
Otherwise *none found*.
"""


def likely_cause(result: ClaimResult, transport: str) -> Cause:
    """Return why a claim likely failed under one transport; "" if it is not known to fail."""
    judged = result.by_transport[transport]
    if judged.verdict not in ("partly", "not reproduced"):
        return ""
    if _sample(result.claim, judged):
        return "sample"
    others = [other for name, other in result.by_transport.items() if name != transport]
    if any(_RANK.get(other.verdict, 0) > _RANK.get(judged.verdict, 0) for other in others):
        return "transport"
    if _training(result.claim, judged):
        return "training"
    return "none found"


def _sample(claim: Claim, judged: Judgement) -> bool:
    failing = [row for row in judged.rows if row.outcome != "as claimed"]
    if not failing:
        # every condition is as claimed, but none reaches half of the largest effect reported
        failing = list(judged.rows)
    return all(_undetectable(claim, row) for row in failing)


def _undetectable(claim: Claim, row: ConditionResult) -> bool:
    """Return whether the claimed effect is smaller than the minimum detectable one."""
    claimed, minimum = claim.claimed, row.detectable
    if claim.direction == "value":
        claimed = ((claim.high or 0.0) - (claim.low or 0.0)) / 2
    else:
        minimum = row.condition.detectable_by_repeats(claim.arm, claim.against, claim.metric)
    return (
        claimed > 0
        and math.isfinite(minimum)
        and minimum > claimed
        and not _contradicts(claim, row)
    )


def _contradicts(claim: Claim, row: ConditionResult) -> bool:
    """Return whether the whole interval contradicts a claim."""
    match claim.direction, row.difference, row.estimate:
        case "value", _, Estimate(low=low, high=high):
            return low > (claim.high or 0.0) or high < (claim.low or 0.0)
        case "lower", PairedDifference(low=low), _:
            return low > 0
        case "higher", PairedDifference(high=high), _:
            return high < 0
    return False


def _training(claim: Claim, judged: Judgement) -> bool:
    networks = sorted({n for row in judged.rows for n in row.condition.networks(claim.arm)})
    if len(networks) < 2:
        return False
    for network in networks:
        confidence = 1 - (1 - judged.rows[0].condition.confidence) / len(networks)
        alone = judge(claim, with_one_network(judged.rows, claim.arm, network, confidence))
        if alone.verdict == "reproduced" and len(alone.rows) == len(judged.rows):
            return True
    together = [row.condition.as_one_network() for row in judged.rows]
    return judge(claim, together).verdict == "reproduced"
