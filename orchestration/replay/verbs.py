"""`closloop replay`: runs recorded flows again, on another backend or with changes."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from orchestration.cli.options import InventoryOption, Passwords, verb
from orchestration.cli.run import RunOptions, rack_access, with_rack_scale
from orchestration.core.machine import limit_numpy_threads
from orchestration.replay.request import ReplayRequest


@verb()
def replay(
    *,
    request: ReplayRequest,
    running: RunOptions,
    inventory: InventoryOption = None,
    passwords: Passwords,
    plan_only: Annotated[bool, "Write the campaign and show its plan; run nothing."] = False,
) -> None:
    """Replay a run: the same flows at the same times, with the same or another tuner.

    If this backend cannot repeat a setting that decides the run's results, the replay is refused,
    unless you choose a substitute: --congestion-control, --without, --testbed.

    The replay is a campaign of its own, in NAME.inputs with all files that it needs; the same
    command continues after Ctrl-C. Each trial records its parent. To compare them: closloop compare
    RUN runs/NAME

    Exit code: 0 all valid, 1 some failed or invalid, 2 bad input, 3 not ready, 130 interrupted.

    Examples: closloop replay runs/quickstart --on simulated

    closloop replay runs/quickstart --tuner amt --scale-rates 0.5
    """
    limit_numpy_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.replay.build import build_replays
    from orchestration.replay.engines import engine_of_replay

    replays = build_replays(request, running.out, fresh=running.fresh)
    for prepared in replays:
        for note in prepared.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"campaign: {prepared.file}", err=True)
    # check all campaigns before running the first
    campaigns = [load_campaign(prepared.file) for prepared in replays]
    ways = [
        dataclasses.replace(
            running,
            engine=engine_of_replay(prepared.trial, campaign.trials[0].backend, running.engine),
        )
        for prepared, campaign in zip(replays, campaigns, strict=True)
    ]
    rack = rack_access(campaigns[0], inventory, passwords)
    campaigns = [with_rack_scale(campaign, rack) for campaign in campaigns]
    if plan_only:
        from orchestration.cli.plan import show_plan

        for campaign, way in zip(campaigns, ways, strict=True):
            show_plan(campaign, rack, way)
        return
    exit_code = 0
    for campaign, way in zip(campaigns, ways, strict=True):
        summary = way.run(way.check(campaign), rack)
        running.show(summary)
        exit_code = max(exit_code, summary.exit_code)
    raise typer.Exit(exit_code)
