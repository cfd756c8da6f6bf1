"""The request for a search, checked against its campaign before anything runs, and its trials.

A search replaces the campaign's tuners by settings of its own and keeps everything else: testbed,
traffic and factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from inventory.routing import flow_controls, ignores_marks
from orchestration.analysis.metric_types import Metric
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.trial_metrics import figures
from orchestration.campaign.cells import read_cells
from orchestration.campaign.expand import Campaign, expand, trial_seed
from orchestration.core.capabilities import capabilities
from orchestration.core.condition import TUNER, campaign_tuner_name
from orchestration.core.errors import InputError, check_known
from orchestration.core.pattern import REPEAT
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar, TrialSpec, TunerSpec
from orchestration.results.question import compared_factor
from orchestration.results.reader import TrialResult, finished_trials, read_trial
from orchestration.search.halving import MetricValues, SearchBudget, TrialKey
from orchestration.search.space import (
    Space,
    dcqcn_space,
    label_of,
    threshold_space,
    timeout_space,
    with_ranges,
)

# Called with a stage's name and its campaign: runs the trials that are not finished.
RunTrials = Callable[[str, Campaign], None]

_SUFFIX = "-search"
_LONGEST_NAME = 64


def search_name(campaign: str) -> str:
    """Return the name of the run folder of a campaign's search."""
    return campaign[: _LONGEST_NAME - len(_SUFFIX)] + _SUFFIX


@dataclass(frozen=True)
class SearchedCampaign:
    """A campaign as a search uses it: a template of a trial for each of its conditions.

    The search sets tuner and seed of the `templates`. `cells` are the levels of the conditions, in
    the same order. `name` is that of the search's run folder, `seed` the campaign's seed, and
    `tuner_location` where the campaign file has its tuners.
    """

    campaign_name: str
    name: str
    path: Path
    source: str
    seed: int
    tuner: str
    templates: tuple[TrialSpec, ...]
    cells: tuple[dict[str, Scalar], ...]
    testbeds: Mapping[str, Testbed]
    tuner_location: str

    def trial(self, key: TrialKey) -> TrialSpec:
        """Return the trial of a setting in a condition at a seed."""
        return replace(
            self.templates[key.condition],
            campaign=self.name,
            tuner=TunerSpec(self.tuner, dict(key.setting)),
            seed=trial_seed(self.seed, key.seed.number, key.seed.purpose),
            repeat=key.seed.number,
            cell={TUNER: label_of(key.setting), **self.cells[key.condition]},
        )

    def campaign(self, trials: Sequence[TrialSpec]) -> Campaign:
        """Return trials as a campaign, for the runner."""
        cells = tuple({str(trial.cell): trial.cell for trial in trials}.values())
        locations = dict.fromkeys(
            (campaign_tuner_name(trial) for trial in trials), self.tuner_location
        )
        return Campaign(
            self.name, self.path, self.source, cells, tuple(trials), self.testbeds, locations
        )

    def check_folder(self, folder: Path) -> None:
        """Raise InputError if the run folder has trials of another search."""
        own = {_without_choice(template) for template in self.templates}
        for path in finished_trials(folder):
            if _without_choice(read_trial(path).spec) not in own:
                raise InputError.single(
                    str(folder),
                    f"has trials of other conditions than {self.path} has now "
                    f"(such as {path.name})",
                    "keep both with --out, or move the old ones away with --fresh",
                )


def _without_choice(trial: TrialSpec) -> str:
    """Return all of a trial's specification that a search does not vary, as text."""
    data = trial.to_json()
    for key in ("campaign", "tuner", "seed", "repeat"):
        del data[key]
    del data["cell"][TUNER]
    return repr(data)


