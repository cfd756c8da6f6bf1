"""Running several campaigns, for the verbs that have some of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestration.cli.run import run_loaded, spare_threads
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
    spare_threads()

    from rich.console import Console

    from orchestration.cli.display import summary_table
    from orchestration.studies.papers.stale import put_aside

    code = 0
    for number, campaign in enumerate(campaigns.values(), start=1):
        if replace and (count := put_aside(campaign, runs)):
            typer.echo(f"{campaign.name}: {count} trials of earlier settings put aside", err=True)
        typer.echo(f"campaign {number} of {len(campaigns)}", err=True)
        summary = run_loaded(campaign, None, runs, jobs)
        Console(stderr=True).print(summary_table(summary))
        code = max(code, summary.exit_code)
    return code
