"""`closloop compare`: how two or more runs differ, with a verdict for each metric."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import Phases, print_json

_NOT_EQUIVALENT = 1


@verb(
    "Examples:  closloop compare runs/quickstart runs/replay  |  "
    "closloop compare A B --margin 5% --margin slowdown_mean=15%"
)
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders: of campaigns (runs/<campaign>), of single trials, or folders with "
            "some. The first is A, the reference.",
            metavar="A B ...",
        ),
    ],
    margin: Annotated[
        list[str] | None,
        typer.Option(
            help="Which difference is too small to matter: 5%, or for one metric "
            "slowdown_mean=15%. Default: 10%.",
            metavar="SHARE",
        ),
    ] = None,
    as_json: Json = False,
    out: Annotated[Path, "Write the page here."] = Path("compare.html"),
    html: Annotated[bool, "--html/--no-html", "Write the page."] = True,
) -> None:
    """Compare runs: is each metric equivalent, different, or is there not enough data?

    Trials are paired by cell and seed, a replay with its parent; flows are paired by their number.

    Exit code: 0 all metrics are equivalent, 1 some are not or there is not enough data, 2 bad
    input.
    """
    from orchestration.analysis.comparison.blocks import comparison_blocks, comparison_page
    from orchestration.analysis.comparison.equivalence import EQUIVALENT, parse_margins
    from orchestration.analysis.comparison.result import compare_runs
    from orchestration.core.outputs import check_outputs
    from orchestration.render.html import replace_file
    from orchestration.render.terminal import show
    from orchestration.results.reader import recorded_files

    margins = parse_margins(margin or [])
    if html:
        check_outputs([out], recorded_files(runs), "choose another with --out")
    with Phases() as phases:
        phases.phase("Reading pairs of trials")
        comparisons = compare_runs(runs, margins, phases.step)
    if as_json:
        from orchestration.analysis.comparison.blocks import comparisons_to_json

        print_json(comparisons_to_json(comparisons))
    else:
        show(*comparison_blocks(comparisons))
    if html:
        replace_file(out, comparison_page(comparisons))
        typer.echo(f"page: {out}", err=True)
    if any(comparison.verdict != EQUIVALENT for comparison in comparisons):
        raise typer.Exit(_NOT_EQUIVALENT)
