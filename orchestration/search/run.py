"""A whole search: halving and verification by group, and the file that comes of it."""

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
# A plan makes the first settings, and each is measured under all conditions.
_MAX_SETTINGS = 10_000


def run_search(request: SearchRequest, out: Path, run: RunTrials) -> SearchResult:
    """Search and return what was found. Trials are in `out/<campaign>-search`, which it resumes.

    `run` runs the trials of a stage that are not finished. Raises what it raises; InputError before
    anything runs, and ClosloopError if a condition has no figure at all.
    """
    searched, folder = request.searched, out / request.searched.name
    metric, groups = request.objective, request.groups
    searched.check_folder(folder)
    metric_values = MetricValues(higher=metric.better == "higher")
    trials = TrialMeasurer(searched, folder, metric, metric_values, run)
    answers: list[tuple[Halving, ResultGroup]] = []
    for number, group in enumerate(groups, start=1):
        prefix = f"group {number} of {len(groups)}, " if len(groups) > 1 else ""
        measure = _prefixed(trials.measure, prefix)
        halving = Halving(
            group.space, group.conditions, request.effort, metric_values, measure, searched.seed
        )
        halving.run()
        cells = {one: searched.cells[one] for one in group.conditions}
        seeds = request.effort.verify
        answers.append((halving, verify(halving, cells, seeds, metric_values, measure, group.when)))
    return _search_result(request, answers, metric_values, trials.without)


@dataclass(frozen=True)
class SearchPlan:
    """What a search would cost: the most trials by stage, and the first stage as a campaign."""

    stages: tuple[Stage, ...]
    first: Campaign

    @property
    def trials(self) -> int:
        """The most trials in all, unless ranges must be widened."""
        return sum(count for _, count in self.stages)


def plan_search(request: SearchRequest) -> SearchPlan:
    """Return what a search would cost. Raises InputError as `run_search` does."""
    effort, stages, keys = request.effort, [], []
    groups = request.groups
    _check_effort(effort, sum(len(group.conditions) for group in groups))
    for number, group in enumerate(groups, start=1):
        prefix = f"group {number} of {len(groups)}, " if len(groups) > 1 else ""
        conditions = len(group.conditions)
        settings = group.space.first(effort.settings, request.searched.seed)
        keys += [
            TrialKey(setting, one, Seed(SEARCH, 1))
            for setting in settings
            for one in group.conditions
        ]
        around = max(len(group.space.neighbours(one, 1.0)) for one in settings)
        parts = stage_costs(effort, conditions, around)
        own = FINALISTS_OF_A_CONDITION if conditions > 1 else 0
        maximum = (FINALISTS + own) * conditions * effort.verify
        stages += [(prefix + name, count) for name, count in parts]
        stages.append((f"{prefix}verification: {effort.verify} seeds", maximum))
    trials = [request.searched.trial(ask) for ask in keys]
    return SearchPlan(tuple(stages), request.searched.campaign(trials))


def _check_effort(effort: SearchBudget, conditions: int) -> None:
    """Raise InputError if no machine would come to the end of a search, or of its plan."""
    counts = {"--settings": effort.settings, "--rounds": effort.rounds, "--verify": effort.verify}
    trials = sum(counts.values()) * conditions
    if effort.settings <= _MAX_SETTINGS and trials <= MAX_TRIALS:
        return
    is_settings = effort.settings > _MAX_SETTINGS
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
    answers: Sequence[tuple[Halving, ResultGroup]],
    metric_values: MetricValues,
    without: Sequence[str],
) -> SearchResult:
    searched = request.searched
    notes = [note for halving, _ in answers for note in _by_name(halving.notes, searched.cells)]
    if without:
        notes.append(
            f"{len(without)} trials failed or are invalid, and their settings rank last there: "
            f"{', '.join(without[:3])}{' …' if len(without) > 3 else ''}"
        )
    ranges: dict[str, tuple[Scalar, ...]] = {}
    for halving, _ in answers:
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
            search=request.effort.rungs()[-1][1],
            verification=request.effort.verify,
        ),
        effort=asdict(request.effort),
        trials=len(metric_values),
        testbeds={bed.name: fabric_digest(bed) for bed in searched.testbeds.values()},
        ranges=ranges,
        notes=tuple(dict.fromkeys(notes)),
        groups=tuple(group for _, group in answers),
    )


def _by_name(notes: Sequence[str], cells: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Return notes with the levels of conditions in place of their numbers."""
    named = list(notes)
    for number in range(len(cells), 0, -1):
        levels = ", ".join(f"{name} {level}" for name, level in cells[number - 1].items())
        named = [note.replace(f"condition {number} ", f"{levels} ") for note in named]
    return named
