"""Ranks the static settings of a finished grid by mean slowdown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestration.analysis.metrics import done_flows
from orchestration.analysis.paper_metrics import PAPER_METRICS
from orchestration.analysis.statistics import Estimate, PairedDifference, t_interval
from orchestration.artifacts.reader import finished_trials, read_trial
from orchestration.model.errors import InputError
from orchestration.model.trial import Scalar
from orchestration.model.units import format_size
from orchestration.studies.papers.results import difference_by_seed

METRIC = "slowdown_mean"


@dataclass(frozen=True)
class Setting:
    """A static setting: its parameters, its mean slowdown over the repeats, and that by seed."""

    params: dict[str, Scalar]
    slowdown: Estimate
    by_seed: dict[int, float]

    @property
    def entry(self) -> str:
        """The setting as a tuner entry to copy into a campaign file."""
        fields = ", ".join(f"{key}: {_value(key, value)}" for key, value in self.params.items())
        return f"{{name: static, label: best-static, {fields}}}"

    def minus(self, other: Setting) -> PairedDifference:
        """Return this setting's slowdown minus another's, over their common seeds."""
        return difference_by_seed(self.by_seed, other.by_seed)


def rank_settings(folder: Path) -> list[Setting]:
    """Return the settings of a grid's folder, lowest mean slowdown first.

    Invalid trials do not count. A setting with fewer valid trials than another is left out, because
    it may have missed the hard seeds. Raises InputError if no trial is valid.
    """
    of_flows = PAPER_METRICS[METRIC].of_flows
    assert of_flows is not None
    by_params: dict[tuple[tuple[str, Scalar], ...], dict[int, float]] = {}
    for path in finished_trials(folder):
        result = read_trial(path)
        if result.stamp.valid:
            params = tuple(result.spec.tuner.params.items())
            by_params.setdefault(params, {})[result.spec.seed] = of_flows(done_flows(result))
    if not by_params:
        raise InputError.single(str(folder), "holds no valid trial", "run it: closloop papers grid")
    most = max(len(by_seed) for by_seed in by_params.values())
    settings = [
        Setting(dict(params), t_interval(list(by_seed.values())), by_seed)
        for params, by_seed in by_params.items()
        if len(by_seed) == most
    ]
    return sorted(settings, key=lambda setting: (setting.slowdown.mean, setting.entry))


def _value(key: str, value: Scalar) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    return str(value)
