"""What a claim that did not come out is put down to, by rule from the measurements alone.

The rules are tried in this order, and the first that holds is named:

- `sample`: under every condition where the claim fails, the smallest detectable difference is
  larger than the claimed one, so that nothing else can be told, and the whole interval does not
  speak against the claim. That is by the spread of repeats; the spread between an arm's networks is
  training's.
- `transport`: another transport's verdict on the same claim is better.
- `training`: the claim passes with the best of the arm's networks alone, at a confidence corrected
  for having chosen it (Bonferroni), or it passes if the spread between networks is left out.
- `none found`.
"""

from __future__ import annotations

import math
from typing import Literal

from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.papers.claims import Claim
from orchestration.papers.verdicts import (
    ClaimResult,
    Judgement,
    Row,
    Verdict,
    judge,
    of_network,
)

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
    failing = [row for row in judged.rows if row.finding != "as claimed"]
    if not failing:
        # each is as claimed, but none reaches half of the largest effect
        failing = list(judged.rows)
    return all(_hidden(claim, row) for row in failing)


def _hidden(claim: Claim, row: Row) -> bool:
    """Return whether the claimed difference is smaller than what could have been shown."""
    claimed, least = claim.claimed, row.detectable
    if claim.direction == "value":
        claimed = ((claim.high or 0.0) - (claim.low or 0.0)) / 2
    else:
        least = row.condition.detectable_by_repeats(claim.arm, claim.against, claim.metric)
    return claimed > 0 and math.isfinite(least) and least > claimed and not _opposite(claim, row)


def _opposite(claim: Claim, row: Row) -> bool:
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
        alone = judge(claim, of_network(judged.rows, claim.arm, network, confidence))
        if alone.verdict == "reproduced" and len(alone.rows) == len(judged.rows):
            return True
    together = [row.condition.as_one_network() for row in judged.rows]
    return judge(claim, together).verdict == "reproduced"
