"""`closloop bench`: the figures that the project claims, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EPILOG = (
    "Examples:  closloop bench list  |  closloop bench run marking  |  "
    "closloop bench run all --markdown docs/benchmarks.md"
)
app = typer.Typer(no_args_is_help=True, help="Measure what the project claims.", epilog=_EPILOG)


@app.command("list")
def show_list() -> None:
    """List the benchmarks."""
    from orchestration.studies.bench.registry import BENCHMARKS, purpose

    for name in BENCHMARKS:
        typer.echo(f"{name:14} {purpose(name)}")


@app.command("run", epilog=_EPILOG)
def run(
    names: Annotated[list[str], typer.Argument(help="Benchmarks, or `all`.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures and raw data here.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write the figures as a page here.")
    ] = None,
) -> None:
    """Run benchmarks; exit with 1 if a figure misses its target."""
    from orchestration.studies.bench.benchmarks_page import as_json, as_markdown, as_text
    from orchestration.studies.bench.registry import chosen

    outcomes = []
    for name, measure in chosen(names).items():
        typer.echo(f"{name} …", err=True)
        outcome = measure()
        outcomes.append((name, outcome))
        typer.echo(as_text(outcome))
    if json_file:
        json_file.write_text(as_json(outcomes))
    if markdown:
        markdown.write_text(as_markdown(outcomes))
    if not all(outcome.holds for _, outcome in outcomes):
        raise typer.Exit(1)
