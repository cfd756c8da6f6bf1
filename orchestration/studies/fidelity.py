"""Do two backends agree? The page that says where, and why not: figures, verdicts, causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.equivalence import EQUIVALENT
from orchestration.analysis.comparison.result import ComparedCell, RunComparison
from orchestration.artifacts.reader import TrialResult

# How far a simulated fabric may be from the emulated one before a cause has to be named.
RTT_SHARE, GOODPUT_SHARE, SLOWDOWN_SHARE = 0.02, 0.02, 0.15
SPEED_RATIO = 5.0


@dataclass(frozen=True)
class Figure:
    """One figure of both backends. `holds` is None where nothing was measured."""

    what: str
    a: str
    b: str
    difference: str
    wanted: str
    holds: bool | None


def figures(found: Mapping[str, RunComparison]) -> list[Figure]:
    """Return the figures of the scenarios that were run, by their names."""
    result: list[Figure] = []
    if "idle-path" in found:
        result += _base_rtts(found["idle-path"])
    if "one-flow" in found:
        result.append(_goodput(found["one-flow"]))
    if "websearch" in found:
        result += [_slowdown(found["websearch"]), _speed(found["websearch"])]
    return result


def _trials(comparison: RunComparison) -> tuple[list[TrialResult], list[TrialResult]]:
    pairs = [pair for cell in comparison.cells for pair in cell.pairs]
    return [pair.a.trial for pair in pairs], [pair.b.trial for pair in pairs]


def _base_rtts(comparison: RunComparison) -> list[Figure]:
    """Return the completion times of lone flows that are one packet."""
    sides = _trials(comparison)
    times = [_median_fct_ns(trials) for trials in sides]
    schedule = sides[0][0].table("schedule")
    found = []
    for flow in range(len(times[0])):
        src, dst, size = (schedule[name][flow] for name in ("src", "dst", "bytes"))
        a, b = float(times[0][flow]), float(times[1][flow])
        found.append(
            Figure(
                f"idle path {src} to {dst}, {size} B there and back",
                f"{a / 1e3:.3f} us",
                f"{b / 1e3:.3f} us",
                f"{b / a - 1:+.2%}",
                f"within {RTT_SHARE:.0%}",
                abs(b / a - 1) <= RTT_SHARE,
            )
        )
    return found


def _median_fct_ns(trials: Sequence[TrialResult]) -> np.ndarray:
    return np.median([trial.table("flows")["fct_ns"] for trial in trials], axis=0)


def _goodput(comparison: RunComparison) -> Figure:
    sides = _trials(comparison)
    size_bytes = int(sides[0][0].table("schedule")["bytes"][0])
    a, b = (size_bytes * 8 / float(_median_fct_ns(trials)[0]) for trials in sides)
    return Figure(
        f"one flow of {size_bytes // 10**6} MB, goodput",
        f"{a:.3f} Gbit/s",
        f"{b:.3f} Gbit/s",
        f"{b / a - 1:+.2%}",
        f"within {GOODPUT_SHARE:.0%}",
        abs(b / a - 1) <= GOODPUT_SHARE,
    )


def _slowdown(comparison: RunComparison) -> Figure:
    item = next(item for item in comparison.judged if item.metric.key == "slowdown_mean_all")
    relative = item.interval.relative
    return Figure(
        "WebSearch at 60 %, mean slowdown",
        f"{item.a:.3f}",
        f"{item.b:.3f}",
        f"{relative:+.1%} [{item.interval.relative_low:+.1%}, {item.interval.relative_high:+.1%}]",
        f"within {SLOWDOWN_SHARE:.0%}",
        abs(relative) <= SLOWDOWN_SHARE,
    )


def _speed(comparison: RunComparison) -> Figure:
    a, b = comparison.speed_a.per_wall_s, comparison.speed_b.per_wall_s
    known = a is not None and b is not None
    return Figure(
        "WebSearch at 60 %, packet-hops a wall second, start included",
        f"{a:,.0f}" if a else "",
        f"{b:,.0f}" if b else "",
        f"{a / b:.1f} times as fast" if a and b else "",
        f"{SPEED_RATIO:.0f} times",
        (a or 0.0) / (b or 1.0) >= SPEED_RATIO if known else None,
    )


_CAUSES = 4
_HEAD = """\
# Fidelity: {a} against {b}

Written by `closloop fidelity`, which runs `examples/fidelity` on both backends: the same testbed,
the same flows, the same thresholds, {repeats} seeds each, paired. A is {a}, B is {b}.
"""
_TITLES = {
    "idle-path": "An idle path",
    "one-flow": "One flow alone",
    "incast": "16 senders to one receiver",
    "websearch": "WebSearch at 60 %",
}


def fidelity_page(found: Mapping[str, RunComparison], notes: str) -> str:
    """Return the page in Markdown. `notes` is text of people's own on causes, or ""."""
    first = next(iter(found.values()))
    pairs = max(len(cell.pairs) for comparison in found.values() for cell in comparison.cells)
    lines = [_HEAD.format(a=first.a.backend, b=first.b.backend, repeats=pairs)]
    lines += _figures(figures(found), first.a.backend, first.b.backend)
    if notes:
        lines += ["", notes.strip()]
    for name, comparison in found.items():
        lines += ["", f"## {_TITLES.get(name, name)}", "", sentences.answer(comparison)]
        for cell in comparison.cells:
            lines += _cell(cell)
        lines += ["", *(f"- {line}" for line in sentences.speeds(comparison))]
        lines += [f"- {note}" for note in comparison.notes]
    judged = [item.metric for item in first.judged]
    lines += ["", "## How verdicts are made", ""]
    lines.append(sentences.margins_note(judged, first.margins.default))
    lines.append(
        "The number of metrics differs by scenario; [compare.md](../compare.md) says more."
    )
    lines.append("Causes are ranked from what both trials recorded: suspects, not proof.")
    return "\n".join(lines) + "\n"


def _figures(rows: list[Figure], a: str, b: str) -> list[str]:
    words = {True: "holds", False: "**does not hold**", None: ""}
    table = [f"| | {a} | {b} | B against A | wanted | |", "| --- | --- | --- | --- | --- | --- |"]
    table += [
        f"| {row.what} | {row.a} | {row.b} | {row.difference} | {row.wanted} | {words[row.holds]} |"
        for row in rows
    ]
    return table


def _cell(cell: ComparedCell) -> list[str]:
    lines = ["", "| metric | A | B | B - A [95 %] | margin | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for item in cell.judged:
        a, b = sentences.values(item)
        said = item.verdict if item.verdict == EQUIVALENT else f"**{item.verdict}**"
        needs = sentences.needs(item)
        lines.append(
            f"| {item.metric.label} | {a} | {b} | {sentences.difference(item)} | "
            f"{sentences.allowed(item)} | {needs or said} |"
        )
    lines += ["", *(f"- {said}" for said in sentences.parting(cell))]
    if cell.causes:
        lines += ["", "Likely causes, the likeliest first:", ""]
        lines += [
            f"{number}. {cause.what}: {cause.a} and {cause.b}. {cause.why}"
            for number, cause in enumerate(cell.causes[:_CAUSES], start=1)
        ]
    return lines
