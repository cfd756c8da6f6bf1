"""`closloop replay`: a run's recorded flows again, somewhere else or with something changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.hardware import AskBecomePass, AskPass, InventoryOption
from orchestration.cli.run import (
    Fresh,
    Jobs,
    Report,
    rack_of,
    run_loaded,
    show,
    spare_threads,
)


def replay(
    run: Annotated[
        Path, typer.Argument(help="A run folder, the folder of one trial, or a CSV of flows.")
    ],
    backend: Annotated[
        str, typer.Option("--on", help="Replay on this backend; default: the recorded one.")
    ] = "",
    tuner: Annotated[
        list[str],
        typer.Option(
            "--tuner",
            help="Who decides: a tuner, or {name: ..., parameters}. Again for more. "
            "`recorded`, the default: the recorded actions.",
        ),
    ] = ["recorded"],  # noqa: B006
    testbed: Annotated[
        str, typer.Option("--testbed", help="On this testbed, a name or a file.")
    ] = "",
    scale_rates: Annotated[
        float, typer.Option("--scale-rates", help="Multiply every link's rate by this.")
    ] = 1.0,
    rate: Annotated[
        list[str], typer.Option("--rate", help="A link's rate, like leaf1-spine1=50G. Again: more.")
    ] = [],  # noqa: B006
    scale_thresholds: Annotated[
        bool,
        typer.Option(
            "--scale-thresholds", help="Recorded thresholds in proportion to changed rates."
        ),
    ] = False,
    trials: Annotated[
        str, typer.Option("--trials", help="Only the trials of these names, like 'secn1-*'.")
    ] = "",
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=1, help="The first repeats only; of one trial, as many."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", "-o", help="What the replay is called; default: made up.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="Where NAME and NAME.inputs are made.")] = Path(
        "runs"
    ),
    jobs: Jobs = 0,
    inventory: InventoryOption = None,
    ask_pass: AskPass = False,
    ask_become_pass: AskBecomePass = False,
    fresh: Fresh = False,
    report: Report = True,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Write the campaign and show its plan; run nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one document a campaign.")
    ] = False,
) -> None:
    """Replay a run: the same flows at the same times, with the same or another tuner.

    The replay is a campaign of its own, in NAME.inputs with all that it needs; the same command
    goes on after Ctrl-C. Each trial knows its parent. Then: closloop compare RUN runs/NAME

    Exit code: 0 all valid, 1 some failed or invalid, 2 bad input, 3 not ready, 130 interrupted.

    Examples: closloop replay runs/quickstart --on simulated

    closloop replay runs/quickstart --tuner amt --scale-rates 0.5
    """
    spare_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.replay.build import build_replays
    from orchestration.replay.drafts import ReplayRequest
    from orchestration.replay.testbed_file import parse_rate

    request = ReplayRequest(
        run=run,
        backend=backend,
        tuners=tuple(tuner),
        trials=trials,
        repeats=repeats,
        name=name,
        testbed=testbed,
        scale_rates=scale_rates,
        rates=dict(parse_rate(text) for text in rate),
        scale_thresholds=scale_thresholds,
    )
    replays = build_replays(request, out, fresh=fresh)
    for made in replays:
        for note in made.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"campaign: {made.file}", err=True)
    # all are checked before the first one runs
    campaigns = [load_campaign(made.file) for made in replays]
    if plan_only:
        from orchestration.cli.plan import plan

        for made in replays:
            plan(made.file, None, inventory, ask_pass, ask_become_pass, None, jobs, out, as_json)
        return
    rack = rack_of(campaigns[0], inventory, ask_pass, ask_become_pass)
    worst = 0
    for campaign in campaigns:
        summary = run_loaded(campaign, rack, out, jobs, fresh=fresh)
        show(summary, report=report, as_json=as_json)
        worst = max(worst, summary.exit_code)
    raise typer.Exit(worst)
