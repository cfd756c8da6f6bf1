"""`closloop papers`, `headroom` and `fidelity`: studies whose campaigns are in the source tree."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.analysis.metrics import TUNING_HEADROOM_METRICS
from orchestration.cli.options import (
    Campaigns,
    ClusterOption,
    Group,
    In,
    Jobs,
    Json,
    Page,
    Repeats,
    Runs,
    verb,
)
from orchestration.cli.run import RunOptions, backend_named
from orchestration.cli.terminal import Phases, print_json, write_page
from orchestration.core.machine import limit_numpy_threads
from orchestration.render.table import table
from orchestration.render.terminal import show
from orchestration.run.backend_factory import engine_for
from orchestration.run.launcher import executor_named

if TYPE_CHECKING:
    from orchestration.campaign.expand import Campaign

_PAPERS_EPILOG = (
    "Examples:  closloop papers list  |  closloop papers run graphcc-table1 --jobs 2  |  "
    "closloop papers run --cluster 192.0.2.1:6379  |  "
    "closloop papers results -o docs/generated/results.md"
)
papers = Group("Run the papers' campaigns and compare.", _PAPERS_EPILOG)

_FOLDER, _RUNS = Path("examples/papers"), Path("runs/papers")


@dataclass(frozen=True)
class _Options:
    """Options of `papers run`: which of the papers' campaigns to run, and how."""

    names: Annotated[
        list[str] | None, typer.Argument(help="Names of campaigns; by default all.")
    ] = None
    campaigns: Campaigns = _FOLDER
    runs: Runs = _RUNS
    jobs: Jobs = 0
    repeats: Repeats = None
    cluster: ClusterOption = ""
    backend: Annotated[str | None, "--on", "The backend to run on: emulated or fluid."] = None
    engine: In = ""
    replace: Annotated[
        bool, "Move away finished trials that the campaign files no longer describe."
    ] = False


@papers.command("list")
def list_papers(campaigns: Campaigns = _FOLDER, runs: Runs = _RUNS, jobs: Jobs = 0) -> None:
    """List the campaigns: their trials, how many are finished, and how long all of them take."""
    from orchestration.campaign.plan import make_plan
    from orchestration.papers.claims import load_campaigns

    side_by_side = jobs or len(os.sched_getaffinity(0))
    rows = []
    total_s = 0.0
    for name, campaign in load_campaigns(campaigns, []).items():
        engine = engine_for(campaign.trials, campaign.testbeds).engine
        plan = make_plan(campaign, side_by_side, runs, engine)
        done = sum((runs / campaign.name / trial.id).is_dir() for trial in campaign.trials)
        total_s += plan.wall_s
        trials, minutes = str(len(campaign.trials)), f"{plan.wall_s / 60:.1f} min"
        if (rule := campaign.repeats) is not None:
            minimum = sum(trial.repeat <= rule.minimum for trial in campaign.trials)
            trials = f"{minimum} to {trials}"
        rows.append([name, trials, str(done) if done else "", minutes])
    show(table(("campaign",), ("trials", "finished", "wall time of all"), rows))
    typer.echo(
        f"all, {side_by_side} trials side by side: about {total_s / 60:.0f} min of wall time"
    )


@papers.command("run", epilog=_PAPERS_EPILOG)
def run_papers(options: _Options) -> None:
    """Run campaigns, one after the other. The same command continues after a stop.

    Exit code: 0 all valid, 1 some failed or invalid, 2 bad input, 3 not ready, 130 interrupted.
    """
    from orchestration.papers.claims import load_campaigns

    chosen = load_campaigns(
        options.campaigns, options.names or [], backend=options.backend, repeats=options.repeats
    )
    running = RunOptions(options.runs, options.jobs, cluster=options.cluster, engine=options.engine)
    code = run_all(chosen, running, replace=options.replace)
    typer.echo(f"next: closloop papers results --runs {options.runs}", err=True)
    raise typer.Exit(code)


@papers.command("results", epilog=_PAPERS_EPILOG)
def write_results(
    runs: Runs = _RUNS,
    output: Page = Path("docs/generated/results.md"),
    claims: Annotated[Path | None, "A claims file to use in place of the package's."] = None,
    paper: Annotated[
        str, "Write only this paper's parts again, like RL-CC; the page keeps the others."
    ] = "",
) -> None:
    """Write the results page from run folders: the papers' numbers beside the measured ones.

    Two more files are written beside the page: its picture, PAGE-headroom.svg, and its headroom and
    verdicts as data, PAGE.json.
    """
    from orchestration.papers.results_page import page_files

    with Phases() as phases:
        files = page_files(runs, output, claims, paper, phases.phase, phases.step)
    for path, (what, text) in files.items():
        write_page(text, path, what)


