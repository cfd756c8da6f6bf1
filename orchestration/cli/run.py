"""`closloop run`: runs a campaign's trials and reports them."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.hardware import (
    AskBecomePass,
    AskPass,
    InventoryOption,
    enter_virtual_rack,
    rack_access,
)

if TYPE_CHECKING:
    from orchestration.campaign.expand import Campaign
    from orchestration.runner.run import Summary
    from orchestration.wiring import RackAccess

Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", "-j", min=0, help="Trials side by side; 0: one a core, as memory allows."
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Put earlier results aside and start anew.")]
Report = Annotated[
    bool, typer.Option("--report/--no-report", help="Report the results at the end.")
]


def run(
    file: Annotated[Path, typer.Argument(help="The campaign file.")],
    backend: Annotated[
        str | None,
        typer.Option("--on", help="Run on emulated, fluid, simulated or hardware."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Where the campaign's run folder is, or is made.")
    ] = Path("runs"),
    jobs: Jobs = 0,
    inventory: InventoryOption = None,
    ask_pass: AskPass = False,
    ask_become_pass: AskBecomePass = False,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Repeats, instead of the file's.")
    ] = None,
    fresh: Fresh = False,
    report: Report = True,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the fabric while it runs, as closloop watch does.")
    ] = False,
    sink: Annotated[
        str,
        typer.Option(
            "--sink", envvar="CLOSLOOP_SINK", help="Send the records there too, live: influx."
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print how the run went as JSON, and no report.")
    ] = False,
) -> None:
    """Run a campaign. Given again after Ctrl-C or a crash, it goes on where it was.

    Exit code: 0 all valid, 1 some failed or invalid, 2 bad input, 3 not ready, 130 interrupted.

    Examples: closloop run examples/quickstart.yml --on fluid

    closloop run examples/quickstart.yml --on hardware --inventory rack.yml
    """
    spare_threads()

    from orchestration.campaign.expand import load_campaign

    campaign = load_campaign(file, backend=backend, repeats=repeats)
    rack = rack_of(campaign, inventory, ask_pass, ask_become_pass)
    summary = run_loaded(campaign, rack, out, jobs, fresh=fresh, watch=watch, sink=sink)
    show(summary, report=report, as_json=as_json)
    raise typer.Exit(summary.exit_code)


def spare_threads() -> None:
    """Let NumPy have no threads of its own: trials run side by side, a core each."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def rack_of(
    campaign: Campaign, inventory: Path | None, ask_pass: bool, ask_become_pass: bool
) -> RackAccess | None:
    """Return how to reach the rack that a campaign needs; None if it needs none, or has none.

    For a virtual rack the whole command runs inside it, and this does not return.
    """
    if campaign.trials[0].backend != "hardware" or inventory is None:
        return None
    enter_virtual_rack(inventory)
    return rack_access(inventory, ask_pass, ask_become_pass)


def run_loaded(
    campaign: Campaign,
    rack: RackAccess | None,
    out: Path,
    jobs: int,
    *,
    fresh: bool = False,
    watch: bool = False,
    sink: str = "",
) -> Summary:
    """Run a campaign into `out`, `jobs` trials side by side (0: one a core); show how it goes.

    With `watch`, show its fabric too; with a `sink`, send the records there.
    """
    from orchestration import wiring
    from orchestration.cli.display import open_display
    from orchestration.cli.telemetry import follow
    from orchestration.runner.run import default_jobs, run_campaign

    following = follow(sink, out / campaign.name)
    engine = wiring.backend(campaign.trials[0].backend, rack)
    side_by_side = jobs or default_jobs(campaign, engine)
    title = f"{campaign.name} on {engine.name}"
    watched = out / campaign.name if watch else None
    with following or nullcontext(), open_display(title, watched=watched) as display:
        listener = following.before(display) if following else display
        spool = following.spool if following else None
        return run_campaign(campaign, engine, out, side_by_side, listener, fresh=fresh, spool=spool)


def show(summary: Summary, *, report: bool, as_json: bool) -> None:
    """Print how a run went: as JSON, or as tables with the report of its results."""
    if as_json:
        typer.echo(json.dumps(_as_json(summary), indent=1))
    else:
        _show(summary, report=report)


def _show(summary: Summary, *, report: bool) -> None:
    from rich.console import Console

    from orchestration.cli.display import summary_table
    from orchestration.cli.report import report as report_verb

    Console().print(summary_table(summary))
    if report and summary.trials > len(summary.failed):
        report_verb(summary.folder)
    typer.echo(f"again, any time: closloop report {summary.folder}", err=True)


def _as_json(summary: Summary) -> dict[str, Any]:
    return {
        "folder": str(summary.folder),
        "trials": summary.trials,
        "finished": summary.finished,
        "finished_earlier": summary.skipped,
        "invalid": {trial: list(reasons) for trial, reasons in summary.invalid.items()},
        "failed": {
            trial: {"message": failure.message, "remedy": failure.remedy}
            for trial, failure in summary.failed.items()
        },
        "wall_s": round(summary.wall_s, 3),
    }
