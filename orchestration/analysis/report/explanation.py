"""What explains a result: counters by arm, goodput by pattern and flow size, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping

from orchestration.analysis.answer import answer_of, is_better, metric_words
from orchestration.analysis.arm_differences import Comparison, size_words
from orchestration.analysis.load import Load
from orchestration.analysis.metrics import CAUSES, EXPLAINS, METRICS
from orchestration.analysis.statistics import t_interval
from orchestration.analysis.summary import Arm, Condition, Summary, Trial
from orchestration.render.numbers import NOTHING, with_error
from orchestration.render.table import Table, table

# A difference explains something if it is at least so large, as a share of the baseline's value.
_TELLING = 0.2
# How many differences the title names.
_MAX_NAMED = 2


def explanation_title(condition: Condition, summary: Summary) -> str:
    """Return `Why: with hpcc, p99 queue 72% lower`, of the best arm against the baseline.

    Without a winner, or if nothing differs much, it is a general title.
    """
    answer = answer_of(condition, summary.judge[0])
    arm = answer.best[0] if answer.best else ""
    causes = [item for item in _causes(condition, arm) if item.metric not in summary.judge]
    if not causes:
        return "What explains it"
    words = [
        f"{metric_words(item.metric)} {size_words(item.difference, item.metric)}"
        for item in causes[:_MAX_NAMED]
    ]
    return f"Why: with {arm}, {' and '.join(words)}"


def _causes(condition: Condition, arm: str) -> list[Comparison]:
    """Return the large differences of an arm to the better in what may cause its result."""
    found = [
        item
        for item in condition.comparisons
        if item.arm == arm
        and item.metric in CAUSES
        and item.real
        and abs(item.difference.relative) >= _TELLING
        and is_better(item.difference, item.metric)
    ]
    return sorted(found, key=lambda item: CAUSES.index(item.metric))


def explanation_table(condition: Condition) -> Table | None:
    """Return the figures that explain a result, by arm; None if none was measured."""
    rows = []
    for key in EXPLAINS:
        unit = METRICS[key].unit
        found = [arm.estimates[key] for arm in condition.arms]
        if any(math.isfinite(one.mean) and one.mean for one in found):
            rows.append([METRICS[key].label, *(with_error(one, unit) for one in found)])
    if not rows:
        return None
    caption = "Mean over repeats ± half-width of its 95% interval. Left out: what was always 0."
    names = [arm.name for arm in condition.arms]
    return table(("what happened",), names, rows, caption=caption)


def goodput_table(condition: Condition) -> Table | None:
    """Return the goodput of all hosts by pattern and by flow-size class; None if it is unknown."""
    loads = [trial.metrics.load for arm in condition.arms for trial in arm.valid]
    patterns = list(dict.fromkeys(name for load in loads for name in load.patterns))
    classes = list(dict.fromkeys(name for load in loads for name in load.classes))
    rows = [[name, *_goodputs(condition, "patterns", name)] for name in patterns]
    if len(classes) > 1:
        rows += [[f"{name} flows", *_goodputs(condition, "classes", name)] for name in classes]
    rows = [row for row in rows if any(cell not in (NOTHING, "0bps") for cell in row[1:])]
    if not rows:
        return None
    caption = (
        "Payload that receivers accepted in order, by all hosts together. Mean over repeats ± "
        "half-width of its 95% interval."
    )
    return table(("goodput",), [arm.name for arm in condition.arms], rows, caption=caption)


def _goodputs(condition: Condition, of: str, name: str) -> list[str]:
    return [_goodput(arm, of, name) for arm in condition.arms]


def _goodput(arm: Arm, of: str, name: str) -> str:
    def of_trial(trial: Trial) -> float:
        load = trial.metrics.load
        parts: Mapping[str, Load] = getattr(load, of)
        return load.goodput_bps(parts[name]) if name in parts else math.nan

    return with_error(t_interval([of_trial(trial) for trial in arm.valid]), "bps")
