"""`closloop report`: a campaign's finished trials as tables, a page, a PDF, CSV files.

For several runs it makes an index of them, which links to their reports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import Phases, print_json
from orchestration.core.errors import InputError

if TYPE_CHECKING:
    from orchestration.analysis.index import Entry
    from orchestration.analysis.summary import Summary

REPORT_FILE, INDEX_FILE = "report.html", "index.html"


@dataclass(frozen=True)
class _QuestionOptions:
    """Options: what is compared, with what, and by which metrics that is judged."""

    compare: Annotated[
        str, "The factor whose levels are compared (default: the campaign's): tuners, arms, ..."
    ] = ""
    baseline: Annotated[
        str, "The arm that the others are compared with (default: the first, or a fixed setting)."
    ] = ""
    judge: Annotated[
        str, "The metrics that decide which arm is best, separated by commas (default: see judge)."
    ] = ""

    def summarise(
        self, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Summary:
        """Return the summary of a folder's trials that answers this question."""
        from orchestration.analysis.summary import summarise

        judge = [name.strip() for name in self.judge.split(",") if name.strip()]
        return summarise(folder, self.baseline, progress, compare=self.compare, judge=judge)


def chosen_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the campaigns' folders at and below paths, each once; [] for a trial's folder.

    Raises InputError if one of several paths does not exist.
    """
    from orchestration.results.reader import trial_folders
    from orchestration.run.folder import run_folders

    campaigns: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            if len(paths) == 1:  # the report of a single run refuses it
                return []
            raise InputError.single(
                str(path), "there is no such folder", "name run folders, or a folder of some: runs"
            )
        trials = [folder for folder in trial_folders(path) if folder != path]
        for folder in sorted({*(trial.parent for trial in trials), *run_folders(path)}):
            campaigns.setdefault(folder.resolve(), folder)
    return list(campaigns.values())


def report_index(
    paths: Sequence[Path],
    runs: Sequence[Path],
    output: Path | None,
    options: _QuestionOptions,
    *,
    as_json: bool,
    html: bool,
) -> None:
    """Print an index of runs; with `html`, write it, and the reports that are missing or old."""
    from orchestration.analysis.index import index_blocks, index_page, index_to_json
    from orchestration.core.outputs import check_outputs
    from orchestration.render.html import replace_file
    from orchestration.render.json import json_text
    from orchestration.render.terminal import show
    from orchestration.results.reader import recorded_files

    page = _page(paths, output, INDEX_FILE)
    data = page.with_suffix(".json")
    if html:
        check_outputs([page, data], recorded_files(runs))
    entries = []
    with Phases() as phases:
        phases.phase(f"reading {len(runs)} runs")
        for index, run in enumerate(runs):
            phases.step(index, len(runs))
            entries.append(_read(run, page.parent, options, html=html))
    title = page.parent.resolve().name
    if as_json:
        print_json(index_to_json(entries))
    else:
        show(*index_blocks(title, entries))
    if html:
        replace_file(page, index_page(title, entries, data.name))
        replace_file(data, json_text(index_to_json(entries)) + "\n")
        typer.echo(f"page: {page}, and {data.name}", err=True)


def _page(paths: Sequence[Path], output: Path | None, name: str) -> Path:
    """Return the index's file: the given one, or one in the folder that contains all paths."""
    if output is not None:
        return output if output.suffix == ".html" else output / name
    if len(paths) == 1:
        return paths[0] / name
    return Path(os.path.relpath(os.path.commonpath([path.resolve() for path in paths]))) / name


def _read(run: Path, home: Path, options: _QuestionOptions, *, html: bool) -> tuple[Entry, str]:
    """Return a run's entry of the index, and the path of its report as seen from `home`.

    With `html`, a report is made if it is missing, or older than a trial.
    """
    from orchestration.analysis.index import entry_of, unread_entry
    from orchestration.analysis.report.report_page import build_page
    from orchestration.render.html import replace_file
    from orchestration.run.folder import read_history

    history, report = read_history(run), run / REPORT_FILE
    try:
        try:
            summary = options.summarise(run)
        except InputError:
            if options == _QuestionOptions():
                raise
            summary = _QuestionOptions().summarise(run)  # a run without that arm keeps its own
        if html and _is_old(report, run):
            replace_file(report, build_page(summary))
        entry = entry_of(run, summary, history)
    except InputError as error:
        return unread_entry(run, error.problems[0].text, history), ""
    link = os.path.relpath(report.resolve(), home.resolve()) if report.exists() else ""
    return entry, link


