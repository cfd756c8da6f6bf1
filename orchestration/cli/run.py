"""`closloop run`, and running campaigns for other verbs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import (
    Clock,
    ClusterOption,
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
from orchestration.core.machine import spare_threads
from orchestration.core.problems import of_value, told

if TYPE_CHECKING:
    from orchestration.campaign.expand import Campaign
    from orchestration.run.backend_factory import RackAccess
    from orchestration.run.checked import CheckedCampaign
    from orchestration.run.executors import Executor
    from orchestration.run.runner import Summary


@dataclass(frozen=True)
class RunOptions:
    """Options: how campaigns are run, and how the result is reported."""

    out: Out = Path("runs")
    jobs: Jobs = 0
    fresh: Annotated[bool, "Put earlier results aside and start anew."] = False
    report: Annotated[bool, "--report/--no-report", "Report the results at the end."] = True
    cluster: ClusterOption = ""
    as_json: Json = False

    def run(
        self,
        campaign: CheckedCampaign,
        rack: RackAccess | None = None,
        *,
        watch: bool = False,
        sink: str = "",
    ) -> Summary:
        """Run a campaign with progress; `watch` shows its fabric, `sink` receives its records."""
        if self.cluster and (watch or sink):
            raise InputError.single(
                "--watch" if watch else "--sink",
                "trials on a cluster's nodes are not seen from here while they run",
                "leave it out, and see their run folders: closloop report, or closloop push",
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
        )

    def show(self, summary: Summary) -> None:
        """Print the result of a run: as JSON, or as tables with the report."""
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
        typer.echo(f"again, any time: closloop report {summary.folder}", err=True)


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
            "--sink", envvar="CLOSLOOP_SINK", help="Send the records there too, live: influx."
        ),
    ] = "",
) -> None:
    """Run a campaign. Given again after Ctrl-C or a crash, it goes on where it was.

    Exit code: 0 all valid, 1 some failed or invalid, 2 bad input, 3 not ready, 130 interrupted.

    Examples: closloop run examples/thresholds.yml --on fluid

    closloop run examples/thresholds.yml --on hardware --inventory rack.yml

    closloop run examples/quickstart.yml --cluster machines.yml
    """
    spare_threads()

    from orchestration.campaign.expand import load_campaign

    campaign = load_campaign(file, backend=backend, clock=clock, repeats=repeats)
    rack = rack_access(campaign, inventory, passwords)
    campaign = with_chosen_scale(with_rack_scale(campaign, rack), scale)
    summary = running.run(check_and_announce(campaign, running.jobs), rack, watch=watch, sink=sink)
    running.show(summary)
    raise typer.Exit(summary.exit_code)


def check_and_announce(campaign: Campaign, jobs: int) -> CheckedCampaign:
    """Check a campaign, and say what a user should know before `jobs` of its trials run at once.

    Raises InputError for one that cannot run.
    """
    from orchestration.run.checked import checked

    ready = checked(campaign)
    if not jobs and any(trial.clock for trial in ready.trials):
        typer.echo("in real time, on this machine's kernel: one trial at a time", err=True)
    for text in ready.notices():
        typer.echo(text, err=True)
    return ready


def rack_access(
    campaign: Campaign, inventory: Path | None, passwords: Passwords
) -> RackAccess | None:
    """Return the access to the rack that a campaign needs; None if it needs or has none.

    For a virtual rack, the whole command reruns inside it, and this does not return.
    """
    from orchestration.core.capabilities import capabilities

    if not capabilities(campaign.trials[0].backend).on_rack or inventory is None:
        return None
    enter_virtual_rack(inventory)
    return passwords.access(inventory)


def with_rack_scale(campaign: Campaign, rack: RackAccess | None) -> Campaign:
    """Return the campaign in the time of the rack that it runs on; say so if that is scaled."""
    if rack is None:
        return campaign
    from inventory.ansible import load_rack
    from orchestration.campaign.scale import describe_scale, with_scale

    made = with_scale(campaign, load_rack(rack.inventory).scale)
    if text := describe_scale(made):
        typer.echo(f"note: {text}", err=True)
    return made


def with_chosen_scale(campaign: Campaign, text: str | None) -> Campaign:
    """Return a campaign in real time, with the time that was asked for; say what it is.

    Raises InputError where a scale is not the campaign's to choose.
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
            else "trials that are not in real time carry any rates",
            "leave it out",
        )
    testbed = campaign.testbeds[campaign.trials[0].testbed]
    made = with_scale(campaign, parse_scale(text, testbed))
    if said := describe_scale(made):
        typer.echo(f"note: {said}", err=True)
    return made


def backend_named(name: str) -> str:
    """Return a valid backend name. Raises InputError for a backend that runs nothing."""
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
            trial: {**told(failure.problems), "problems": [p.to_json() for p in failure.problems]}
            for trial, failure in summary.failed.items()
        },
        "wall_s": round(summary.wall_s, 3),
        "repeats": [standing.to_json() for standing in summary.condition_statuses],
    }
