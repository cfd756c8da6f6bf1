"""Ranks the settings of a finished grid: static thresholds by mean slowdown, DCQCN's parameters by
power, flowlet timeouts by mean FCT.

A grid of DCQCN's parameters has factors with their names; its other factors are conditions, over
which a seed's figures are averaged. Flowlet timeouts are ranked for each load apart, by mean FCT as
in DRLet's figure 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestration.analysis.flow_progress import flow_progress
from orchestration.analysis.metrics import done_flows
from orchestration.analysis.paper_metrics import PAPER_METRICS, PaperMetric
from orchestration.analysis.statistics import Estimate, PairedDifference, t_interval
from orchestration.artifacts.reader import TrialResult, finished_trials, read_trial
from orchestration.model.errors import InputError
from orchestration.model.roce import DCQCN_PARAMETERS
from orchestration.model.trial import Scalar
from orchestration.model.units import format_duration, format_size
from orchestration.studies.papers.condition import difference_by_seed

Params = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class Setting:
    """A setting: its parameters, and its figure over the repeats and by seed."""

    params: dict[str, Scalar]
    metric: PaperMetric
    figure: Estimate
    by_seed: dict[int, float]

    @property
    def entry(self) -> str:
        """The setting as an entry to copy into a campaign file, of `tuners` or of a factor."""
        fields = ", ".join(f"{key}: {_value(key, value)}" for key, value in self.params.items())
        if self.metric.key == "power":
            return f"best-dcqcn: {{congestion_control: dcqcn, roce: {{dcqcn: {{{fields}}}}}}}"
        if "timeout_ns" in self.params:
            return f"{{name: timeout, {fields}}}"
        return f"{{name: static, label: best-static, {fields}}}"

    def minus(self, other: Setting) -> PairedDifference:
        """Return this setting's figure minus another's, over their common seeds."""
        return difference_by_seed(self.by_seed, other.by_seed)


def rank_settings(folder: Path) -> dict[str, list[Setting]]:
    """Return the settings of a grid's folder, the best first.

    They are ranked together, under the key "", but flowlet timeouts by load. Invalid trials do not
    count. A setting with fewer valid trials than another is left out, because it may have missed
    the hard seeds. Raises InputError if no trial is valid.
    """
    trials: dict[str, list[TrialResult]] = {}
    for path in finished_trials(folder):
        result = read_trial(path)
        if result.stamp.valid:
            spec = result.spec
            by_load = spec.tuner.name == "timeout" and "load" in spec.cell
            trials.setdefault(f"load {spec.cell['load']}" if by_load else "", []).append(result)
    if not trials:
        raise InputError.single(str(folder), "holds no valid trial", "run it: closloop papers grid")
    return {key: _ranked(trials[key]) for key in sorted(trials)}


def _ranked(trials: list[TrialResult]) -> list[Setting]:
    found: dict[Params, dict[int, list[float]]] = {}
    timeouts = "timeout_ns" in trials[0].spec.tuner.params
    metric = PAPER_METRICS["fct_mean" if timeouts else "slowdown_mean"]
    for result in trials:
        cell = result.spec.cell.items()
        params = tuple((key, value) for key, value in cell if key in DCQCN_PARAMETERS)
        if params:
            metric = PAPER_METRICS["power"]
        params = params or tuple(result.spec.tuner.params.items())
        by_seed = found.setdefault(params, {})
        by_seed.setdefault(result.spec.seed, []).append(_figure(result, metric))
    most = max(sum(map(len, by_seed.values())) for by_seed in found.values())
    settings = []
    for params, by_seed in found.items():
        if sum(map(len, by_seed.values())) == most:
            means = {seed: float(np.mean(values)) for seed, values in by_seed.items()}
            settings.append(Setting(dict(params), metric, t_interval(list(means.values())), means))
    sign = -1 if metric.better == "higher" else 1
    return sorted(settings, key=lambda setting: (sign * setting.figure.mean, setting.entry))


def _figure(result: TrialResult, metric: PaperMetric) -> float:
    """Return a trial's figure; for steady states that of its second half."""
    if metric.of_flows is not None:
        return metric.of_flows(done_flows(result))
    progress = flow_progress(result)
    assert metric.of_progress is not None
    if progress is None:
        return math.nan
    return metric.of_progress(progress.since(result.spec.duration_ns // 2))


def _value(key: str, value: Scalar) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if key.endswith("_ns") and isinstance(value, int):
        return format_duration(value)
    return str(value)
