"""What the measurements say of the papers' claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.studies.papers.claims import Claim
from orchestration.studies.papers.results import Condition, SectionResult, fits

Verdict = Literal["reproduced", "partly", "not reproduced", "no data"]
# Of a claim under one condition: as the paper says, in its direction only, or not.
Finding = Literal["as claimed", "direction only", "no"]
# With the difference, which a claim of a value has not.
Row = tuple[Condition, PairedDifference | None, Finding]


@dataclass(frozen=True)
class ClaimResult:
    """A claim, its verdict, and by condition the difference (None for a value) and the finding."""

    claim: Claim
    verdict: Verdict
    findings: tuple[Row, ...]


def evaluate_claim(claim: Claim, result: SectionResult) -> ClaimResult:
    """Return what the measurements say of a claim.

    Under one condition a comparison is `as claimed` if its 95 % interval excludes 0 in the claimed
    direction and reaches the least change that the paper claims, and `direction only` if it
    excludes 0 but stays below. The claim is reproduced if every condition is as claimed and, where
    the paper says `up to`, one of them reaches half of that; not reproduced if none shows the
    direction.
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
    """Return how large the change may be in the claimed direction: the far end of its interval."""
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
