"""From run folders to the results page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestration.studies.papers.claims import ClaimsFile
from orchestration.studies.papers.results import evaluate_section, measure_campaign
from orchestration.studies.papers.results_page import build_page
from orchestration.studies.papers.verdicts import evaluate_claim


def results_page(
    file: ClaimsFile,
    runs: Path,
    phase: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> str:
    """Return the page of what lies under `runs`: a folder for each campaign, or none.

    `phase` is told which campaign is read, `progress` how many of its trials. The same folders give
    the same page. Raises InputError for a file that cannot be read.
    """
    results = {}
    for campaign in dict.fromkeys(section.campaign for section in file.sections):
        phase(f"reading {campaign}")
        trials = measure_campaign(runs / campaign, progress)
        for section in file.sections:
            if section.campaign == campaign:
                results[section.id] = evaluate_section(section, trials)
    claims = [evaluate_claim(claim, results[claim.section]) for claim in file.claims]
    return build_page(file, results, claims)
