"""Running several campaigns, for the verbs that have some of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestration.model.trial import BackendName

if TYPE_CHECKING:
    from orchestration.campaign.expand import Campaign


def backend_named(name: str) -> BackendName:
    """Return a backend's name, checked. Raises InputError for one that runs nothing."""
    from orchestration.campaign.schema import check_backend
    from orchestration.model.errors import InputError

    try:
        return check_backend(name)
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        raise InputError.single("backend", what, remedy) from error


def run_all(campaigns: dict[str, Campaign], runs: Path, jobs: int, *, replace: bool = False) -> int:
    """Run campaigns, one after the other, and return the worst of their exit codes.

    With `replace`, finished trials that their files no longer describe are put aside first.
    """
    # Trials run side by side, a core each: NumPy's own threads would only be in the way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from rich.console import Console

    from orchestration import wiring
    from orchestration.cli.display import open_display, summary_table
    from orchestration.papers.stale import put_aside
    from orchestration.runner.run import default_jobs, run_campaign

    code = 0
    for number, campaign in enumerate(campaigns.values(), start=1):
        if replace and (count := put_aside(campaign, runs)):
            typer.echo(f"{campaign.name}: {count} trials of earlier settings put aside", err=True)
        engine = wiring.backend(campaign.trials[0].backend)
        side_by_side = jobs or default_jobs(campaign, engine)
        title = f"({number} of {len(campaigns)}) {campaign.name} on {engine.name}"
        with open_display(title) as display:
            summary = run_campaign(campaign, engine, runs, side_by_side, display)
        Console(stderr=True).print(summary_table(summary))
        code = max(code, summary.exit_code)
    return code
