"""`closloop search`: finds the best static setting of a campaign, and of each of its conditions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.campaign.search_result import (
    Params,
    ResultGroup,
    ResultInterval,
    ResultRank,
    SearchResult,
)
from orchestration.cli.options import ClusterOption, In, Jobs, Json, On, Out, verb
from orchestration.cli.terminal import Phases, print_json
from orchestration.core.machine import limit_numpy_threads
from orchestration.core.roce import DCQCN_PARAMETERS
from orchestration.render.numbers import percents
from orchestration.render.table import table
from orchestration.render.terminal import show
from orchestration.run.launcher import executor_named, launch
from orchestration.search.space import describe

if TYPE_CHECKING:
    from orchestration.campaign.expand import Campaign
    from orchestration.campaign.search_result import SearchResult
    from orchestration.run.checked import CheckedCampaign
    from orchestration.run.executors import Executor
    from orchestration.search.run import SearchPlan


@dataclass(frozen=True)
class _BudgetOptions:
    """Options: how many trials the search may run."""

    settings: Annotated[int, typer.Option(min=3, help="How many settings to begin with.")] = 27
    rounds: Annotated[
        int, typer.Option(min=0, help="How many rounds of steps around the winners.")
    ] = 2
    verify: Annotated[int, typer.Option(min=2, help="How many fresh seeds verify the winners.")] = 8


@verb(
    "Examples:  closloop search examples/papers/graphcc-table1.yml --plan  |  "
    "closloop search my.yml --metric short_p99 --with-dcqcn --settings 81  |  "
    "closloop search drlet.yml --over timeouts --metric fct_mean  |  "
    "closloop search my.yml --cluster 192.0.2.1:6379"
)
def search(
    file: Annotated[Path, "The campaign file; its own tuners are ignored."],
    *,
    backend: On = None,
    metric: Annotated[
        str, "The metric that judges, one of the papers' metrics, like short_p99."
    ] = ("slowdown_mean"),
    over: Annotated[str, "What is searched: thresholds, dcqcn or timeouts."] = "thresholds",
    with_dcqcn: Annotated[bool, "Search DCQCN's parameters too, beside thresholds."] = False,
    by: Annotated[list[str], "--by", "A factor whose levels get a best setting each."] = [],  # noqa: B006
    ranges: Annotated[
        list[str], "--range", "The range of a parameter: NAME=MIN:MAX; repeat it for more."
    ] = [],  # noqa: B006
    budget: _BudgetOptions,
    output: Annotated[
        Path | None,
        "--output",
        "-o",
        "The result's file; default: search-results/CAMPAIGN.yml beside the campaign.",
    ] = None,
    out: Out = Path("runs"),
    jobs: Jobs = 0,
    cluster: ClusterOption = "",
    engine: In = "",
    fresh: Annotated[bool, "Move earlier trials away and start again."] = False,
    only_plan: Annotated[
        bool, "--plan", "Show how many trials it takes at most; run nothing."
    ] = False,
    as_json: Json = False,
) -> None:
    """Search for the best static setting of a campaign, and of each of its conditions.

    Its trials are ordinary ones, at seeds of their own, in the folder CAMPAIGN-search under --out.
    The same command continues after Ctrl-C; the result is the same to the bit.

    Exit code: 0 done, 1 trials without values, 2 bad input, 3 not ready, 130 interrupted.
    """
    limit_numpy_threads()

    from orchestration.campaign.search_result import RESULTS_FOLDER, search_result_yaml
    from orchestration.core.outputs import check_outputs, write_output
    from orchestration.run.checked import checked
    from orchestration.search.halving import SearchBudget
    from orchestration.search.request import SearchRequest
    from orchestration.search.run import plan_search, run_search

    request = SearchRequest(
        file=file,
        backend=backend,
        over=over,  # type: ignore[arg-type]  # checked with the rest
        metric=metric,
        with_dcqcn=with_dcqcn,
        by=tuple(by),
        ranges=tuple(ranges),
        budget=SearchBudget(budget.settings, budget.rounds, budget.verify),
    )
    name = request.objective.key
    made = plan_search(request)
    for caution in request.cautions:
        typer.echo(caution, err=True)
    first = checked(made.first, with_policies=True, engine=engine)
    if only_plan:
        _show_plan(made, first, out, jobs, as_json=as_json)
        return
    path = output or file.parent / RESULTS_FOLDER / f"{request.searched.campaign_name}.yml"
    check_outputs([path], [file, *(name for one in made.first.trials for name in one.files)])
    typer.echo(f"{made.first.name}: at most {made.trials} trials, judged by {name}", err=True)
    with executor_named(cluster) as executor:
        result = run_search(request, out, _Runner(first, out, jobs, executor, fresh=fresh).run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, search_result_yaml(result))
    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True))
        return
    _show(result, path, file)


class _Runner:
    """Runs the trials of each stage with the display of `closloop run`."""

    def __init__(
        self, first: CheckedCampaign, out: Path, jobs: int, executor: Executor, *, fresh: bool
    ) -> None:
        """`first` is the checked first stage; later stages differ from it in settings and seeds."""
        self._first = first
        self._out = out
        self._jobs = jobs
        self._executor = executor
        self._fresh = fresh

    def run(self, stage: str, campaign: Campaign) -> None:
        from orchestration.cli.display import open_display

        folder = self._out / campaign.name
        todo = [
            trial for trial in campaign.trials if self._fresh or not (folder / trial.id).is_dir()
        ]
        done = len(campaign.trials) - len(todo)
        typer.echo(f"{stage}: {len(campaign.trials)} trials, {done} finished earlier", err=True)
        if not todo:
            return
        launch(
            replace(self._first, cells=campaign.cells, trials=tuple(todo)),
            self._out,
            jobs=self._jobs,
            fresh=self._fresh,
            executor=self._executor,
            part_of_many=True,
            open_display=lambda _: open_display(f"{campaign.name}, {stage}"),
            open_progress=Phases,
        )
        self._fresh = False


def _show_plan(
    made: SearchPlan, campaign: CheckedCampaign, out: Path, jobs: int, *, as_json: bool
) -> None:
    import os

    from orchestration.campaign.plan import make_plan
    from orchestration.render.numbers import clock_text

    engine = campaign.engine
    side_by_side = 1 if made.first.runs_one_at_a_time else jobs or len(os.sched_getaffinity(0))
    first = make_plan(made.first, side_by_side, out, engine.engine)
    each_s = sum(trial.wall_s for trial in first.trials) / len(first.trials)
    wall_s = each_s * made.trials / side_by_side
    if as_json:
        stages = [{"stage": stage, "trials": count} for stage, count in made.stages]
        where = {"engine": engine.engine or None, "engine_reason": engine.reason or None}
        print_json({"stages": stages, "trials": made.trials, "wall_s": round(wall_s, 1), **where})
        return
    show(table(("stage",), ("trials, at most",), made.stages))
    typer.echo(
        f"at most {made.trials} trials, {side_by_side} side by side: about {clock_text(wall_s)} "
        "of wall time; more if a winner lies at the edge of a range"
    )
    if engine.engine:
        typer.echo(engine.sentence)


def _show(result: SearchResult, path: Path, campaign: Path) -> None:
    import os

    from orchestration.search.space import describe

    rows = [
        [
            when_text(condition.when) or "the only one",
            describe(tuple(condition.oracle.items())),
            share(condition.headroom),
        ]
        for group in result.groups
        for condition in group.conditions
    ]
    heads = ("condition", "oracle: the best setting there")
    show(table(heads, ("headroom: best-static is worse by",), rows))
    relative_path = os.path.relpath(path, campaign.parent)
    for sentence in sentences(result, relative_path):
        typer.echo(sentence)
    typer.echo(f"search result: {path}", err=True)


def sentences(result: SearchResult, file: str) -> list[str]:
    """Return the result as lines of text, the most important first."""
    lines = []
    for group in result.groups:
        lines += _of_group(group)
        lines += _of_nics(group.best_static)
    lines += [f"note: {note}" for note in result.notes]
    return [*lines, f"in a campaign: {{name: {result.tuner}, label: best-static, from: {file}}}"]


def _of_group(group: ResultGroup) -> list[str]:
    where = when_text(group.when)
    lines = [f"best static setting{f' ({where})' if where else ''}: {_named(group.best_static)}"]
    lines += [f"  {line}" for line in _indistinguishable(group.ranking)]
    if len(group.conditions) > 1:
        lines.append(
            "  headroom, by how much it is worse than the best setting of each condition: "
            f"{share(group.headroom)} on average"
        )
    return lines


def _of_nics(setting: Params) -> list[str]:
    """Return DCQCN's parameters as a campaign file's settings of hosts, if the setting has any."""
    own = {name: value for name, value in setting.items() if name in DCQCN_PARAMETERS}
    text = ", ".join(f"{name}: {json.dumps(value)}" for name, value in own.items())
    return (
        [f"  in a campaign, without a tuner: host: {{roce: {{dcqcn: {{{text}}}}}}}"] if own else []
    )


def _indistinguishable(ranking: Sequence[ResultRank]) -> list[str]:
    """Return which verified settings are not significantly worse than the best, as lines."""
    best = ranking[0].setting
    similar = [rank for rank in ranking[1:] if not rank.differs]
    if not similar:
        return ["all other verified settings are worse beyond chance"] if ranking[1:] else []
    identical = [rank for rank in similar if rank.behind is not None and rank.behind.is_nothing]
    lines = ["identical to it at every seed:"] if identical else []
    lines += [f"  with {_difference(best, rank.setting)}" for rank in identical]
    others = [rank for rank in similar if rank not in identical]
    lines += ["not distinguishable from it:"] if others else []
    return lines + [
        f"  with {_difference(best, rank.setting)}"
        + (f": {share(rank.behind)}" if rank.behind else "")
        for rank in others
    ]


def _difference(best: Params, other: Params) -> str:
    return _named({name: value for name, value in other.items() if value != best[name]})


def when_text(when: Mapping[str, Any]) -> str:
    """Return the levels of a condition as text; "" without any."""
    return ", ".join(f"{name} {level}" for name, level in when.items())


def share(interval: ResultInterval) -> str:
    """Return an interval of regret in per cent: `+3.1 % [+1.0, +5.2]`."""
    low, high = (math.nan if end is None else end for end in (interval.low, interval.high))
    return percents(interval.mean, low, high, digits=1).replace("%", " %")


def _named(params: Params) -> str:
    return describe(tuple(params.items()))