def _is_old(report: Path, run: Path) -> bool:
    """Return whether a report is missing, or older than one of the run's trials."""
    from orchestration.results.reader import finished_trials
    from orchestration.results.writer import TRIAL_FILE

    if not report.exists():
        return True
    made_s = report.stat().st_mtime
    return any((trial / TRIAL_FILE).stat().st_mtime > made_s for trial in finished_trials(run))


PDF_FILE = "report.pdf"


@verb()
def report(
    run_folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="The folder of a campaign, runs/<campaign>, or of a trial. Several, or a folder "
            "of campaigns, give an index of them.",
        ),
    ],
    *,
    options: _QuestionOptions,
    as_json: Json = False,
    full: Annotated[bool, "Print all tables, not the first screen alone."] = False,
    html: Annotated[bool, "--html/--no-html", f"Write {REPORT_FILE} into the folder."] = True,
    pdf: Annotated[bool, f"Also write {PDF_FILE}, which needs Chromium."] = False,
    csv: Annotated[Path | None, "Write the data of every figure into this folder."] = None,
    together: Annotated[
        bool, "Make one report of all trials in a folder of campaigns, not an index."
    ] = False,
    output: Annotated[
        Path | None, "--output", "-o", f"For several runs: where to write {INDEX_FILE}."
    ] = None,
) -> None:
    """Report a campaign: FCT slowdown by flow size, paired differences, queues, marks.

    Invalid trials are listed, and counted nowhere. For several runs, an index is written,
    index.html and index.json. For each run it has the question, the trials, the main result, time
    and versions, and a link to its report, which is made if it is missing or old.

    Examples: closloop report runs/quickstart --pdf --csv figures

    closloop report runs/a --compare load_balancing --baseline ecmp

    closloop report runs  |  closloop report runs/a runs/b -o both
    """

    runs = [] if together else chosen_runs(run_folders)
    if len(runs) > 1:
        if pdf or csv:
            raise InputError.single(
                "--pdf, --csv", "are for one campaign", "name one run, or add --together"
            )
        report_index(run_folders, runs, output, options, as_json=as_json, html=html)
        return
    named = runs if len(run_folders) > 1 and runs else run_folders
    if len(named) > 1:
        raise InputError.single(
            "--together", "needs a single folder", "name the folder that contains the others"
        )
    if output is not None:
        raise InputError.single("--output", "is for an index of several runs", "leave it out")
    report_one(named[0], options, as_json=as_json, full=full, html=html, pdf=pdf, csv=csv)


def report_one(
    run_folder: Path,
    options: _QuestionOptions = _QuestionOptions(),
    *,
    as_json: bool = False,
    full: bool = False,
    html: bool = True,
    pdf: bool = False,
    csv: Path | None = None,
) -> None:
    """Report one campaign, or all trials beneath a folder as one campaign."""
    if pdf:
        from orchestration.analysis.report.output import find_browser

        find_browser()  # fail before the work, not after it
    with Phases() as phases:
        phases.phase("reading trials")
        summary = options.summarise(run_folder, phases.step)
    if as_json:
        from orchestration.analysis.report.output import summary_to_json

        print_json(summary_to_json(summary))
    else:
        from orchestration.analysis.report.output import report_blocks
        from orchestration.render.terminal import show

        show(*report_blocks(summary), full=full)
        if not full:
            typer.echo(f"all tables: closloop report {run_folder} --full", err=True)
    if html or pdf or csv:
        _write_report(summary, run_folder, html=html, pdf=pdf, csv=csv)


def _write_report(
    summary: Summary, run_folder: Path, *, html: bool, pdf: bool, csv: Path | None
) -> None:
    """Draw a report, and write it as a page, a PDF, or CSV files; print their paths."""
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
