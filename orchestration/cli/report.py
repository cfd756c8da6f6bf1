"""`closloop report`: a campaign's finished trials as tables, a page, a PDF, CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.index import INDEX_FILE, REPORT_FILE, chosen_runs, report_index
from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import Phases, print_json
from orchestration.core.errors import InputError

PDF_FILE = "report.pdf"


@verb()
def report(
    run_folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="A campaign's folder, runs/<campaign>, or a trial's. Several, or a folder that "
            "holds campaigns: an index of them.",
        ),
    ],
    baseline: Annotated[str, "Compare the others with this tuner (default: a fixed setting)."] = "",
    as_json: Json = False,
    html: Annotated[bool, "--html/--no-html", f"Write {REPORT_FILE} into the folder."] = True,
    pdf: Annotated[bool, f"Write {PDF_FILE} as well. Needs Chromium."] = False,
    csv: Annotated[Path | None, "Write every figure's numbers into this folder."] = None,
    together: Annotated[
        bool, "Of a folder that holds campaigns: one report of all trials."
    ] = False,
    output: Annotated[
        Path | None, "--output", "-o", f"Of several: where {INDEX_FILE} is written."
    ] = None,
) -> None:
    """Report a campaign: FCT slowdown by flow size, paired differences, queues, marks.

    Trials whose stamp says invalid are listed and counted nowhere. Of several runs an index is
    written, index.html and index.json, with what each asks, its trials, its headline, when and
    with what it ran, and a link to its report, which is made where it is missing or old.

    Examples: closloop report runs/quickstart --pdf --csv figures

    closloop report runs  |  closloop report runs/a runs/b -o both
    """

    runs = [] if together else chosen_runs(run_folders)
    if len(runs) > 1:
        if pdf or csv:
            raise InputError.single(
                "--pdf, --csv", "are of one campaign", "name one run, or add --together"
            )
        report_index(run_folders, runs, output, baseline, as_json=as_json, html=html)
        return
    named = runs if len(run_folders) > 1 and runs else run_folders
    if len(named) > 1:
        raise InputError.single(
            "--together", "one folder is reported at a time", "name the folder that holds them"
        )
    if output is not None:
        raise InputError.single("--output", "is of an index of several runs", "leave it out")
    report_one(named[0], baseline, as_json=as_json, html=html, pdf=pdf, csv=csv)


def report_one(
    run_folder: Path,
    baseline: str = "",
    *,
    as_json: bool = False,
    html: bool = True,
    pdf: bool = False,
    csv: Path | None = None,
) -> None:
    """Report one campaign, or all trials beneath a folder as one."""
    from orchestration.analysis.summary import summarise

    if pdf:
        from orchestration.analysis.report.output import find_browser

        find_browser()  # fail before the work, not after it
    with Phases() as phases:
        phases.phase("reading trials")
        summary = summarise(run_folder, baseline, phases.step)
    if as_json:
        from orchestration.analysis.report.output import summary_to_json

        print_json(summary_to_json(summary))
    else:
        from orchestration.analysis.report.output import report_blocks
        from orchestration.render.terminal import show

        show(*report_blocks(summary))
    if not (html or pdf or csv):
        return
    from orchestration.analysis.report.report_page import build_report
    from orchestration.render.html import replace_file

    with Phases() as phases:
        phases.phase("drawing")
        made = build_report(summary, phases.step)
    if html:
        replace_file(run_folder / REPORT_FILE, made.html)
        typer.echo(f"page: {run_folder / REPORT_FILE}", err=True)
    if csv:
        from orchestration.analysis.report.output import write_csv

        typer.echo(f"csv: {len(write_csv(csv, summary, made.csv))} files in {csv}", err=True)
    if pdf:
        from orchestration.analysis.report.output import print_page

        with Phases() as phases:
            phases.phase("printing")
            print_page(made.html, run_folder / PDF_FILE)
        typer.echo(f"pdf: {run_folder / PDF_FILE}", err=True)
