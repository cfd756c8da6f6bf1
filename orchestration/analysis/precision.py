"""How precisely a condition's results are known: half widths of intervals, and whether they do."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from orchestration.analysis import student_t
from orchestration.analysis.sequential import Look, Looks
from orchestration.analysis.statistics import t_interval
from orchestration.core.records import Floats
from orchestration.core.repeats import Done, RepeatRule, Standing
from orchestration.core.trial import Scalar

# Fewer tell little of how results spread.
_LEAST_PAIRS = 3

# tuner -> repeat -> metric -> value of a valid trial
Values = Mapping[str, Mapping[int, Mapping[str, float]]]


def standing_at(
    look: Look, rule: RepeatRule, factors: Mapping[str, Scalar], values: Values
) -> Standing:
    """Return what a look at a condition shows, and whether it needs no more repeats.

    `values` has the campaign's tuners in its order. Only repeats up to the look's count. A pair
    that misses a trial, because that is invalid or failed, is missing. A metric that no trial has,
    like one of RoCE where hosts have TCP, has no widths and holds nothing up.
    """
    upto = {
        tuner: {repeat: row for repeat, row in rows.items() if repeat <= look.repeats}
        for tuner, rows in values.items()
    }
    widths = {metric: _half_widths(upto, metric, look) for metric in rule.of}
    every = [width for tuners in widths.values() for width in tuners.values()]
    narrow = bool(every) and all(width is not None and width <= rule.until for width in every)
    done: Done = "width" if narrow else "most" if look.repeats >= rule.most else ""
    return Standing(factors, look.repeats, look.number, done, widths)


def likely_repeats(rule: RepeatRule, looks: Looks, values: Values) -> int | None:
    """Return at which look a condition is likely to be done, if its spread stays as it is.

    None where a metric has fewer than three pairs to tell by.
    """
    metrics = [metric for metric in rule.of if _known(values, metric)]
    spreads = [_spread(values, metric, tuner) for metric in metrics for tuner in _compared(values)]
    if min(map(len, spreads), default=0) < _LEAST_PAIRS:
        return None
    for size in rule.sizes:
        look = looks.at(size)
        if all(_likely_width(spread, look) <= rule.until for spread in spreads):
            return size
    return rule.most


def _half_widths(values: Values, metric: str, look: Look) -> dict[str, float | None]:
    """Return the half width of each other tuner's difference from the first, relative to its mean.

    Of a single tuner it is the width of the mean.
    """
    widths: dict[str, float | None] = {}
    if not _known(values, metric):
        return widths
    for tuner in _compared(values):
        pairs = _pairs(values, metric, tuner)
        interval = t_interval(pairs[:, 1], look)
        half = (interval.high - interval.low) / 2
        mean = abs(float(pairs[:, 0].mean())) if len(pairs) else 0.0
        known = math.isfinite(half) and (mean > 0 or half == 0)
        widths[tuner] = (half / mean if half else 0.0) if known else None
    return widths


def _known(values: Values, metric: str) -> bool:
    return any(math.isfinite(row[metric]) for rows in values.values() for row in rows.values())


def _compared(values: Values) -> list[str]:
    """Return the tuners whose intervals count: the others than the first, or that alone."""
    first, *others = values
    return others or [first]


def _pairs(values: Values, metric: str, tuner: str) -> Floats:
    """Return the first tuner's values and what is to be known, shape (pairs, 2).

    That is the difference of `tuner` from the first; for the first, its value.
    """
    first = next(iter(values))
    rows = []
    for repeat, row in sorted(values[tuner].items()):
        base = values[first].get(repeat, {}).get(metric, math.nan)
        rows.append((base, row[metric] - base if tuner != first else base))
    pairs = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return np.asarray(pairs[np.isfinite(pairs).all(axis=1)])


def _spread(values: Values, metric: str, tuner: str) -> Floats:
    """Return what is to be known relative to the first tuner's mean, shape (pairs,)."""
    pairs = _pairs(values, metric, tuner)
    mean = abs(float(pairs[:, 0].mean())) if len(pairs) else 0.0
    return np.asarray(pairs[:, 1] / mean) if mean else pairs[:0, 1]


def _likely_width(values: Floats, look: Look) -> float:
    t = student_t.quantile(look.repeats - 1, 1 - look.level / 2)
    return t * float(values.std(ddof=1)) / math.sqrt(look.repeats)
