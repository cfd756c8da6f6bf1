"""Outcomes of benchmarks as text, as a Markdown page, as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from orchestration.studies.bench.outcome import Figure, Outcome

Outcomes = Sequence[tuple[str, Outcome]]


def as_text(outcome: Outcome) -> str:
    """Return one outcome for the terminal."""
    lines = [outcome.title]
    for figure in outcome.figures:
        wanted = f"  (wanted: {figure.wanted})" if figure.wanted else ""
        lines.append(f"  {_verdict(figure):4} {figure.what}: {figure.measured}{wanted}")
    lines += [f"       {note}" for note in outcome.notes]
    return "\n".join(lines)


def as_markdown(outcomes: Outcomes) -> str:
    """Return all outcomes as a page."""
    lines = [
        "# Benchmarks",
        "",
        f"Written by `closloop bench run … --markdown` on {datetime.now(UTC):%Y-%m-%d}, on "
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}. "
        "Wall times depend on the machine; everything else is virtual time.",
    ]
    for name, outcome in outcomes:
        lines += ["", f"## {outcome.title}", "", f"`closloop bench run {name}`", ""]
        lines += ["| | measured | wanted | |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {figure.what} | {figure.measured} | {figure.wanted} | {_verdict(figure)} |"
            for figure in outcome.figures
        ]
        lines += [f"\n{note}" for note in outcome.notes]
    return "\n".join(lines) + "\n"


def as_json(outcomes: Outcomes) -> str:
    """Return all outcomes with their raw data."""
    return json.dumps({name: asdict(outcome) for name, outcome in outcomes}, indent=1)


def _verdict(figure: Figure) -> str:
    return {True: "ok", False: "MISS", None: ""}[figure.holds]
