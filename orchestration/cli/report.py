"""`closloop report`: reports a campaign's finished trials as tables, a page, a PDF, CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import Phases, print_json

REPORT_FILE, PDF_FILE = "report.html", "report.pdf"


@verb()
def report(
    run_folder: Annotated[
        Path, "A campaign's folder, runs/<campaign>; a trial's; or one that holds campaigns."
    ],
    baseline: Annotated[str, "Compare the others with this tuner (default: a fixed setting)."] = "",
    as_json: Json = False,
    html: Annotated[bool, "--html/--no-html", f"Write {REPORT_FILE} into the folder."] = True,
    pdf: Annotated[bool, f"Write {PDF_FILE} as well. Needs Chromium."] = False,
    csv: Annotated[Path | None, "Write every figure's numbers into this folder."] = None,
) -> None:
    """Report a campaign: FCT slowdown by flow size, paired differences, queues, marks.

    Trials whose stamp says invalid are listed and counted nowhere.

    Example: closloop report runs/quickstart --pdf --csv figures
    """
    from orchestration.analysis.summary import summarise

    if pdf:
        from orchestration.analysis.report.pdf import find_browser

        find_browser()  # fail before the work, not after it
    with Phases() as phases:
        phases.phase("reading trials")
        summary = summarise(run_folder, baseline, phases.step)
    if as_json:
        from orchestration.analysis.tables import summary_to_json

        print_json(summary_to_json(summary), allow_nan=False)
    else:
        from rich.console import Console

        from orchestration.analysis.tables import report_tables

        Console().print(report_tables(summary))
    if not (html or pdf or csv):
        return
    from orchestration.analysis.document import replace_file
    from orchestration.analysis.report.report_page import build_report

    with Phases() as phases:
        phases.phase("drawing")
        made = build_report(summary, phases.step)
    if html:
        replace_file(run_folder / REPORT_FILE, made.html)
        typer.echo(f"page: {run_folder / REPORT_FILE}", err=True)
    if csv:
        from orchestration.analysis.report.csv_files import write_csv

        typer.echo(f"csv: {len(write_csv(csv, summary, made.csv))} files in {csv}", err=True)
    if pdf:
        from orchestration.analysis.report.pdf import print_page

        with Phases() as phases:
            phases.phase("printing")
            print_page(made.html, run_folder / PDF_FILE)
        typer.echo(f"pdf: {run_folder / PDF_FILE}", err=True)
