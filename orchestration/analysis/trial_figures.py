"""A trial's figure by the name of its metric: those of the report, and those that papers print.

A campaign names metrics that its repeats depend on. Names are the report's (`slowdown_p99_small`,
as `closloop report --json` and `--csv` have them) and the papers' (`slowdown_mean`, `fct_p99`, as
claims have them). The statistic may also come first, as in `mean_slowdown`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from inventory.strictyaml import suggest
from orchestration.analysis.balance_figures import balance_figures
from orchestration.analysis.flow_progress import flow_progress
from orchestration.analysis.metrics import METRIC, done_flows, measure
from orchestration.analysis.paper_metrics import PAPER_METRICS, port_figures
from orchestration.artifacts.reader import TrialResult


def canonical(name: str) -> str:
    """Return a metric's name as results have it; "" if there is no such metric."""
    first, _, rest = name.partition("_")
    for candidate in (name, f"{rest}_{first}"):
        if candidate in METRIC or candidate in PAPER_METRICS:
            return candidate
    return ""


def suggestion(name: str) -> str:
    """Return what to write in place of a name that is not known."""
    near = suggest(name, [*PAPER_METRICS, *METRIC])
    return f"{near}use one of {', '.join(PAPER_METRICS)}, or of the report: {', '.join(METRIC)}"


def figures(result: TrialResult, names: Iterable[str]) -> dict[str, float]:
    """Return a finished trial's figures by canonical name, NaN where it has none.

    Raises InputError for a table that cannot be read.
    """
    wanted = list(names)
    found: dict[str, float] = {}
    if any(name in METRIC for name in wanted):
        found |= measure(result).scalars
    papers = [name for name in wanted if name not in METRIC]
    if any(PAPER_METRICS[name].of_ports for name in papers):
        found |= {**port_figures(result), **balance_figures(result)}
    for metric in (PAPER_METRICS[name] for name in papers):
        if metric.of_flows is not None:
            found[metric.key] = metric.of_flows(done_flows(result))
        elif metric.of_progress is not None:
            progress = flow_progress(result)
            sampled = progress is not None and len(progress.t_ns) > 1
            found[metric.key] = metric.of_progress(progress) if progress and sampled else math.nan
    return {name: found.get(name, math.nan) for name in wanted}
