"""`closloop run`, and how other verbs run campaigns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import (
    Clock,
    ClusterOption,
    In,
    InventoryOption,
    Jobs,
    Json,
    On,
    Out,
    Passwords,
    Repeats,
    Scale,
    enter_virtual_rack,
    verb,
)
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError
from orchestration.core.machine import limit_numpy_threads
from orchestration.core.problems import message_and_remedy, of_value

if TYPE_CHECKING:
    from orchestration.campaign.expand import Campaign
    from orchestration.run.backend_factory import RackAccess
    from orchestration.run.checked import CheckedCampaign
    from orchestration.run.executors import Executor
    from orchestration.run.runner import Summary


@dataclass(frozen=True)
class RunOptions:
    """Options: how a campaign is run, and how its result is reported."""

    out: Out = Path("runs")
    jobs: Jobs = 0
    fresh: Annotated[bool, "Move earlier results aside, and start again."] = False
    report: Annotated[bool, "--report/--no-report", "Report the results at the end."] = True
    cluster: ClusterOption = ""
    engine: In = ""
    as_json: Json = False

    def check(self, campaign: Campaign) -> CheckedCampaign:
        """Return a campaign that was checked, and print what a user should know before it runs.

        Raises InputError for a campaign that cannot run.
        """
        from orchestration.run.checked import checked

        checked_campaign = checked(campaign, engine=self.engine)
        if not self.jobs and any(trial.clock for trial in checked_campaign.trials):
            typer.echo("in real time, on this machine's kernel: one trial at a time", err=True)
        for text in checked_campaign.notices():
            typer.echo(text, err=True)
        return checked_campaign

    def run(
        self,
        campaign: CheckedCampaign,
        rack: RackAccess | None = None,
        *,
        watch: bool = False,
        sink: str = "",
    ) -> Summary:
        """Run a campaign and show its progress.

        `watch` shows its fabric full-screen; `sink` is the name of what receives its records.
        Raises what `orchestration.run.launcher.launch` raises.
        """
        if self.cluster and (watch or sink):
            raise InputError.single(
                "--watch" if watch else "--sink",
                "trials on a cluster's nodes cannot be watched from here while they run",
                "leave it out, and use their run folders later: closloop report, or closloop push",
            )
        from orchestration.run.launcher import executor_named

        with executor_named(self.cluster) as executor:
            return self.run_on(executor, campaign, rack, watch=watch, sink=sink)

    def run_on(
        self,
        executor: Executor,
        campaign: CheckedCampaign,
        rack: RackAccess | None = None,
        *,
        watch: bool = False,
        sink: str = "",
    ) -> Summary:
        """Run a campaign's trials on an executor, as `run` does."""
        from orchestration.cli.display import open_display
        from orchestration.cli.terminal import Phases
        from orchestration.run.launcher import launch

        return launch(
            campaign,
            self.out,
            rack=rack,
            jobs=self.jobs,
            fresh=self.fresh,
            executor=executor,
            sink=sink,
            open_display=partial(open_display, watched=self.out / campaign.name if watch else None),
            open_progress=Phases,
        )

    def show(self, summary: Summary) -> None:
        """Print the result of a run: as JSON, or as tables with its report."""
        if self.as_json:
            print_json(_as_json(summary))
            return
        from orchestration.cli.display import summary_table
        from orchestration.cli.report import report_one
        from orchestration.render.terminal import show

        reports = self.report and summary.trials > len(summary.failed)
        show(summary_table(summary, warnings=not reports))
        if reports:
            report_one(summary.folder)
        typer.echo(f"to see the report again: closloop report {summary.folder}", err=True)


