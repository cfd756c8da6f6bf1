"""A search from its request to its result: for each group, halving and then verification."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from orchestration.campaign.expand import Campaign
from orchestration.campaign.limits import MAX_TRIALS
from orchestration.campaign.search_result import (
    RESULT_FORMAT,
    ResultCampaign,
    ResultGroup,
    ResultSeeds,
    SearchResult,
    fabric_digest,
)
from orchestration.core.errors import InputError
from orchestration.core.files import sha256_of
from orchestration.core.trial import Scalar
from orchestration.search.halving import (
    SEARCH,
    Halving,
    MetricValues,
    SearchBudget,
    Seed,
    TrialKey,
    stage_costs,
)
from orchestration.search.request import RunTrials, SearchRequest, TrialMeasurer
from orchestration.search.space import ranges_of
from orchestration.search.verify import FINALISTS, FINALISTS_OF_A_CONDITION, verify

Stage = tuple[str, int]
# More first settings than this take too long to plan; each runs under all conditions.
_MAX_SETTINGS = 10_000


def run_search(request: SearchRequest, out: Path, run: RunTrials) -> SearchResult:
    """Run a search, or continue it, in the run folder `out/<campaign>-search`; return its result.

    `run` runs the trials of a stage that are not finished; what it raises is raised here, too.
    Raises InputError before anything runs, and ClosloopError if no trial of a condition has a value
    of the metric.
    """
    searched, folder = request.searched, out / request.searched.name
    metric, groups = request.objective, request.groups
    searched.check_folder(folder)
    metric_values = MetricValues(higher=metric.better == "higher")
    trials = TrialMeasurer(searched, folder, metric, metric_values, run)
    results: list[tuple[Halving, ResultGroup]] = []
    for number, group in enumerate(groups, start=1):
        prefix = f"group {number} of {len(groups)}, " if len(groups) > 1 else ""
        measure = _prefixed(trials.measure, prefix)
        halving = Halving(
            group.space, group.conditions, request.budget, metric_values, measure, searched.seed
        )
        halving.run()
        cells = {one: searched.cells[one] for one in group.conditions}
        seeds = request.budget.verify
        results.append((halving, verify(halving, cells, seeds, metric_values, measure, group.when)))
    return _search_result(request, results, metric_values, trials.without)


@dataclass(frozen=True)
class SearchPlan:
    """What a search costs at most: the trials of each stage, and the first stage as a campaign."""

    stages: tuple[Stage, ...]
    first: Campaign

    @property
    def trials(self) -> int:
        """The maximum number of trials, unless ranges are widened."""
        return sum(count for _, count in self.stages)


def plan_search(request: SearchRequest) -> SearchPlan:
    """Return what a search costs at most. Raises InputError as `run_search` does."""
    budget, stages, keys = request.budget, [], []
    groups = request.groups
    _check_budget(budget, sum(len(group.conditions) for group in groups))
    for number, group in enumerate(groups, start=1):
        prefix = f"group {number} of {len(groups)}, " if len(groups) > 1 else ""
        conditions = len(group.conditions)
        settings = group.space.first(budget.settings, request.searched.seed)
        keys += [
            TrialKey(setting, condition, Seed(SEARCH, 1))
            for setting in settings
            for condition in group.conditions
        ]
        neighbours = max(len(group.space.neighbours(setting, 1.0)) for setting in settings)
        parts = stage_costs(budget, conditions, neighbours)
        finalists = FINALISTS + (FINALISTS_OF_A_CONDITION if conditions > 1 else 0)
        maximum = finalists * conditions * budget.verify
        stages += [(prefix + name, count) for name, count in parts]
        stages.append((f"{prefix}verification: {budget.verify} seeds", maximum))
    trials = [request.searched.trial(key) for key in keys]
    return SearchPlan(tuple(stages), request.searched.campaign(trials))


def _check_budget(budget: SearchBudget, conditions: int) -> None:
    """Raise InputError for a search that no machine could finish, or even plan."""
    counts = {"--settings": budget.settings, "--rounds": budget.rounds, "--verify": budget.verify}
    trials = sum(counts.values()) * conditions
    if budget.settings <= _MAX_SETTINGS and trials <= MAX_TRIALS:
        return
    is_settings = budget.settings > _MAX_SETTINGS
    option = "--settings" if is_settings else max(counts, key=lambda name: counts[name])
    limit = f"{_MAX_SETTINGS:,} settings" if is_settings else f"{MAX_TRIALS:,} trials"
    what = f"{counts[option]:,} under {conditions} conditions are more than {limit}"
    raise InputError.single(option, what, "use fewer")


def _prefixed(
    measure: Callable[[str, Sequence[TrialKey]], None], prefix: str
) -> Callable[[str, Sequence[TrialKey]], None]:
    return lambda stage, keys: measure(prefix + stage, keys)


def _search_result(
    request: SearchRequest,
    results: Sequence[tuple[Halving, ResultGroup]],
    metric_values: MetricValues,
    without: Sequence[str],
) -> SearchResult:
    searched = request.searched
    notes = [note for halving, _ in results for note in _by_name(halving.notes, searched.cells)]
    if without:
        notes.append(
            f"{len(without)} trials failed or are invalid, so that their settings rank last there: "
            f"{', '.join(without[:3])}{' …' if len(without) > 3 else ''}"
        )
    ranges: dict[str, tuple[Scalar, ...]] = {}
    for halving, _ in results:
        ranges |= ranges_of(halving.space)
    return SearchResult(
        found=RESULT_FORMAT,
        closloop=version("closloop"),
        campaign=ResultCampaign(
            name=searched.campaign_name,
            file=os.path.basename(searched.path),
            sha256=sha256_of(searched.path),
        ),
        backend=searched.templates[0].backend,
        tuner=searched.tuner,
        metric=request.metric,
        seeds=ResultSeeds(
            campaign=searched.seed,
            search=request.budget.rungs()[-1][1],
            verification=request.budget.verify,
        ),
        effort=asdict(request.budget),
        trials=len(metric_values),
        testbeds={bed.name: fabric_digest(bed) for bed in searched.testbeds.values()},
        ranges=ranges,
        notes=tuple(dict.fromkeys(notes)),
        groups=tuple(group for _, group in results),
    )


def _by_name(notes: Sequence[str], cells: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Return notes in which the numbers of conditions are replaced by their levels."""
    named = list(notes)
    for number in range(len(cells), 0, -1):
        levels = ", ".join(f"{name} {level}" for name, level in cells[number - 1].items())
        named = [note.replace(f"condition {number} ", f"{levels} ") for note in named]
    return named
