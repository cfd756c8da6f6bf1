"""Offered and delivered load as tables: a row a pattern, then all of them."""

from __future__ import annotations

import math

import numpy as np
from rich.table import Table

from orchestration.analysis.load import Load
from orchestration.analysis.statistics import t_interval
from orchestration.analysis.summary import Arm, Condition, Trial
from orchestration.analysis.words import with_error
from orchestration.model.units import format_duration

# A share of what was delivered: ports do not tell options of acknowledgements from payload.
_NOTICEABLE = 0.005
TOTAL = "all patterns"
TITLE = "Load, share of the hosts' line rates"


def load_rows(condition: Condition) -> list[tuple[str, list[str]]]:
    """Return a pattern, and its cells as text, in the order of `load_columns`; [] if unknown.

    A single pattern has no row beside that of all.
    """
    arms = [arm for arm in condition.arms if arm.valid]
    names = list(dict.fromkeys(name for arm in arms for t in arm.valid for name in _patterns(t)))
    rows = [*names, TOTAL] if len(names) > 1 else names
    told = []
    for name in rows:
        cells = [_mean(arms[0], name, "offered")]
        for what in _by_arm(condition):
            cells += [_mean(arm, name, what) if arm.valid else "" for arm in condition.arms]
        told.append((name, cells))
    return told


def load_columns(condition: Condition) -> list[str]:
    """Return the heads of the columns beside the pattern: offered, then of each tuner's trials."""
    arms = [f"{what}, {arm.tuner}" for what in _by_arm(condition) for arm in condition.arms]
    return ["offered", *arms]


def _by_arm(condition: Condition) -> tuple[str, ...]:
    """Return what is told of each tuner: what receivers discarded only if it is noticeable."""
    loads = [trial.metrics.load.total for arm in condition.arms for trial in arm.valid]
    discarded = any(
        load.discarded_bytes > _NOTICEABLE * np.nan_to_num(load.delivered_bytes) for load in loads
    )
    return ("delivered", "discarded") if discarded else ("delivered",)


def load_table(condition: Condition, empty: Table) -> Table | None:
    """Fill an empty table for the terminal; None if there is nothing to tell."""
    rows = load_rows(condition)
    if not rows:
        return None
    empty.title, empty.caption = TITLE, load_caption(condition)
    empty.add_column("pattern", overflow="fold")
    offered, *by_arm = load_columns(condition)
    empty.add_column(offered, justify="right")
    for head in by_arm:
        empty.add_column(head, justify="right", overflow="fold")
    for name, cells in rows:
        empty.add_row(name, *cells)
    return empty


def load_caption(condition: Condition) -> str:
    """Return of which time the load is, and what its words mean."""
    trial = next(trial for arm in condition.arms for trial in arm.valid)
    begin_ns, end_ns = trial.metrics.load.measured_ns
    end = format_duration(end_ns)
    span = f"from {format_duration(begin_ns)} to {end}" if begin_ns else f"of the first {end}"
    text = f"payload {span}: of the flows that start then, and what receivers accept then"
    if "discarded" in _by_arm(condition):
        text += "; discarded is what arrives twice, or out of order and is not kept"
    offered = (trial.metrics.load.total for arm in condition.arms for trial in arm.valid)
    if any(math.isnan(load.offered_bytes) for load in offered):
        text += "; flows that last as long as the trial offer no finite amount"
    return text


def _patterns(trial: Trial) -> tuple[str, ...]:
    return tuple(trial.metrics.load.patterns)


def _mean(arm: Arm, name: str, what: str) -> str:
    nothing = Load(math.nan, math.nan, math.nan, 1.0)
    loads = [trial.metrics.load for trial in arm.valid]
    parts = [load.total if name == TOTAL else load.patterns.get(name, nothing) for load in loads]
    return with_error(t_interval([getattr(part, what) for part in parts]), "share")
