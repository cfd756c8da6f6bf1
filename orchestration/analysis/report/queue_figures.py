"""The report's figures of queues: length distributions, and single queues over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.analysis.figure_parts import (
    corner_name,
    queue_share_axes,
    size_axis,
    thresholds,
    time_axis,
)
from orchestration.analysis.measured_window import measured_samples
from orchestration.analysis.port_metrics import QUEUE_GRID_BYTES
from orchestration.analysis.report.selection import ShownRepeat, shown_arms
from orchestration.analysis.summary import Condition
from orchestration.core.records import MISSING, Floats, Ints
from orchestration.core.units import format_duration
from orchestration.render.figure import Figure
from orchestration.render.figure_style import (
    Colours,
    band,
    base_figure,
    curve,
    line,
    name_line,
    readable,
    short,
)
from orchestration.render.numbers import extremes, quantity
from orchestration.render.page import CaptionedFigure, lines_of, rows_of
from orchestration.results.reader import TrialResult


@dataclass(frozen=True)
class Timeline:
    """`qlen_bytes` at `t_ns` (points,); thresholds in force from `set_ns` on, shapes (changes,).

    `mean_bytes` and `above_kmin`, a share, are over all samples, including those not drawn.
    `above_kmin` is None if no thresholds are known.
    """

    arm: str
    t_ns: Ints
    qlen_bytes: Ints
    set_ns: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    mean_bytes: float
    above_kmin: float | None


@dataclass(frozen=True)
class QueueTimelines:
    """One queue under every arm, in one repeat that all of them ran."""

    label: str
    kind: str
    towards: str
    repeat: int
    timelines: tuple[Timeline, ...]


def busiest_queues(shown: ShownRepeat, points: int) -> list[QueueTimelines]:
    """Return the busiest queue towards a host and the busiest between switches.

    Busiest means the longest mean length over all arms. Timelines have at most `points` points.
    Empty if a trial has no samples. Raises InputError for an unreadable table.
    """
    if not shown.sampled:
        return []
    testbed = shown.results[0].testbed
    means = np.mean([trial.metrics.queue_mean_bytes for trial in shown.trials], axis=0)
    busiest = []
    peers = [testbed.peer_device(port) for port in testbed.queues]
    for kind, words in (("host", "towards a host"), ("switch", "between switches")):
        of_kind = np.array([peer.kind == kind for peer in peers])
        length = np.where(of_kind & ~np.isnan(means), means, 0.0)
        queue = int(np.argmax(length))
        if length[queue] > 0:
            lines = tuple(
                timeline(arm, result, queue, points) for arm, result in shown.by_arm.items()
            )
            name, towards = testbed.queues[queue].label, peers[queue].name
            busiest.append(QueueTimelines(name, words, towards, shown.repeat, lines))
    return busiest


def timeline(arm: str, result: TrialResult, queue: int, points: int) -> Timeline:
    """Return the timeline of a queue, by its number, while flows arrived; skips missing samples."""
    ports = measured_samples(result.ports, result.spec.measured_ns)
    length = ports.qlen_bytes[:, queue]
    known = length != MISSING
    every_ns, every = ports.t_ns[known], length[known]
    t_ns, qlen = downsample(every_ns, every, points)
    actions = result.table("actions")
    end_ns = int(every_ns[-1]) if len(every_ns) else 0
    changes = changes_of(result, queue) & (actions["applied_ns"] <= end_ns)
    set_ns, kmin = np.maximum(actions["applied_ns"][changes], 0), actions["kmin_bytes"][changes]
    return Timeline(
        arm=arm,
        t_ns=t_ns,
        qlen_bytes=qlen,
        set_ns=set_ns,
        kmin_bytes=kmin,
        kmax_bytes=actions["kmax_bytes"][changes],
        mean_bytes=float(every.mean()) if len(every) else math.nan,
        above_kmin=_above(every_ns, every, set_ns, kmin),
    )


def _above(t_ns: Ints, qlen: Ints, set_ns: Ints, kmin: Ints) -> float | None:
    """Return the share of samples above the kmin in force; None if none is known."""
    if not len(set_ns) or not len(t_ns):
        return None
    held = kmin[np.maximum(np.searchsorted(set_ns, t_ns, side="right") - 1, 0)]
    return float((qlen > held).mean())


def changes_of(result: TrialResult, queue: int) -> np.ndarray:
    """Return which rows of the table `actions` belong to the queue, as booleans (actions,)."""
    actions, port = result.table("actions"), result.testbed.queues[queue]
    of_port = (actions["device"] == port.device) & (actions["port"] == port.name)
    return np.asarray(of_port & (actions["queue"] == port.klass))


def downsample(t_ns: Ints, values: NDArray[Any], points: int) -> tuple[Ints, NDArray[Any]]:
    """Reduce to at most `points` points that include the minimum and maximum of each stretch."""
    if len(t_ns) <= points:
        return t_ns, values
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(values)), max(1, points // 2)):
        part = values[stretch]
        kept += sorted({int(stretch[np.argmin(part)]), int(stretch[np.argmax(part)])})
    return t_ns[kept], values[kept]


# The distance between names at the same point, as a share of the axis.
_NAME_SHARE = 0.06

# As many as a picture has room for on a phone.
_CORNER_CHARACTERS = 36


def queue_distribution(condition: Condition, colours: Colours) -> CaptionedFigure | None:
    """Draw the share of queue samples longer than x: mean and range over repeats.

    None if no trial has queue samples, or if all queues were empty.
    """
    shares: dict[str, Floats] = {}
    for shown in shown_arms(condition):
        every = np.stack([trial.metrics.queue_ccdf for trial in shown.valid])
        every = every[~np.isnan(every).any(axis=1)]
        if len(every):
            shares[shown.name] = np.stack([every.mean(0), every.min(0), every.max(0)])
    figure = base_figure(height=360, right=20)
    grid = QUEUE_GRID_BYTES[1:]
    # the rows of shares are: mean, lowest and highest over repeats
    reached = {arm: rows[0, 1:] > 0 for arm, rows in shares.items()}
    drawn = {arm: rows[:, 1:][:, reached[arm]] for arm, rows in shares.items()}
    drawn = {arm: rows for arm, rows in drawn.items() if rows.size}
    if not drawn:
        return None
    floor = min(1.0, *(float(mean.min()) for mean, _, _ in drawn.values()))
    longest = max(2e3, *(float(grid[reached[arm]][-1]) for arm in drawn))
    line_height = _NAME_SHARE * max(1.0, -math.log10(floor))
    names: list[tuple[float, float]] = []
    for arm, (mean, low, high) in drawn.items():
        x, colour = grid[reached[arm]], colours[arm]
        figure.add_trace(band(x, np.maximum(low, floor), high, colour))
        trace = curve(x, mean, colour)
        trace["hovertemplate"] = f"{arm}: above %{{x:,.0f}} B %{{y:.2%}} of the time<extra></extra>"
        figure.add_trace(trace)
        # each name stands where its curve crosses a different level, so that names do not overlap
        level = float(mean[0]) * 10 ** (-0.5 - 0.35 * len(names))
        point = min(int(np.searchsorted(-mean, -level)), len(mean) - 1)
        end = float(np.log10(x[point])), float(np.log10(mean[point]))
        # curves that never fall end at the same point
        names.append((end[0], end[1] + line_height * sum(name[0] == end[0] for name in names)))
        name_line(figure, arm, *names[-1], colour, above=True)
    # with room for names to the right of the lines
    queue_share_axes(figure, floor, longest, room=4)
    spans = condition.queue_spans
    p99 = {one.name: one.estimates["queue_p99_bytes"].mean for one in shown_arms(condition)}
    empty = {arm: 1 - float(rows[0, 0]) for arm, rows in shares.items()}
    names_of = ("share", "share_low", "share_high")
    columns = {name: dict(zip(names_of, c.tolist(), strict=True)) for name, c in shares.items()}
    return CaptionedFigure(
        f"1% of the time a queue is longer than {extremes(p99, 'bytes')}"
        if any(value > 0 for value in p99.values())
        else "Queues are empty 99% of the time or more",
        f"Share of the time that a queue is empty: {extremes(empty, 'share')}. Complementary "
        "distribution over all switch queues and samples"
        + (f". {spans} Line" if spans else " while flows arrived. Line")
        + ": mean over repeats; band: range over the repeats.",
        figure,
        "queue-distribution",
        lines_of("arm", columns, {"above_bytes": [float(edge) for edge in QUEUE_GRID_BYTES]}),
    )


def queue_timeline(queue: QueueTimelines, colours: Colours) -> CaptionedFigure:
    """Draw one queue over time, a row per arm, with the thresholds in force."""
    lines = queue.timelines
    figure = Figure(len(lines), gap=0.05, same_y=True)
    base_figure(height=90 + 130 * len(lines), right=16, figure=figure)
    top = 1.2 * max(float(item.qlen_bytes.max(initial=1)) for item in lines)
    for row, item in enumerate(lines, start=1):
        colour = colours[item.arm]
        trace = line(item.t_ns / 1e6, item.qlen_bytes, colour, 1.5)
        trace.update(fill="tozeroy", hovertemplate="%{x:.2f} ms: %{y:,} B<extra></extra>")
        figure.add_trace(trace, row=row)
        words = f"<b>{short(item.arm)}</b>"
        if len(item.set_ns):
            words += _thresholds(item)
            limits = (item.set_ns, item.kmin_bytes, item.kmax_bytes)
            thresholds(figure, *limits, int(item.t_ns[-1]), row)
        corner_name(figure, row, words, readable(colour))
    size_axis(figure, top)
    time_axis(figure, len(lines))
    means = {item.arm: item.mean_bytes for item in lines}
    how = " Dotted: kmin, dashed: kmax, as read back from the queue."
    how = how if any(len(item.set_ns) for item in lines) else ""
    return CaptionedFigure(
        f"{queue.label} towards {queue.towards} holds {extremes(means, 'bytes')} on average",
        f"{' '.join(_peak(item, top) for item in lines)} The busiest queue {queue.kind} of repeat "
        f"{queue.repeat}, while flows arrived.{how}",
        figure,
        f"queue-{queue.label.replace(':', '-')}",
        rows_of(
            {"arm": item.arm, "t_ns": int(t_ns), "qlen_bytes": int(length)}
            for item in lines
            for t_ns, length in zip(item.t_ns, item.qlen_bytes, strict=True)
        ),
    )


def _peak(item: Timeline, top: float) -> str:
    """Return when the queue was longest, and how that compares with its thresholds."""
    at = int(np.argmax(item.qlen_bytes))
    text = (
        f"{item.arm}: longest, {quantity(float(item.qlen_bytes[at]), 'bytes')}, at "
        f"{format_duration(int(item.t_ns[at]))}"
    )
    if item.above_kmin is not None:
        text += f", above kmin {100 * item.above_kmin:.0f}% of the time"
        beyond = [
            name
            for name, values in (("kmin", item.kmin_bytes), ("kmax", item.kmax_bytes))
            if values.min() > top
        ]
        if beyond:
            text += f" ({' and '.join(beyond)} beyond the scale)"
    return f"{text}."


def _thresholds(item: Timeline) -> str:
    """Return what follows a arm's name: its thresholds, below it if they are long for a phone."""
    low, high = _range(item.kmin_bytes), _range(item.kmax_bytes)
    text = f"kmin and kmax {low}" if low == high else f"kmin {low}, kmax {high}"
    fits = len(short(item.arm)) + len(text) <= _CORNER_CHARACTERS
    return f", {text}" if fits else f"<br>{text}"


def _range(values: np.ndarray) -> str:
    low, high = (quantity(float(value), "bytes") for value in (values.min(), values.max()))
    return low if low == high else f"{low}–{high}"
