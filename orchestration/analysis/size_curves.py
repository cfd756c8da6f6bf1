"""Slowdown by flow size, with intervals: the repeats of an arm pooled in groups of flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.metrics import QUANTILES
from orchestration.analysis.sequential import InterimAnalysis
from orchestration.analysis.statistics import pooled_quantiles
from orchestration.analysis.trial_metrics import TrialMetrics
from orchestration.core.records import Floats

_SIZE_GROUPS = 10


@dataclass(frozen=True)
class SizeCurve:
    """Slowdown by flow size: groups of about equal numbers of flows, all valid repeats pooled.

    `upto_bytes` (groups,) is each group's largest size; `slowdown`, `low` and `high` have shape
    (groups, quantiles) for the quantiles 0.5, 0.95 and 0.99; `flows` counts (groups,).
    """

    upto_bytes: Floats
    slowdown: Floats
    low: Floats
    high: Floats
    flows: Floats


def size_edges(sizes: Floats) -> Floats:
    """Return the largest size of each of up to ten groups of about equal numbers of flows.

    Flows of one size are in one group, which may then hold more than a tenth of all flows; too few
    flows for a group of their own join the next one.
    """
    if not len(sizes):
        return np.zeros(0)
    shares = np.arange(1, _SIZE_GROUPS + 1) / _SIZE_GROUPS
    edges = np.unique(np.quantile(sizes, shares, method="higher"))
    upto = np.searchsorted(np.sort(sizes), edges, side="right")
    kept: list[int] = []
    for index in range(len(edges)):
        before = upto[kept[-1]] if kept else 0
        enough = upto[index] - before >= len(sizes) / _SIZE_GROUPS / 2
        if index == len(edges) - 1 and kept and not enough:
            kept.pop()
        if enough or index == len(edges) - 1:
            kept.append(index)
    return edges[kept]


def size_curves(
    arms: Sequence[Sequence[TrialMetrics]], interim: InterimAnalysis
) -> list[SizeCurve]:
    """Return the curve of each arm, given the metrics of the valid trials of each."""
    sizes = [trial.size_bytes for arm in arms for trial in arm]
    edges = size_edges(np.concatenate(sizes) if sizes else np.zeros(0))
    groups = [[np.searchsorted(edges, trial.size_bytes) for trial in arm] for arm in arms]
    found = np.full((len(arms), 3, len(edges), len(QUANTILES)), np.nan)
    flows = np.zeros((len(arms), len(edges)))
    for group in range(len(edges)):
        values = [
            [trial.slowdown[of_trial == group] for trial, of_trial in zip(arm, of_arm, strict=True)]
            for arm, of_arm in zip(arms, groups, strict=True)
        ]
        found[:, :, group] = pooled_quantiles(values, QUANTILES, interim=interim)
        flows[:, group] = [sum(map(len, of_arm)) for of_arm in values]
    return [
        SizeCurve(edges, point, low, high, count)
        for (point, low, high), count in zip(found, flows, strict=True)
    ]
