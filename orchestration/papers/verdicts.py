"""The rule by which a paper's claim is judged, in one place; the page says it in `RULE`.

Everything is by the near end of an interval, the one nearer to no difference: what the sample shows
at least. A claim that several conditions are under is judged by all that ran. What a claim that did
not come out is put down to follows from the measurements alone, by `CAUSES`.
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
# The result for a claim under one condition: as the paper says, in its direction only, or not.
Outcome = Literal["as claimed", "direction only", "no"]
# A claim's direction counts if it shows in at least this share of the conditions.
_MIN_SHARE = 0.5

RULE = f"""\
A claim is judged by the near end of the interval, the one nearer to no difference. Under one
condition it is *as claimed* if that end lies beyond 0 in the claimed direction and reaches the
least change that the paper claims; *in its direction* if it lies beyond 0 only. That two are the
same, or that a value lies in a range, is as claimed if the whole interval lies inside the paper's
margin, and in its direction if the estimate does.

- **reproduced**: as claimed under every condition; where the paper says "up to", the near end
  reaches half of that under one of them; and the placebo of the tuner does not pass the same claim
  against the same opponent.
- **not by learning**: all that, and the placebo passes too: random actions do as well.
- **partly**: as claimed or in its direction under at least half of the conditions.
- **not reproduced**: under fewer.
- **no placebo**: as *reproduced*, but the placebo did not run.
- **too few flows**: a tail with fewer than {MIN_BEYOND} flows beyond it under every condition. A
  condition with too few is left out of the others' verdict, and counted.

*Detectable* is the smallest true difference that these repeats would have shown in four of five
samples of their size and spread (two-sided test at 5 %, power 80 %): a claim below it could not
have come out.
"""


@dataclass(frozen=True)
class ConditionResult:
    """A claim under one condition.

    `difference` is None for a claim about a value, `estimate` is None for a comparison.
    `detectable` is the smallest difference, in the metric's unit, that could have been shown.
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
    """A claim under the conditions of one transport.

    `skipped` counts conditions with too few flows. `placebo` is the placebo's arm, "" for a claim about
    an arm that has not learned, and `placebo_verdict` the verdict on it.
    """

    verdict: Verdict
    rows: tuple[ConditionResult, ...]
    skipped: int = 0
    placebo: str = ""
    placebo_verdict: Verdict = "no data"


@dataclass(frozen=True)
class ClaimResult:
    """A claim and its judgements by transport; the key is "" where transports are no factor."""

    claim: Claim
    by_transport: Mapping[str, Judgement]


def evaluate_claim(claim: Claim, result: SectionResult) -> ClaimResult:
    """Judge a claim by the measurements, under each transport apart."""
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
    """Judge a claim under these conditions, and the same claim about the placebo; "" for none."""
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
    """Return the smallest plausible change in the claimed direction, a share; NaN if unknown."""
    if claim.direction == "lower":
        return -difference.relative_high
    return difference.relative_low


def verdict_without_placebo(claim: Claim, rows: Sequence[ConditionResult]) -> Verdict:
    """Return the verdict on the findings alone, without the placebo's."""
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
    found: list[ConditionResult] = []
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
            found.append(row)
    if skipped and not found:
        return "too few flows", (), skipped
    return verdict_without_placebo(claim, found), tuple(found), skipped


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
    """Return the rows' conditions with one network of an arm, at another confidence."""
    return [
        replace(row.condition.with_network(arm, network), confidence=confidence) for row in rows
    ]


Cause = Literal["", "sample", "transport", "training", "none found"]
_RANK: dict[Verdict, int] = {"reproduced": 2, "not by learning": 2, "partly": 1}

CAUSES = """\
The *likely cause* of what is not reproduced follows from a rule, not from an opinion; the first
that holds is named. *sample*: wherever the claim fails, the smallest difference that its repeats
could have shown is larger than the claimed one, and the opposite is not beyond chance.
*transport*: under the other transport the verdict is better. *training*: the best of the tuner's
networks passes alone (at a confidence corrected for the choice), or the claim passes if the spread
between networks is left out. Else *none found*.
"""


def likely_cause(result: ClaimResult, transport: str) -> Cause:
    """Return the cause of a claim's failure under one transport; "" if it is not known to fail."""
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
        # each is as claimed, but none reaches half of the largest effect
        failing = list(judged.rows)
    return all(_undetectable(claim, row) for row in failing)


def _undetectable(claim: Claim, row: ConditionResult) -> bool:
    """Return whether the claimed difference is smaller than what could have been shown."""
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
    """Return whether the whole interval speaks against a claim."""
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
