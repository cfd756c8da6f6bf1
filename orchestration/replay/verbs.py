"""`closloop replay`: runs recorded flows again, elsewhere or with changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import InventoryOption, Passwords, verb
from orchestration.cli.run import Running, on_rack, rack_of
from orchestration.run.own_process import spare_threads

if TYPE_CHECKING:
    from orchestration.replay.drafts import ReplayRequest


@dataclass(frozen=True)
class _Changes:
    """Options: what part of a run is replayed, and what is changed."""

    backend: Annotated[str, "--on", "Replay on this backend; default: the recorded one."] = ""
    tuner: Annotated[
        list[str],
        "Who decides: a tuner, or {name: ..., parameters}. Again for more. "
        "`recorded`, the default: the recorded actions.",
    ] = field(default_factory=lambda: ["recorded"])
    testbed: Annotated[str, "On this testbed, a name or a file."] = ""
    scale_rates: Annotated[float, "Multiply every link's rate by this."] = 1.0
    rate: Annotated[list[str], "A link's rate, like leaf1-spine1=50G. Again: more."] = field(
        default_factory=list
    )
    scale_thresholds: Annotated[bool, "Recorded thresholds in proportion to changed rates."] = False
    congestion_control: Annotated[
        str,
        "--congestion-control",
        "All flows under this, like dctcp; default: the recorded one.",
    ] = ""
    without: Annotated[
        list[str],
        "Leave out what this backend cannot repeat: shared-buffer, pfc, load-balancing, link-loss "
        "or drivers. Again: more.",
    ] = field(default_factory=list)
    trials: Annotated[str, "Only the trials of these names, like 'secn1-*'."] = ""
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=1, help="The first repeats only; of one trial, as many."),
    ] = None
    name: Annotated[str, "--name", "-o", "What the replay is called; default: made up."] = ""

    def request(self, run: Path) -> ReplayRequest:
        from orchestration.replay.campaign_file import parse_rate
        from orchestration.replay.drafts import ReplayRequest

        return ReplayRequest(
            run=run,
            backend=self.backend,
            tuners=tuple(self.tuner),
            trials=self.trials,
            repeats=self.repeats,
            name=self.name,
            testbed=self.testbed,
            scale_rates=self.scale_rates,
            rates=dict(parse_rate(text) for text in self.rate),
            scale_thresholds=self.scale_thresholds,
            congestion_control=self.congestion_control,
            without=tuple(self.without),
        )


@verb()
def replay(
    run: Annotated[Path, "A run folder, the folder of one trial, or a CSV of flows."],
    *,
    changes: _Changes,
    running: Running,
    inventory: InventoryOption = None,
    passwords: Passwords,
    plan_only: Annotated[bool, "Write the campaign and show its plan; run nothing."] = False,
) -> None:
    """Replay a run: the same flows at the same times, with the same or another tuner.

    What decides the run's results and this backend cannot repeat is refused, unless you name what
    takes its place: --congestion-control, --without, --testbed.

    The replay is a campaign of its own, in NAME.inputs with all that it needs; the same command
    goes on after Ctrl-C. Each trial knows its parent. Then: closloop compare RUN runs/NAME

    Exit code: 0 all valid, 1 some failed or invalid, 2 bad input, 3 not ready, 130 interrupted.

    Examples: closloop replay runs/quickstart --on simulated

    closloop replay runs/quickstart --tuner amt --scale-rates 0.5
    """
    spare_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.replay.build import build_replays

    replays = build_replays(changes.request(run), running.out, fresh=running.fresh)
    for made in replays:
        for note in made.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"campaign: {made.file}", err=True)
    # check all campaigns before running the first
    campaigns = [load_campaign(made.file) for made in replays]
    rack = rack_of(campaigns[0], inventory, passwords)
    campaigns = [on_rack(campaign, rack) for campaign in campaigns]
    if plan_only:
        from orchestration.cli.plan import show_plan

        for campaign in campaigns:
            show_plan(campaign, rack, running.jobs, running.out, as_json=running.as_json)
        return
    worst = 0
    for campaign in campaigns:
        summary = running.run(campaign, rack)
        running.show(summary)
        worst = max(worst, summary.exit_code)
    raise typer.Exit(worst)
