"""What a search asks for, as ordinary trials in a run folder, and their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from orchestration.analysis.metric import Metric
from orchestration.analysis.trial_figures import figures
from orchestration.campaign.expand import Campaign, trial_seed
from orchestration.core.condition import TUNER
from orchestration.core.errors import InputError
from orchestration.core.trial import Scalar, TrialSpec, TunerSpec
from orchestration.results.reader import TrialResult, finished_trials, read_trial
from orchestration.search.figures import Ask, Figures
from orchestration.search.space import label_of

# Runs trials that are not finished yet; told the name of the stage.
Run = Callable[[str, Campaign], None]

_SUFFIX = "-search"
_LONGEST_NAME = 64


def search_name(campaign: str) -> str:
    """Return the name of the run folder of a campaign's search."""
    return campaign[: _LONGEST_NAME - len(_SUFFIX)] + _SUFFIX


@dataclass(frozen=True)
class Scene:
    """The trials of a campaign that a search varies: one a condition, whatever its tuner and seed.

    `name` is that of the search's run folder. `cells` are the conditions' levels; `seed` is the
    campaign's.
    """

    campaign_name: str
    name: str
    path: Path
    source: str
    seed: int
    tuner: str
    templates: tuple[TrialSpec, ...]
    cells: tuple[dict[str, Scalar], ...]

    def trial(self, ask: Ask) -> TrialSpec:
        """Return the trial of a setting in a condition at a seed."""
        return replace(
            self.templates[ask.condition],
            campaign=self.name,
            tuner=TunerSpec(self.tuner, dict(ask.setting)),
            seed=trial_seed(self.seed, ask.seed.number, ask.seed.purpose),
            repeat=ask.seed.number,
            cell={TUNER: label_of(ask.setting), **self.cells[ask.condition]},
        )

    def campaign(self, trials: Sequence[TrialSpec]) -> Campaign:
        """Return trials as a campaign, for the runner."""
        cells = tuple({str(one.cell): one.cell for one in trials}.values())
        return Campaign(self.name, self.path, self.source, cells, tuple(trials))

    def check_folder(self, folder: Path) -> None:
        """Raise InputError if the run folder has trials that are none of this search's."""
        mine = {_without_choice(one) for one in self.templates}
        for path in finished_trials(folder):
            if _without_choice(read_trial(path).spec) not in mine:
                raise InputError.single(
                    str(folder),
                    f"holds trials of other conditions than {self.path} has now "
                    f"(such as {path.name})",
                    "keep both with --out, or put the old ones aside with --fresh",
                )


def _without_choice(trial: TrialSpec) -> str:
    """Return what a search does not vary of a trial, as text."""
    data = trial.to_json()
    for key in ("campaign", "tuner", "seed", "repeat"):
        del data[key]
    del data["cell"][TUNER]
    return repr(data)


class Trials:
    """Measures what a search asks for, by running trials. `run` runs them, `told` hears stages.

    A trial that failed, or is invalid, has no figure; `without` counts them.
    """

    def __init__(
        self,
        scene: Scene,
        folder: Path,
        metric: Metric,
        figures: Figures,
        run: Run,
    ) -> None:
        self._scene = scene
        self._folder = folder
        self._metric = metric
        self._figures = figures
        self._run = run
        self.without: list[str] = []

    def measure(self, stage: str, asks: Sequence[Ask]) -> None:
        """Run what is asked for and not known yet, and add its figures."""
        new = [ask for ask in dict.fromkeys(asks) if ask not in self._figures]
        if not new:
            return
        trials = {ask: self._scene.trial(ask) for ask in new}
        self._run(stage, self._scene.campaign(self._in_blocks(trials)))
        for ask, trial in trials.items():
            path = self._folder / trial.id
            figure = figure_of(read_trial(path), self._metric) if path.is_dir() else None
            if figure is None:
                self.without.append(trial.id)
            self._figures.add(ask, math.nan if figure is None else figure)

    def _in_blocks(self, trials: Mapping[Ask, TrialSpec]) -> list[TrialSpec]:
        """Return trials seed by seed, and within a seed in an order that is drawn."""
        ordered: list[TrialSpec] = []
        for seed in dict.fromkeys(ask.seed for ask in trials):
            block = [trial for ask, trial in trials.items() if ask.seed == seed]
            draws = np.random.default_rng([self._scene.seed, seed.number])
            ordered += [block[place] for place in draws.permutation(len(block)).tolist()]
        return ordered


def figure_of(result: TrialResult, metric: Metric) -> float | None:
    """Return a trial's figure: of flows that last, that of the trial's second half.

    NaN if it has none, because no flow is of the metric's kind; None if the trial is invalid.
    """
    if not result.stamp.valid:
        return None
    return figures(result, [metric.key], result.spec.duration_ns // 2)[metric.key]