class TrialMeasurer:
    """Measures trials for a search: runs them, and adds their values of the metric.

    `without` lists the trials that have no value because they failed or are invalid.
    """

    def __init__(
        self,
        searched: SearchedCampaign,
        folder: Path,
        metric: Metric,
        values: MetricValues,
        run: RunTrials,
    ) -> None:
        self._searched = searched
        self._folder = folder
        self._metric = metric
        self._values = values
        self._run = run
        self.without: list[str] = []

    def measure(self, stage: str, keys: Sequence[TrialKey]) -> None:
        """Run the trials that are not measured yet, and add their values."""
        new = [key for key in dict.fromkeys(keys) if key not in self._values]
        if not new:
            return
        trials = {key: self._searched.trial(key) for key in new}
        self._run(stage, self._searched.campaign(self._in_blocks(trials)))
        for key, trial in trials.items():
            path = self._folder / trial.id
            value = metric_value(read_trial(path), self._metric) if path.is_dir() else None
            if value is None:
                self.without.append(trial.id)
            self._values.add(key, math.nan if value is None else value)

    def _in_blocks(self, trials: Mapping[TrialKey, TrialSpec]) -> list[TrialSpec]:
        """Return the trials seed by seed, and within each seed in random order."""
        ordered: list[TrialSpec] = []
        for seed in dict.fromkeys(key.seed for key in trials):
            block = [trial for key, trial in trials.items() if key.seed == seed]
            draws = np.random.default_rng([self._searched.seed, seed.number])
            ordered += [block[index] for index in draws.permutation(len(block)).tolist()]
        return ordered


