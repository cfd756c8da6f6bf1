"""A comparison in words: the answer, each difference, where the runs differ, their speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestration.analysis.comparison.equivalence import (
    DIFFERENT,
    EQUIVALENT,
    MAX_REPEATS,
    UNDECIDED,
)
from orchestration.analysis.comparison.hypothesis_tests import MetricVerdict
from orchestration.analysis.comparison.result import ComparedCell, RunComparison, Subgroups
from orchestration.analysis.comparison.trials import Speed
from orchestration.analysis.tuner_differences import IDENTICAL
from orchestration.core.units import format_duration, format_size
from orchestration.render.numbers import NOTHING, change, count, percents, quantity

_HEADLINES = {DIFFERENT: "Different", EQUIVALENT: "Equivalent", UNDECIDED: "Not enough data"}


def answer(comparison: RunComparison) -> str:
    """Return the overall verdict with its counts: `Different: 4 of 23 metrics differ, ...`."""
    total = len(comparison.metrics)
    different, same, open_ = (
        comparison.count(verdict) for verdict in (DIFFERENT, EQUIVALENT, UNDECIDED)
    )
    missing = sum(len(cell.not_compared) for cell in comparison.cells)
    metrics = f"of {total} {_one_or_more(total, 'metric', 'metrics')}"
    if same == total and not missing:
        identical = all(item.identical for item in comparison.metrics)
        alike = f", {IDENTICAL}" if identical else ""
        return f"{_HEADLINES[EQUIVALENT]}: {same} {metrics}{alike}."
    said = (
        (different, "differs", "differ", ""),
        (same, "is equivalent", "are equivalent", ""),
        (open_, "needs more data", "need more data", _repeats(comparison.metrics)),
    )
    parts: list[str] = []
    for number, one, more, note in said:
        if number:
            which = number if parts else f"{number} {metrics}"
            parts.append(f"{which} {_one_or_more(number, one, more)}{note}")
    if missing:
        parts.append(f"{missing} more {_one_or_more(missing, 'is', 'are')} in one run only")
    return f"{_HEADLINES[comparison.verdict]}: {', '.join(parts)}."


def _one_or_more(count: int, one: str, more: str) -> str:
    return one if count == 1 else more


def _repeats(tested: Sequence[MetricVerdict]) -> str:
    """Return how many repeats would settle half of the open verdicts, and all of them."""
    open_ = [item for item in tested if item.verdict == UNDECIDED]
    known = sorted(item.repeats for item in open_ if item.repeats is not None)
    if not known:
        if any(math.isnan(item.interval.low) for item in open_):
            return " (one pair does not tell how many repeats)"
        return f" (over {MAX_REPEATS:,} repeats)"
    maximum, middle = known[-1], (len(open_) - 1) // 2
    settled = "all of them" if len(known) == len(open_) else f"{len(known)} of {len(open_)}"
    if middle < len(known) and known[middle] < maximum:
        return f" ({known[middle]} repeats would settle half of them, {maximum} repeats {settled})"
    return f" ({maximum} repeats would settle {'it' if len(open_) == 1 else settled})"


def difference(item: MetricVerdict) -> str:
    """Return the difference with its interval, relative if possible: `-38.7% [-41.1, -36.4]`.

    Differences of shares are in percentage points, to avoid confusion with relative ones.
    """
    got, metric = item.interval, item.metric
    sign = "" if metric.distance else "+"
    if metric.distance == "cdf" or (metric.unit == "share" and not math.isfinite(got.relative_low)):
        text = percents(got.difference, got.low, got.high, sign=sign, digits=1)
        return f"{text.replace('%', '')} pt"
    if not math.isfinite(got.relative):
        return change(got.difference, metric.unit)
    return percents(got.relative, got.relative_low, got.relative_high, sign=sign)


def values(item: MetricVerdict) -> tuple[str, str]:
    """Return A's and B's values; a distance has none."""
    if item.metric.distance:
        return NOTHING, NOTHING
    return quantity(item.a, item.metric.unit), quantity(item.b, item.metric.unit)


def allowed(item: MetricVerdict) -> str:
    """Return the margin: `10%`, `1.5KB` if the floor is larger, `10 points` of all flows."""
    if item.metric.distance == "cdf":
        return f"{100 * item.margin:g} points"
    if item.allowed > item.metric.floor or not item.metric.floor:
        return f"{100 * item.margin:g}%"
    if item.metric.unit == "share":
        return f"{100 * item.allowed:g} points"
    return quantity(item.allowed, item.metric.unit)


def needs(item: MetricVerdict) -> str:
    """Return what an open verdict needs: `needs 21 repeats`; "" if it is settled."""
    if item.verdict != UNDECIDED:
        return ""
    if not math.isfinite(item.interval.low):
        return "needs repeats"
    return f"needs {item.repeats} repeats" if item.repeats else f"needs >{MAX_REPEATS:,}"


def pairs(cell: ComparedCell) -> str:
    """Return how many pairs of trials a cell has: `3 pairs`."""
    return count(len(cell.pairs), "pair")


def parting(cell: ComparedCell) -> list[str]:
    """Return where the runs differ, one sentence each for size, port and time."""
    places = cell.subgroups
    return [said for said in (_by_size(places), _by_port(places), _by_time(cell)) if said]


def _by_size(places: Subgroups) -> str:
    known = [group for group in places.sizes if math.isfinite(group.interval.relative)]
    if not known:
        return ""
    maximum = max(known, key=lambda group: (group.surely_differs, abs(group.interval.relative)))
    if maximum.interval.relative == 0:
        return "By size: no group of flow sizes differs."
    before = [group.upto_bytes for group in places.sizes if group.upto_bytes < maximum.upto_bytes]
    low = f"{format_size(before[-1])} to " if before else "up to "
    got = maximum.interval
    gap = percents(got.relative, got.relative_low, got.relative_high, digits=1)
    return (
        f"By size: flows of {low}{format_size(maximum.upto_bytes)} differ most, mean slowdown "
        f"{maximum.a:.2f} and {maximum.b:.2f}, {gap}."
    )


def _by_port(places: Subgroups) -> str:
    if not places.ports:
        return ""
    maximum = places.ports[0]
    if maximum.gap_bytes == 0:
        return "By port: every queue has the same mean length."
    kinds: dict[str, float] = {}
    for gap in places.ports:
        kinds[gap.kind] = kinds.get(gap.kind, 0.0) + abs(gap.gap_bytes)
    kind = max(kinds, key=lambda name: kinds[name])
    share = kinds[kind] / sum(kinds.values())
    return (
        f"By port: {maximum.label} differs most, mean queue "
        f"{format_size(maximum.queue_a_bytes)} and "
        f"{format_size(maximum.queue_b_bytes)}; {share:.0%} of what differs lies at {kind}."
    )


def _by_time(cell: ComparedCell) -> str:
    places = cell.subgroups
    if not any(line.name == "queued_bytes" for line in places.timelines):
        return ""
    if not places.parted_pairs:
        return "By time: the queues never part."
    text = (
        f"By time: the queues part at {format_duration(places.parted_ns)}, "
        f"{'first' if len(cell.pairs) == 1 else 'mostly first'} at {places.parted_at}"
    )
    if len(cell.pairs) > 1:
        text += f" (median of {places.parted_pairs} of {len(cell.pairs)} pairs)"
    if places.apart_ns is not None and places.apart_bytes:
        begin, end = (format_duration(t) for t in places.apart_ns)
        side = "more" if places.apart_bytes > 0 else "less"
        text += (
            f"; most from {begin} to {end}, with {format_size(abs(places.apart_bytes))} {side} "
            "queued in B"
        )
    return text + "."


def speeds(comparison: RunComparison) -> list[str]:
    """Return the speed of each run, and their ratio if both are known."""
    a, b = comparison.speed_a, comparison.speed_b
    runs = ((comparison.a, a), (comparison.b, b))
    lines = [f"{run.letter} ({run.backend}): {_speed(speed)}" for run, speed in runs]
    pairs = (
        ("traffic alone", a.per_run_s, b.per_run_s),
        ("starting and building included", a.per_wall_s, b.per_wall_s),
    )
    for word, first, second in pairs:
        if first and second:
            fast, slow = ("A", "B") if first >= second else ("B", "A")
            ratio = max(first, second) / min(first, second)
            times = f"{ratio:,.{1 if ratio < 10 else 0}f} times as fast as {slow}"
            said = f"{fast} is {times}" if ratio >= 1.05 else "Both are as fast"
            lines.append(f"{said}, {word}.")
            break
    counted = {letter: of.counted for letter, of in (("A", a), ("B", b)) if of.packet_hops}
    if len(set(counted.values())) > 1:
        lines += [f"A packet-hop of {letter}: {said}." for letter, said in counted.items()]
    elif counted:
        lines.append(f"A packet-hop: {next(iter(counted.values()))}.")
    return lines


def _speed(speed: Speed) -> str:
    trials = count(speed.trials, "trial")
    if not speed.packet_hops:
        return f"no packet-hops counted in {trials}"
    told = f"{speed.packet_hops:,} packet-hops in {trials}"
    if speed.per_wall_s is None or speed.wall_s is None:
        return f"{told}, wall time not recorded"
    text = f"{told}, {speed.per_wall_s:,.0f} a wall second ({speed.wall_s:.1f} s)"
    if speed.per_run_s is not None and speed.run_s is not None:
        text += f", {speed.per_run_s:,.0f} of traffic alone ({speed.run_s:.1f} s)"
    return text


def margins_note(comparison: RunComparison) -> str:
    """Return how the verdicts were made, as a note below the table."""
    return (
        f"Equivalent: both one-sided t-tests at 5% put the difference within the margin "
        f"({100 * comparison.margins.default:g}% of A unless set). Different: not 0 after Holm's "
        f"correction for {len(comparison.metrics)} metrics, and beyond the margin. "
        "Needs n repeats: not enough data, about n would settle it. Intervals: 95%."
    )