@verb(
    "Examples:  closloop fidelity  |  closloop fidelity websearch --repeats 2 -o /tmp/page.md  |  "
    "closloop fidelity --against fluid"
)
def fidelity(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of scenarios; by default all.")
    ] = None,
    reference: Annotated[str, "The backend A."] = "emulated",
    against: Annotated[str, "The backend B."] = "simulated",
    campaigns: Campaigns = Path("examples/fidelity"),
    runs: Runs = Path("runs/fidelity"),
    jobs: Jobs = 1,
    repeats: Repeats = None,
    output: Page = Path("docs/generated/fidelity.md"),
) -> None:
    """Compare two backends on four scenarios: run what is not finished, and write a page.

    By default one trial runs at a time, so that the page can compare the speeds of one core.

    Exit code: 0 done, 1 a trial failed or is invalid, 2 bad input, 3 not ready, 130 interrupted.
    """
    from orchestration.core.outputs import check_outputs
    from orchestration.papers.claims import load_scenarios
    from orchestration.papers.fidelity import fidelity_page
    from orchestration.results.reader import recorded_files

    notes = campaigns / "causes.md"
    check_outputs([output], [notes, *campaigns.glob("*.y*ml"), *recorded_files([runs])])
    sides: list[str] = [backend_named(reference), backend_named(against)]
    chosen = {side: load_scenarios(campaigns, names or [], side, repeats) for side in sides}
    code = max(run_all(chosen[side], RunOptions(runs / side, jobs)) for side in sides)
    with Phases() as phases:
        folders = {name: [runs / side / name for side in sides] for name in chosen[sides[0]]}
        write_page(fidelity_page(folders, notes, phases.phase, phases.step), output)
    raise typer.Exit(code)


def run_all(campaigns: dict[str, Campaign], running: RunOptions, *, replace: bool = False) -> int:
    """Run campaigns one after the other; return the highest of their exit codes.

    With `replace`, finished trials that the campaign files no longer describe are moved away first.
    """
    limit_numpy_threads()

    from orchestration.cli.display import summary_table
    from orchestration.papers.claims import move_stale_trials
    from orchestration.render.numbers import clock_text
    from orchestration.render.terminal import show

    code = finished = 0
    begin_s = time.monotonic()
    with executor_named(running.cluster) as executor:
        for number, campaign in enumerate(campaigns.values(), start=1):
            if replace and (count := move_stale_trials(campaign, running.out)):
                text = f"{campaign.name}: moved away {count} trials of earlier settings"
                typer.echo(text, err=True)
            typer.echo(f"campaign {number} of {len(campaigns)}", err=True)
            summary = running.run_on(executor, running.check(campaign))
            show(summary_table(summary), file=sys.stderr)
            code = max(code, summary.exit_code)
            finished += summary.finished
    if len(campaigns) > 1:
        elapsed = clock_text(time.monotonic() - begin_s)
        typer.echo(f"all {len(campaigns)} campaigns: {finished} trials in {elapsed}", err=True)
    return code


@verb(
    "Examples:  closloop headroom runs/headroom --by nics --metric mice_p95  |  "
    "closloop headroom runs/headroom --setting nics -o headroom.md"
)
def headroom(
    run: Annotated[Path, "A run folder whose tuners are static settings."],
    *,
    metric: Annotated[
        list[str],
        "--metric",
        "A metric of the papers; each metric chooses its own settings.",
    ] = [*TUNING_HEADROOM_METRICS],  # noqa: B006
    by: Annotated[list[str], "--by", "A factor whose levels get a best setting each."] = [],  # noqa: B006
    setting: Annotated[
        list[str], "--setting", "A factor whose levels are part of the setting."
    ] = [],  # noqa: B006
    folds: Annotated[
        int, typer.Option(min=2, help="How many parts the seeds are split into; 2 are halves.")
    ] = 2,
    output: Annotated[
        Path | None,
        "--output",
        "-o",
        "A page to write the map into; .json and .svg files go beside it.",
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a tuner can win at most, by condition, over the best static setting.

    Headroom of a condition is how much slower the best single setting for all conditions is than
    the best setting for that condition. Seeds that choose settings do not judge them
    (docs/headroom.md). An existing page keeps the text above the map.

    Exit code: 0 done, 2 bad input.
    """
    from orchestration.core.outputs import check_outputs
    from orchestration.papers.headroom_map import (
        group_table,
        map_files,
        map_of_run,
        summary,
        to_json,
    )
    from orchestration.results.reader import recorded_files

    if output is not None:
        more = [output.with_suffix(suffix) for suffix in (".json", ".svg")]
        check_outputs([output, *more], recorded_files([run]))
    with Phases() as phases:
        made, left_out = map_of_run(run, metric, by, setting, folds, phases.phase, phases.step)
    for arm in left_out:
        typer.echo(f"left out, because it is not one static setting: {arm}", err=True)
    if as_json:
        print_json(to_json(made))
    else:
        for group in made.groups:
            show(group_table(made, group), "")
        for sentence in summary(made):
            typer.echo(sentence)
    if output is not None:
        for path, (what, text) in map_files(made, output).items():
            write_page(text, path, what)
