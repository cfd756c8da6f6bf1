"""`closloop report`: what a campaign's finished trials show, as tables and one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

REPORT_FILE = "report.html"


def report(
    run_folder: Annotated[Path, typer.Argument(help="A campaign's folder: runs/<campaign>.")],
    baseline: Annotated[
        str, typer.Option(help="Compare the others with this tuner (default: a fixed setting).")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables, for a program.")
    ] = False,
    html: Annotated[
        bool, typer.Option("--html/--no-html", help=f"Write {REPORT_FILE} into the folder.")
    ] = True,
) -> None:
    """Report a campaign: FCT slowdown by flow size, paired differences, queues, marks.

    Trials whose stamp says invalid are listed and counted nowhere.

    Example: closloop report runs/quickstart
    """
    from orchestration.analysis.summary import summarise

    summary = summarise(run_folder, baseline)
    if as_json:
        from orchestration.analysis.export import summary_to_json

        typer.echo(json.dumps(summary_to_json(summary), indent=1, allow_nan=False))
    else:
        from rich.console import Console

        from orchestration.analysis.tables import report_tables

        Console().print(report_tables(summary))
    if html:
        from orchestration.analysis.report.page import write_page

        path = run_folder / REPORT_FILE
        write_page(summary, path)
        typer.echo(f"page: {path}", err=True)
