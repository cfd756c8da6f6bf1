"""The figures that the page answers first: each with what was wanted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.comparison.result import RunComparison
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
