"""Likely causes of what differs, from what both trials recorded, the likeliest first.

Each rule compares one setting and says which metrics it would move, and roughly by how much. A
cause ranks high when the setting differs much, and when the metrics that it moves are those that
differ. That is a ranking of suspects and no proof: the next experiment changes one of them alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from orchestration.analysis.comparison.catalogue import COMPARED
from orchestration.analysis.comparison.cause_rules import (
    DROPS,
    FCT,
    MARKS,
    QUEUE,
    RULES,
    SLOWDOWN,
    TAIL,
    UTILISATION,
    Cause,
)
from orchestration.analysis.comparison.equivalence import DIFFERENT, EQUIVALENT
from orchestration.analysis.comparison.judge import Judged
from orchestration.analysis.comparison.settings import Settings

_TOPIC = {
    "slowdown_mean": SLOWDOWN, "slowdown_p50": SLOWDOWN, "slowdown_p99": TAIL,
    "slowdown_wasserstein": SLOWDOWN, "slowdown_ks": SLOWDOWN, "fct_mean": FCT, "fct_ratio": FCT,
    "queue_mean": QUEUE, "queue_p99": QUEUE, "queue_wasserstein": QUEUE, "marked_share": MARKS,
    "utilisation": UTILISATION, "dropped_share": DROPS,
}  # fmt: skip


def ranked_causes(a: Settings, b: Settings, judged: Sequence[Judged]) -> list[Cause]:
    """Return what differs between the settings of two paired trials, the likeliest cause first."""
    found = [cause for rule in RULES for cause in rule(a, b)]
    differing = _differing(judged)
    placed = [
        dataclasses.replace(cause, effect=min(1.0, cause.effect), fit=_fit(cause.moves, differing))
        for cause in found
    ]
    return sorted(placed, key=lambda cause: -cause.score)


def _differing(judged: Sequence[Judged]) -> dict[str, float]:
    """Return, by topic, the share of its metrics that differ: for sure, or by their estimates."""
    shares = {}
    known = {_TOPIC[metric.family] for metric in COMPARED}
    for topic in known:
        mine = [item for item in judged if _TOPIC[item.metric.family] == topic]
        weights = [
            1.0
            if item.verdict == DIFFERENT
            else 0.0
            if item.verdict == EQUIVALENT
            else 0.3 * (abs(item.interval.difference) > item.allowed)
            for item in mine
        ]
        shares[topic] = sum(weights) / len(weights) if weights else 0.0
    return shares


def _fit(moves: Iterable[str], differing: dict[str, float]) -> float:
    """Return the F-measure of what is moved against what differs, never quite 0."""
    moved, total = set(moves), sum(differing.values())
    hit = sum(share for topic, share in differing.items() if topic in moved)
    if not hit:
        return 0.05
    return max(0.05, 2 * hit / (total + len(moved)))