@verb()
def run(
    file: Annotated[Path, "The campaign file."],
    *,
    backend: On = None,
    clock: Clock = None,
    scale: Scale = None,
    repeats: Repeats = None,
    running: RunOptions,
    inventory: InventoryOption = None,
    passwords: Passwords,
    watch: Annotated[bool, "Show the fabric while it runs, as closloop watch does."] = False,
    sink: Annotated[
        str,
        typer.Option(
            "--sink", envvar="CLOSLOOP_SINK", help="Also send the records there, live: influx."
        ),
    ] = "",
) -> None:
    """Run a campaign. After Ctrl-C or a crash, the same command continues it.

    Exit code: 0 all trials are valid, 1 some failed or are invalid, 2 bad input, 3 not ready, 130
    interrupted.

    Examples: closloop run examples/thresholds.yml --on fluid

    closloop run examples/thresholds.yml --on hardware --inventory rack.yml

    closloop run examples/quickstart.yml --cluster machines.yml
    """
    limit_numpy_threads()

    from orchestration.campaign.expand import load_campaign

    campaign = load_campaign(file, backend=backend, clock=clock, repeats=repeats)
    rack = rack_access(campaign, inventory, passwords)
    campaign = with_chosen_scale(with_rack_scale(campaign, rack), scale)
    summary = running.run(running.check(campaign), rack, watch=watch, sink=sink)
    running.show(summary)
    raise typer.Exit(summary.exit_code)


def rack_access(
    campaign: Campaign, inventory: Path | None, passwords: Passwords
) -> RackAccess | None:
    """Return the access to the rack that a campaign needs; None if it needs none or has none.

    For a virtual rack, the whole command runs again inside it, and this does not return.
    """
    from orchestration.core.capabilities import capabilities

    if not capabilities(campaign.trials[0].backend).on_rack or inventory is None:
        return None
    enter_virtual_rack(inventory)
    return passwords.access(inventory)


def with_rack_scale(campaign: Campaign, rack: RackAccess | None) -> Campaign:
    """Return the campaign with the scale of the rack that it runs on; print a note on it."""
    if rack is None:
        return campaign
    from inventory.ansible import load_rack
    from orchestration.campaign.scale import describe_scale, with_scale

    scaled = with_scale(campaign, load_rack(rack.inventory).scale)
    if text := describe_scale(scaled):
        typer.echo(f"note: {text}", err=True)
    return scaled


def with_chosen_scale(campaign: Campaign, text: str | None) -> Campaign:
    """Return a campaign in real time with the scale of --scale, and print a note.

    `text` is a number, "auto", or None for no scale. Raises InputError for trials that cannot have
    a chosen scale.
    """
    if text is None:
        return campaign
    from orchestration.backends.emulated.forwarding import parse_scale
    from orchestration.campaign.scale import describe_scale, with_scale
    from orchestration.core.capabilities import capabilities

    if not campaign.trials[0].clock:
        raise InputError.single(
            "--scale",
            "trials on a rack have the rack's scale"
            if capabilities(campaign.trials[0].backend).on_rack
            else "only trials in real time need a scale",
            "leave it out",
        )
    testbed = campaign.testbeds[campaign.trials[0].testbed]
    scaled = with_scale(campaign, parse_scale(text, testbed))
    if note := describe_scale(scaled):
        typer.echo(f"note: {note}", err=True)
    return scaled


def backend_named(name: str) -> str:
    """Return a backend's present name. Raises InputError if no campaign can run on it."""
    from orchestration.campaign.schema import check_backend

    try:
        return check_backend(name)
    except ValueError as error:
        raise InputError([of_value(error, "backend")]) from error


def _as_json(summary: Summary) -> dict[str, Any]:
    return {
        "folder": str(summary.folder),
        "trials": summary.trials,
        "finished": summary.finished,
        "finished_earlier": summary.skipped,
        "invalid": {trial: list(reasons) for trial, reasons in summary.invalid.items()},
        "warned": {trial: list(reasons) for trial, reasons in summary.warned.items()},
        "failed": {
            trial: {
                **message_and_remedy(failure.problems),
                "problems": [p.to_json() for p in failure.problems],
            }
            for trial, failure in summary.failed.items()
        },
        "wall_s": round(summary.wall_s, 3),
        "repeats": [status.to_json() for status in summary.condition_statuses],
    }
