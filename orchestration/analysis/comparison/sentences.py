"""A comparison in words: the answer, each difference, where the runs differ, their speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestration.analysis.arm_differences import IDENTICAL
from orchestration.analysis.comparison.equivalence import (
    DIFFERENT,
    EQUIVALENT,
    MAX_REPEATS,
    UNDECIDED,
    Margins,
)
from orchestration.analysis.comparison.hypothesis_tests import MetricVerdict
from orchestration.analysis.comparison.result import ComparedCell, RunComparison, Subgroups
from orchestration.analysis.comparison.trials import Speed
from orchestration.core.units import format_duration, format_size
from orchestration.render.numbers import NOTHING, change, count, percents, quantity

_HEADLINES = {DIFFERENT: "Different", EQUIVALENT: "Equivalent", UNDECIDED: "Not enough data"}


def answer(comparison: RunComparison) -> str:
    """Return the overall verdict with its counts: `Different: 4 of 23 metrics differ ...`."""
    total = len(comparison.metrics)
    different, same, open_ = (
        comparison.count(verdict) for verdict in (DIFFERENT, EQUIVALENT, UNDECIDED)
    )
    missing = sum(len(cell.not_compared) for cell in comparison.cells)
    metrics = f"of {total} {_one_or_more(total, 'metric', 'metrics')}"
    margin = f"the margin of {margin_text(comparison.margins)}"
    if same == total and not missing:
        identical = all(item.identical for item in comparison.metrics)
        how = f", {IDENTICAL}" if identical else f", within {margin}"
        return f"{_HEADLINES[EQUIVALENT]}: {same} {metrics}{how}."
    within = "within it" if different else f"within {margin}"
    clauses = (
        (different, "differs", "differ", f" by more than {margin}"),
        (same, "is equivalent", "are equivalent", f" {within}"),
        (open_, "needs more data", "need more data", _repeats(comparison.metrics)),
    )
    parts: list[str] = []
    for number, one, more, note in clauses:
        if number:
            which = number if parts else f"{number} {metrics}"
            parts.append(f"{which} {_one_or_more(number, one, more)}{note}")
    if missing:
        parts.append(f"{missing} more {_one_or_more(missing, 'is', 'are')} in one run only")
    return f"{_HEADLINES[comparison.verdict]}: {', '.join(parts)}."


def margin_text(margins: Margins) -> str:
    """Return `10%`, or `10% (slowdown_mean: 15%)` where metrics have margins of their own."""
    others = ", ".join(f"{name}: {100 * share:g}%" for name, share in margins.of.items())
    return f"{100 * margins.default:g}%" + (f" ({others})" if others else "")


def _one_or_more(count: int, one: str, more: str) -> str:
    return one if count == 1 else more


def _repeats(tested: Sequence[MetricVerdict]) -> str:
    """Return how many repeats in total would settle half of the open verdicts, and all of them."""
    open_ = [item for item in tested if item.verdict == UNDECIDED]
    known = sorted(item.repeats for item in open_ if item.repeats is not None)
    if not known:
        if any(math.isnan(item.interval.low) for item in open_):
            return " (how many repeats is unknown with one pair)"
        return f" (more than {MAX_REPEATS:,} repeats)"
    maximum, middle = known[-1], (len(open_) - 1) // 2
    settled = "all of them" if len(known) == len(open_) else f"{len(known)} of these {len(open_)}"
    if middle < len(known) and known[middle] < maximum:
        return (
            f" ({known[middle]} repeats in total would settle half of them, "
            f"{maximum} repeats {settled})"
        )
    return f" ({maximum} repeats in total would settle {'it' if len(open_) == 1 else settled})"


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
    return f"needs {item.repeats or f'>{MAX_REPEATS:,}'} repeats"


def pairs(cell: ComparedCell) -> str:
    """Return how many pairs of trials a cell has: `3 pairs`."""
    return count(len(cell.pairs), "pair")


def divergence_sentences(cell: ComparedCell) -> list[str]:
    """Return where the runs differ, one sentence each for flow size, port and time."""
    subgroups = cell.subgroups
    sentences = (_by_size(subgroups), _by_port(subgroups), _by_time(cell))
    return [sentence for sentence in sentences if sentence]


def _by_size(subgroups: Subgroups) -> str:
    known = [group for group in subgroups.sizes if math.isfinite(group.interval.relative)]
    if not known:
        return ""
    maximum = max(known, key=lambda group: (group.surely_differs, abs(group.interval.relative)))
    if maximum.interval.relative == 0:
        return "By flow size: no group of sizes differs."
    smaller = [g.upto_bytes for g in subgroups.sizes if g.upto_bytes < maximum.upto_bytes]
    low = f"{format_size(smaller[-1])} to " if smaller else "up to "
    interval = maximum.interval
    gap = percents(interval.relative, interval.relative_low, interval.relative_high, digits=1)
    return (
        f"By flow size: flows of {low}{format_size(maximum.upto_bytes)} differ most: their mean "
        f"slowdown is {maximum.a:.2f} in A and {maximum.b:.2f} in B, {gap}."
    )


def _by_port(subgroups: Subgroups) -> str:
    if not subgroups.ports:
        return ""
    maximum = subgroups.ports[0]
    if maximum.gap_bytes == 0:
        return "By port: every queue has the same mean length."
    kinds: dict[str, float] = {}
    for gap in subgroups.ports:
        kinds[gap.kind] = kinds.get(gap.kind, 0.0) + abs(gap.gap_bytes)
    kind = max(kinds, key=lambda name: kinds[name])
    share = kinds[kind] / sum(kinds.values())
    return (
        f"By port: {maximum.label} differs most: its mean queue is "
        f"{format_size(maximum.queue_a_bytes)} in A and {format_size(maximum.queue_b_bytes)} in B. "
        f"{share:.0%} of the sum of all queues' differences is at {kind}."
    )


def _by_time(cell: ComparedCell) -> str:
    subgroups, pairs = cell.subgroups, len(cell.pairs)
    if not any(line.name == "queued_bytes" for line in subgroups.timelines):
        return ""
    if not subgroups.diverged_pairs:
        return "By time: the queues never differ."
    text = f"By time: the queues first differ at {format_duration(subgroups.diverged_ns)}"
    if pairs > 1:
        text += f" (median of {subgroups.diverged_pairs} of {pairs} pairs)"
    text += f", {'' if pairs == 1 else 'mostly '}at {subgroups.diverged_at}."
    if subgroups.apart_ns is not None and subgroups.apart_bytes:
        begin, end = (format_duration(t) for t in subgroups.apart_ns)
        side = "more" if subgroups.apart_bytes > 0 else "less"
        text += (
            f" They differ most from {begin} to {end}: {format_size(abs(subgroups.apart_bytes))} "
            f"{side} queued in B."
        )
    return text


def speeds(comparison: RunComparison) -> list[str]:
    """Return the speed of each run, and their ratio if both are known."""
    a, b = comparison.speed_a, comparison.speed_b
    runs = ((comparison.a, a), (comparison.b, b))
    lines = [f"{run.letter} ({run.backend}): {_speed(speed)}" for run, speed in runs]
    pairs = (
        ("counting the traffic alone", a.per_run_s, b.per_run_s),
        ("counting start and build too", a.per_wall_s, b.per_wall_s),
    )
    for word, first, second in pairs:
        if first and second:
            fast, slow = ("A", "B") if first >= second else ("B", "A")
            ratio = max(first, second) / min(first, second)
            times = f"{ratio:,.{1 if ratio < 10 else 0}f} times as fast as {slow}"
            verdict = f"{fast} is {times}" if ratio >= 1.05 else "Both are equally fast"
            lines.append(f"{verdict}, {word}.")
            break
    counted = {letter: of.counted for letter, of in (("A", a), ("B", b)) if of.packet_hops}
    if len(set(counted.values())) > 1:
        lines += [f"A packet-hop of {letter}: {what}." for letter, what in counted.items()]
    elif counted:
        lines.append(f"A packet-hop: {next(iter(counted.values()))}.")
    return lines


def _speed(speed: Speed) -> str:
    trials = count(speed.trials, "trial")
    if not speed.packet_hops:
        return f"no packet-hops counted in {trials}"
    text = f"{speed.packet_hops:,} packet-hops in {trials}"
    if speed.per_wall_s is None or speed.wall_s is None:
        return f"{text}, wall time not recorded"
    text += f", {speed.per_wall_s:,.0f} per second of wall time ({speed.wall_s:.1f} s)"
    if speed.per_run_s is not None and speed.run_s is not None:
        text += f", {speed.per_run_s:,.0f} per second of traffic alone ({speed.run_s:.1f} s)"
    return text


def margins_note(comparison: RunComparison) -> str:
    """Return how the verdicts are made, as a note below the table."""
    return (
        "In brackets: 95% confidence intervals. Equivalent: two one-sided t-tests at 5% show that "
        f"the difference is within the margin, which is {margin_text(comparison.margins)} of A, or "
        "a fixed amount where that is more, such as a packet for queues. Different: the difference "
        "is not 0 (p < 0.05 after Holm's correction for "
        f"{count(len(comparison.metrics), 'metric')}), and its estimate is beyond the margin. Not "
        "enough data: neither; 'needs n repeats' means that about n repeats in total would settle "
        "it."
    )
