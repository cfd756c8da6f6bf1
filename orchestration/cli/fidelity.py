"""`closloop fidelity`: four scenarios on two backends, and the page that compares them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestration.model.trial import BackendName

EPILOG = (
    "Examples:  closloop fidelity  |  closloop fidelity websearch --repeats 2 -o /tmp/page.md  |  "
    "closloop fidelity --against fluid"
)
_NOTES = "causes.md"


def fidelity(
    names: Annotated[list[str] | None, typer.Argument(help="Scenarios, by default all.")] = None,
    reference: Annotated[str, typer.Option("--reference", help="The backend A.")] = "emulated",
    against: Annotated[str, typer.Option("--against", help="The backend B.")] = "simulated",
    campaigns: Annotated[
        Path, typer.Option("--campaigns", help="Where the scenarios' files are.")
    ] = Path("examples/fidelity"),
    runs: Annotated[
        Path, typer.Option("--runs", help="Where the run folders are, or are made.")
    ] = Path("runs/fidelity"),
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=0, help="Trials side by side; 0: one a core.")
    ] = 1,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Repeats, instead of the files'.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "docs/fidelity.md"
    ),
) -> None:
    """Run the scenarios on both backends, what is not finished, and write the page.

    One trial runs at a time unless told otherwise, so that the speeds are of one core each.

    Exit code: 0 done, 1 a trial failed or is invalid, 2 bad input, 3 not ready, 130 interrupted.
    """
    from orchestration.analysis.comparison.catalogue import Margins
    from orchestration.analysis.comparison.result import compare_runs
    from orchestration.cli.campaigns import backend_named, run_all
    from orchestration.cli.phases import Phases
    from orchestration.model.errors import NotReadyError
    from orchestration.studies.fidelity.fidelity_page import fidelity_page
    from orchestration.studies.fidelity.figures import SLOWDOWN_SHARE
    from orchestration.studies.fidelity.scenarios import load_scenarios

    sides: list[BackendName] = [backend_named(reference), backend_named(against)]
    chosen = {side: load_scenarios(campaigns, names or [], side, repeats) for side in sides}
    code = max(run_all(chosen[side], runs / side, jobs) for side in sides)
    margins = Margins(of={"slowdown_mean": SLOWDOWN_SHARE})
    found = {}
    with Phases() as phases:
        for name in chosen[sides[0]]:
            phases.phase(f"Comparing {name}")
            folders = [runs / side / name for side in sides]
            (found[name],) = compare_runs(folders, margins, phases.step)
    notes = campaigns / _NOTES
    text = fidelity_page(found, notes.read_text(encoding="utf-8") if notes.is_file() else "")
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotReadyError(
            f"{output} cannot be written: {reason}", "choose another with -o"
        ) from error
    typer.echo(f"page: {output}", err=True)
    raise typer.Exit(code)
