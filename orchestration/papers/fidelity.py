"""The fidelity page: where two backends agree, where they differ, and the likely causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestration.analysis.comparison import sentences
from orchestration.analysis.comparison.blocks import verdict_table
from orchestration.analysis.comparison.causes import ORDER
from orchestration.analysis.comparison.equivalence import Margins
from orchestration.analysis.comparison.result import ComparedCell, RunComparison, compare_runs
from orchestration.render.markdown import markdown_table, rows_table
from orchestration.render.numbers import percents
from orchestration.render.table import strong

# Larger differences between the simulated and the emulated fabric need a stated cause.
RTT_SHARE, GOODPUT_SHARE, SLOWDOWN_SHARE = 0.02, 0.02, 0.15
_SPEED_RATIO = 5.0


@dataclass(frozen=True)
class _Figure:
    """One measurement on both backends. `holds` is None if nothing was measured."""

    name: str
    a: str
    b: str
    difference: str
    limit: str
    holds: bool | None


def _within(name: str, a: float, b: float, unit: str, share: float) -> _Figure:
    """Return a measurement of both backends, which holds if B differs from A by at most a share."""
    relative = b / a - 1
    values = f"{a:.3f} {unit}", f"{b:.3f} {unit}"
    return _Figure(name, *values, f"{relative:+.2%}", f"within {share:.0%}", abs(relative) <= share)


def _figures(comparisons: Mapping[str, RunComparison]) -> list[_Figure]:
    """Return the measurements of the scenarios, whose comparisons are keyed by name."""
    result: list[_Figure] = []
    if "idle-path" in comparisons:
        schedule, times = _lone_flows(comparisons["idle-path"])
        for src, dst, size, a, b in zip(
            schedule["src"], schedule["dst"], schedule["bytes"], *times, strict=True
        ):
            name = f"idle path {src} to {dst}, {size} B, round trip"
            result.append(_within(name, a / 1e3, b / 1e3, "us", RTT_SHARE))
    if "one-flow" in comparisons:
        schedule, times = _lone_flows(comparisons["one-flow"])
        size = int(schedule["bytes"][0])
        a, b = (size * 8 / float(fct_ns[0]) for fct_ns in times)
        name = f"one flow of {size // 10**6} MB, goodput"
        result.append(_within(name, a, b, "Gbit/s", GOODPUT_SHARE))
    if "websearch" in comparisons:
        result += [_slowdown(comparisons["websearch"]), _speed(comparisons["websearch"])]
    return result


def _lone_flows(comparison: RunComparison) -> tuple[Mapping[str, np.ndarray], list[np.ndarray]]:
    """Return a scenario's schedule, and its flows' median completion times on both backends."""
    pairs = [pair for cell in comparison.cells for pair in cell.pairs]
    sides = [[pair.a.trial for pair in pairs], [pair.b.trial for pair in pairs]]
    times = [
        np.median([trial.table("flows")["fct_ns"] for trial in trials], axis=0) for trials in sides
    ]
    return sides[0][0].table("schedule"), times


def _slowdown(comparison: RunComparison) -> _Figure:
    item = next(item for item in comparison.metrics if item.metric.key == "slowdown_mean_all")
    relative = item.interval.relative
    return _Figure(
        "WebSearch at 60 %, mean slowdown",
        f"{item.a:.3f}",
        f"{item.b:.3f}",
        percents(relative, item.interval.relative_low, item.interval.relative_high, digits=1),
        f"within {SLOWDOWN_SHARE:.0%}",
        abs(relative) <= SLOWDOWN_SHARE,
    )


def _speed(comparison: RunComparison) -> _Figure:
    a, b = comparison.speed_a.per_wall_s, comparison.speed_b.per_wall_s
    known = a is not None and b is not None
    return _Figure(
        "WebSearch at 60 %, packet-hops per wall second, start included",
        f"{a:,.0f}" if a else "",
        f"{b:,.0f}" if b else "",
        f"{a / b:.1f} times as fast" if a and b else "",
        f"{_SPEED_RATIO:.0f} times",
        (a or 0.0) / (b or 1.0) >= _SPEED_RATIO if known else None,
    )


_CAUSES = 8
_HEAD = """\
# Fidelity: {a} against {b}

`closloop fidelity` writes this page. It runs `examples/fidelity` on both backends, with the same
testbed, flows and thresholds and {repeats} seeds each, which are paired. A is {a}, B is {b}.
"""
_TITLES = {
    "idle-path": "An idle path",
    "one-flow": "One flow alone",
    "incast": "16 senders to one receiver",
    "websearch": "WebSearch at 60 %",
}


def fidelity_page(
    folders: Mapping[str, Sequence[Path]],
    notes: Path,
    phase: Callable[[str], None],
    step: Callable[[int, int], None],
) -> str:
    """Return the page in Markdown; `folders` has the two run folders of each scenario.

    `notes` is a file of hand-written text on causes, which may be missing.
    """
    margins = Margins(of={"slowdown_mean": SLOWDOWN_SHARE})
    comparisons = {}
    for name, both in folders.items():
        phase(f"Comparing {name}")
        (comparisons[name],) = compare_runs(list(both), margins, step)
    return page_of(comparisons, notes.read_text(encoding="utf-8") if notes.is_file() else "")


def page_of(comparisons: Mapping[str, RunComparison], notes: str) -> str:
    """Return the page in Markdown. `notes` is hand-written text on causes, or ""."""
    first = next(iter(comparisons.values()))
    pairs = max(len(cell.pairs) for comparison in comparisons.values() for cell in comparison.cells)
    lines = [_HEAD.format(a=first.a.backend, b=first.b.backend, repeats=pairs)]
    lines += _table(_figures(comparisons), first.a.backend, first.b.backend)
    if notes:
        lines += ["", notes.strip()]
    for name, comparison in comparisons.items():
        lines += ["", f"## {_TITLES.get(name, name)}", "", sentences.answer(comparison)]
        for cell in comparison.cells:
            lines += _cell(cell)
        lines += ["", *(f"- {line}" for line in sentences.speeds(comparison))]
        lines += [f"- {note}" for note in comparison.notes]
    lines += ["", "## How verdicts are made", ""]
    lines.append(sentences.margins_note(first))
    lines.append(
        "The number of metrics differs by scenario; [compare.md](../compare.md) says more."
    )
    lines.append(
        f"Likely causes follow from what both trials recorded; they are not proven. {ORDER}"
    )
    return "\n".join(lines) + "\n"


def _table(rows: list[_Figure], a: str, b: str) -> list[str]:
    words = {True: "holds", False: strong("does not hold"), None: ""}
    heads = ("", a, b, "B against A", "limit", "")
    cells = [[r.name, r.a, r.b, r.difference, r.limit, words[r.holds]] for r in rows]
    return [rows_table(heads, cells).rstrip()]


def _cell(cell: ComparedCell) -> list[str]:
    lines = ["", markdown_table(verdict_table(cell))]
    lines += ["", *(f"- {sentence}" for sentence in sentences.divergence_sentences(cell))]
    if cell.causes:
        lines += ["", "Likely causes:", ""]
        lines += [
            f"{number}. {cause.what}: {cause.a} and {cause.b}. {cause.why}"
            for number, cause in enumerate(cell.causes[:_CAUSES], start=1)
        ]
    return lines
