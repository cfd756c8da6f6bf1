"""`closloop bench`: measures what the project claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.options import Group

_BENCH_EPILOG = (
    "Examples:  closloop bench list  |  closloop bench run marking  |  "
    "closloop bench run engine --beside ./other-engine  |  "
    "closloop bench run all --markdown docs/generated/benchmarks.md"
)
bench = Group("Measure what the project claims.", _BENCH_EPILOG)


@bench.command("list")
def list_benchmarks() -> None:
    """List the benchmarks."""
    from orchestration.bench.registry import BENCHMARKS, purpose

    for name in BENCHMARKS:
        typer.echo(f"{name:14} {purpose(name)}")


@bench.command("run", epilog=_BENCH_EPILOG)
def run_benchmarks(
    names: Annotated[list[str], "Benchmarks, or `all`."],
    json_file: Annotated[Path | None, "--json", "Write the figures and raw data here."] = None,
    markdown: Annotated[
        Path | None, "Write the figures into this page, where they replace former ones."
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="PROGRAM",
            help="Another packet engine, which `engine` measures in turn with closloop's.",
        ),
    ] = None,
) -> None:
    """Run benchmarks. Exit code: 1 if a figure misses its target, else 0."""
    from orchestration.bench.outcome import as_json, as_markdown, as_text
    from orchestration.bench.registry import select
    from orchestration.core.outputs import check_outputs, write_output

    check_outputs([path for path in (json_file, markdown) if path], [], "choose another")
    outcomes = []
    for name, measure in select(names, beside).items():
        typer.echo(f"{name} …", err=True)
        outcome = measure()
        outcomes.append((name, outcome))
        typer.echo(as_text(outcome))
    if json_file:
        write_output(json_file, as_json(outcomes), "choose another with --json")
    if markdown:
        former = markdown.read_text() if markdown.exists() else ""
        write_output(markdown, as_markdown(outcomes, former), "choose another with --markdown")
    if not all(outcome.holds for _, outcome in outcomes):
        raise typer.Exit(1)