def metric_value(result: TrialResult, metric: Metric) -> float | None:
    """Return a trial's value of the metric; that of long-lived flows is over the second half.

    It is NaN if no flow is of the metric's kind, and None if the trial is invalid.
    """
    if not result.stamp.valid:
        return None
    return figures(result, [metric.key], result.spec.duration_ns // 2)[metric.key]


Over = Literal["thresholds", "dcqcn", "timeouts"]
OVER: tuple[Over, ...] = ("thresholds", "dcqcn", "timeouts")
# The tuner that is searched, with parameters that serve to check the campaign and are replaced.
_TUNERS: dict[Over, dict[str, Scalar]] = {
    "thresholds": {"name": "static", "kmin_bytes": 5_000, "kmax_bytes": 200_000},
    "dcqcn": {"name": "static", "kmin_bytes": 5_000, "kmax_bytes": 200_000},
    "timeouts": {"name": "timeout", "timeout_ns": 200_000},
}


@dataclass(frozen=True)
class ConditionGroup:
    """The conditions, by their numbers, that share one best static setting, and the search space.

    `when` has the levels that they have in common.
    """

    when: dict[str, Scalar]
    conditions: tuple[int, ...]
    space: Space


@dataclass(frozen=True)
class SearchRequest:
    """A search: the campaign's file, what is searched, the metric that judges, and the budget.

    Each level of the factors `by` gets a best static setting of its own. With `with_dcqcn`, DCQCN's
    parameters are searched together with thresholds where hosts have DCQCN. `ranges` are texts like
    `NAME=MIN:MAX`.
    """

    file: Path
    backend: str | None = None
    over: Over = "thresholds"
    metric: str = "slowdown_mean"
    with_dcqcn: bool = False
    by: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    budget: SearchBudget = field(default_factory=SearchBudget)

    @cached_property
    def objective(self) -> Metric:
        """The metric. Raises InputError if it is unknown or may be 0, as regret is relative."""
        check_known(
            "--metric", "settings cannot be chosen by {!r}", [self.metric], METRICS.objectives
        )
        return METRICS[self.metric]

    @cached_property
    def searched(self) -> SearchedCampaign:
        """The campaign and its conditions. Raises InputError for what cannot be searched."""
        check_known("--over", "unknown: {!r}", [self.over], OVER, "use ")
        tuner = _TUNERS[self.over]
        cells = read_cells(self.file, backend=self.backend, repeats=1, tuners=[tuner])
        first = cells[0].file
        trials = {repr(trial.cell): trial for trial in expand(cells)}
        templates = [trials[repr({TUNER: first.tuners[0].called, **cell.labels})] for cell in cells]
        if capabilities(first.backend).on_rack:
            raise InputError.single(
                "--on hardware",
                "a search takes thousands of trials",
                "search on a twin of the rack: --on emulated",
            )
        file_per_repeat = any(
            REPEAT in path
            for template in templates
            for flows in template.traffic
            for path in flows.named("file")
        )
        if first.parent is not None or file_per_repeat:
            raise InputError.single(
                str(self.file),
                "replays recorded trials, and a search needs flows of its own seeds",
                "search the campaign that was recorded",
            )
        name = search_name(first.campaign)
        return SearchedCampaign(
            campaign_name=first.campaign,
            name=name,
            path=self.file,
            source=self.file.read_text(encoding="utf-8"),
            seed=first.seed,
            tuner=str(tuner["name"]),
            templates=tuple(replace(template, campaign=name) for template in templates),
            cells=tuple(cell.labels for cell in cells),
            testbeds={cell.testbed_name: cell.testbed for cell in cells},
            tuner_location=cells[0].tuner_locations[first.tuners[0].called],
        )

    @cached_property
    def groups(self) -> tuple[ConditionGroup, ...]:
        """The conditions by their levels of `by`. Raises InputError for unknown factors."""
        searched = self.searched
        factors, none = searched.cells[0], "the campaign has no factor {!r}"
        # a factor may be named as in `compare`: by the end of its path, and `arms`
        by = [compared_factor(name, factors) or name for name in self.by]
        check_known("--by", none, by, factors, "its factors are ")
        grouped: dict[tuple[Scalar, ...], list[int]] = {}
        for number, cell in enumerate(searched.cells):
            grouped.setdefault(tuple(cell[name] for name in by), []).append(number)
        return tuple(
            ConditionGroup(dict(zip(by, levels, strict=True)), tuple(numbers), self._space(numbers))
            for levels, numbers in grouped.items()
        )

    @property
    def cautions(self) -> list[str]:
        """Which conditions ignore the thresholds that are searched, as sentences.

        Raises InputError if all of them do.
        """
        searched = self.searched
        if self.over != "thresholds":
            return []
        ignoring = {
            ", ".join(f"{name} {level}" for name, level in cell.items()): flow_controls(bed, spec)
            for cell, spec in zip(searched.cells, searched.templates, strict=True)
            if ignores_marks(bed := searched.testbeds[spec.testbed], spec)
        }
        if len(ignoring) == len(searched.cells):
            controls = dict.fromkeys(name for names in ignoring.values() for name in names)
            what = (
                "thresholds make no difference: no flow responds to CE packets under "
                f"{', '.join(controls)}"
            )
            remedy = "use `congestion_control: dctcp` or dcqcn, which respond to them"
            raise InputError.single(str(self.file), what, remedy)
        return [
            f"{where}: no flow responds to CE packets under {', '.join(controls)}, so all "
            "thresholds are alike there; leave it out to save its trials"
            for where, controls in ignoring.items()
        ]

    def _space(self, conditions: Sequence[int]) -> Space:
        """Return the space that is searched under these conditions."""
        templates = [self.searched.templates[number] for number in conditions]
        testbeds = [self.searched.testbeds[template.testbed] for template in templates]
        nics = [template.host.roce for template in templates]
        under = all(nic is not None and nic.control == "dcqcn" for nic in nics)
        if self.over == "timeouts":
            if self.with_dcqcn:
                raise InputError.single("--with-dcqcn", "is for thresholds", "leave it out")
            return with_ranges(timeout_space(), self.ranges)
        # where groups differ, those without DCQCN are searched without its parameters
        needed = self.over == "dcqcn" or (self.with_dcqcn and not self.by)
        if needed and not under:
            alone = "search a campaign in which all hosts have it"
            raise InputError.single(
                str(self.file),
                "not all conditions have hosts with DCQCN, whose parameters are searched",
                alone
                if self.over == "dcqcn"
                else f"search them separately: --by with the factor that decides it, or {alone}",
            )
        if self.over == "dcqcn":
            return with_ranges(dcqcn_space(nics[0]), self.ranges)
        wide = self.with_dcqcn and under
        space = threshold_space(testbeds, nics[0], dcqcn=wide)
        return with_ranges(space, self.ranges)
