"""`closloop papers`: the papers' campaigns, and what came out of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

_EPILOG = (
    "Examples:  closloop papers list  |  closloop papers run graphcc-table1 --jobs 2  |  "
    "closloop papers results -o docs/results.md"
)
app = typer.Typer(
    no_args_is_help=True, help="Run the papers' campaigns and compare.", epilog=_EPILOG
)

_Names = Annotated[list[str] | None, typer.Argument(help="Campaigns, by default all.")]
_Campaigns = Annotated[
    Path, typer.Option("--campaigns", help="Where the campaign files are.", show_default=True)
]
_Runs = Annotated[Path, typer.Option("--runs", help="Where the run folders are, or are made.")]
_Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Trials side by side; 0: all.")]
_Repeats = Annotated[int | None, typer.Option("--repeats", help="Repeats, instead of the files'.")]
_Backend = Annotated[
    str | None, typer.Option("--on", help="Run on this backend: emulated or fluid.")
]
_Replace = Annotated[
    bool,
    typer.Option("--replace", help="Put aside finished trials that the files no longer describe."),
]

_FOLDER, _RUNS = Path("examples/papers"), Path("runs/papers")


@app.command("list")
def show_list(campaigns: _Campaigns = _FOLDER, runs: _Runs = _RUNS, jobs: _Jobs = 0) -> None:
    """List the campaigns: their trials, how many are finished, and how long all take."""
    from rich.console import Console
    from rich.table import Table

    from orchestration.campaign.plan import make_plan
    from orchestration.studies.papers.catalogue import load_campaigns

    side_by_side = jobs or len(os.sched_getaffinity(0))
    table = Table(box=None, pad_edge=False)
    for heading in ("campaign", "trials", "finished", "wall time of all"):
        table.add_column(heading, justify="left" if heading == "campaign" else "right")
    total_s = 0.0
    for grids in (True, False):
        for name, campaign in load_campaigns(campaigns, [], grids=grids).items():
            made = make_plan(campaign, side_by_side, runs)
            done = sum((runs / campaign.name / trial.id).is_dir() for trial in campaign.trials)
            total_s += made.wall_s
            count = len(campaign.trials)
            table.add_row(
                name, str(count), str(done) if done else "", f"{made.wall_s / 60:.1f} min"
            )
    Console().print(table)
    typer.echo(f"all, {side_by_side} trials side by side: about {total_s / 60:.0f} min")


@app.command("run", epilog=_EPILOG)
def run(
    names: _Names = None,
    campaigns: _Campaigns = _FOLDER,
    runs: _Runs = _RUNS,
    jobs: _Jobs = 0,
    repeats: _Repeats = None,
    backend: _Backend = None,
    replace: _Replace = False,
) -> None:
    """Run campaigns, one after the other. Given again, it goes on where it was.

    Exit code: 0 all valid, 1 some failed or invalid, 2 bad input, 3 not ready, 130 interrupted.
    """
    from orchestration.cli.campaigns import run_all
    from orchestration.studies.papers.catalogue import load_campaigns

    chosen = load_campaigns(campaigns, names or [], backend=backend, repeats=repeats)
    code = run_all(chosen, runs, jobs, replace=replace)
    typer.echo(f"the results, any time: closloop papers results --runs {runs}", err=True)
    raise typer.Exit(code)


@app.command("grid", epilog=_EPILOG)
def grid(
    names: _Names = None,
    campaigns: _Campaigns = _FOLDER,
    runs: _Runs = _RUNS,
    jobs: _Jobs = 0,
    repeats: _Repeats = None,
    backend: _Backend = None,
    replace: _Replace = False,
) -> None:
    """Search for the static setting with the lowest mean slowdown, and print it."""
    from orchestration.cli.campaigns import run_all
    from orchestration.studies.papers.catalogue import load_campaigns
    from orchestration.studies.papers.grid import rank_settings
    from orchestration.studies.papers.words import difference_text, estimate_text

    chosen = load_campaigns(campaigns, names or [], grids=True, backend=backend, repeats=repeats)
    code = run_all(chosen, runs, jobs, replace=replace)
    for name, campaign in chosen.items():
        best, *others = rank_settings(runs / campaign.name)
        typer.echo(f"{name}: mean slowdown {estimate_text(best.slowdown, 'ratio')}")
        typer.echo(f"  {best.entry}")
        if others:
            runner_up = others[0]
            behind = difference_text(runner_up.minus(best), "ratio")
            typer.echo(
                f"  runner-up of {len(others)}: {estimate_text(runner_up.slowdown, 'ratio')}, "
                f"{behind} from the best\n  {runner_up.entry}"
            )
    raise typer.Exit(code)


@app.command("results", epilog=_EPILOG)
def results(
    runs: _Runs = _RUNS,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "docs/results.md"
    ),
    claims: Annotated[
        Path | None, typer.Option("--claims", help="Other claims than the package's.")
    ] = None,
) -> None:
    """Write the results page from run folders: the papers' figures beside the measured ones."""
    from orchestration.cli.phases import Phases
    from orchestration.model.errors import NotReadyError
    from orchestration.studies.papers.claims import load_claims
    from orchestration.studies.papers.report import results_page

    file = load_claims(claims)
    with Phases() as phases:
        page = results_page(file, runs, phases.phase, phases.step)
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotReadyError(
            f"{output} cannot be written: {reason}", "choose another with -o"
        ) from (error)
    typer.echo(f"page: {output}", err=True)
