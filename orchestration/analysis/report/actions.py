"""The figure of a arm's threshold changes over the queue that caused them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestration.analysis.figure_parts import size_axis, thresholds, time_axis
from orchestration.analysis.measured_window import measured_samples
from orchestration.analysis.report.queue_figures import changes_of, downsample
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.core.records import MISSING, Floats, Ints
from orchestration.render.figure import Figure, scatter
from orchestration.render.figure_style import INK, Colours, base_figure, line
from orchestration.render.numbers import quantity
from orchestration.render.page import CaptionedFigure
from orchestration.results.reader import TrialResult

# More changes could not be distinguished in a figure.
_MAX_CHANGES = 250


def actions_over_queues(shown: ShownRepeat, points: int, colours: Colours) -> list[CaptionedFigure]:
    """Draw one queue for each arm that changed thresholds after the start.

    Raises InputError for an unreadable table.
    """
    if not shown.sampled:
        return []
    drawn = (
        _actions_over_queue(arm, result, shown.repeat, points, colours[arm])
        for arm, result in shown.by_arm.items()
    )
    return [figure for figure in drawn if figure]


@dataclass(frozen=True)
class _QueueChanges:
    """One queue over time, and the changes of its thresholds that are drawn.

    `t_ns` and `qlen_bytes` are the queue (points,). Each change, shapes (changes,), was decided on
    the sample at `read_ns` with `read_bytes` in the queue (MISSING if unknown), and applied at
    `applied_ns`. `count` are the queue's changes while flows arrived, `in_all_queues` those of all.
    """

    queue: int
    count: int
    in_all_queues: int
    t_ns: Ints
    qlen_bytes: Ints
    read_ns: Ints
    read_bytes: Ints
    applied_ns: Ints
    kmin: Ints
    kmax: Ints
    pmax: Floats

    @property
    def raised(self) -> Ints:
        """By how much each change raised kmax."""
        return np.asarray(np.diff(self.kmax, prepend=self.kmax[:1]))


def _queue_changes(result: TrialResult, points: int) -> _QueueChanges | None:
    """Return the queue that is drawn with its changes; None if none was changed.

    The queue is the longest of those that were changed at least half as often as any other while
    flows arrived. Of too many changes, the first ones are drawn, with the queue until then.
    """
    actions, ports = result.table("actions"), result.ports
    end_ns = int(result.spec.duration_ns)
    soon = actions["applied_ns"] <= end_ns
    late = soon & (actions["t_ns"] > result.spec.warm_up_ns)
    if not late.any():
        return None
    changes = {number: changes_of(result, number) for number in range(len(result.testbed.queues))}
    counts = {number: int(np.count_nonzero(rows & late)) for number, rows in changes.items()}
    lengths = measured_samples(ports, result.spec.measured_ns).qlen_bytes.mean(axis=0)
    often = [number for number, count in counts.items() if 2 * count >= max(counts.values())]
    queue = max(often, key=lambda number: float(lengths[number]))
    rows = np.flatnonzero(changes[queue] & soon)
    # the initial setting comes first
    rows = rows[np.argsort(actions["applied_ns"][rows], kind="stable")][: _MAX_CHANGES + 1]
    if counts[queue] > _MAX_CHANGES:
        end_ns = min(end_ns, int(actions["applied_ns"][rows[-1]]))
    length = ports.qlen_bytes[:, queue]
    known = (length != MISSING) & (ports.t_ns <= end_ns)
    t_ns, qlen = downsample(ports.t_ns[known], length[known], points)
    read_ns, applied_ns, kmin, kmax, pmax = (
        actions[name][rows] for name in ("t_ns", "applied_ns", "kmin_bytes", "kmax_bytes", "pmax")
    )
    # the length at the last sample before each reading
    at = np.searchsorted(ports.t_ns, read_ns, side="right") - 1
    read_bytes = np.where((at >= 0) & (read_ns > 0), length[np.maximum(at, 0)], MISSING)
    return _QueueChanges(
        queue, counts[queue], int(np.count_nonzero(late)), t_ns, qlen, read_ns, read_bytes,
        applied_ns, kmin, kmax, pmax,
    )  # fmt: skip


def _actions_over_queue(
    arm: str, result: TrialResult, repeat: int, points: int, colour: str
) -> CaptionedFigure | None:
    """Draw a queue with its thresholds and the readings that changed them, and pmax below."""
    changes = _queue_changes(result, points)
    if changes is None:
        return None
    port = result.testbed.queues[changes.queue]
    drawn = int(np.count_nonzero(changes.read_ns > 0))
    cut = f" Only the first {drawn} are drawn." if drawn < changes.count else ""
    return CaptionedFigure(
        f"{arm} changed the thresholds of {port.label} towards "
        f"{result.testbed.peer_device(port).name} {_times(changes.count)}",
        f"{_answers(changes)} Shown is repeat {repeat}, the longest of the queues that it changed "
        f"often; there were {changes.in_all_queues:,} changes in all queues.{cut} Triangles: the "
        "readings after which it raised or lowered kmax. Dotted: kmin, dashed: kmax, as read back "
        "from the queue.",
        _figure(changes, colour),
        f"actions-{arm}",
        {
            "reading_ns": changes.read_ns.tolist(),
            "qlen_bytes": [value if value >= 0 else "" for value in changes.read_bytes.tolist()],
            "applied_ns": changes.applied_ns.tolist(),
            "kmin_bytes": changes.kmin.tolist(),
            "kmax_bytes": changes.kmax.tolist(),
            "pmax": changes.pmax.tolist(),
        },
    )


def _figure(changes: _QueueChanges, colour: str) -> Figure:
    figure = Figure(2, heights=[0.76, 0.24], gap=0.06)
    base_figure(height=390, right=16, figure=figure)
    held = line(changes.t_ns / 1e6, changes.qlen_bytes, colour, 1.5)
    held.update(fill="tozeroy", hovertemplate="%{x:.2f} ms: %{y:,} B<extra></extra>")
    figure.add_trace(held, row=1)
    set_ns, until_ns = np.maximum(changes.applied_ns, 0), int(changes.t_ns[-1])
    limits = (set_ns, changes.kmin, changes.kmax, until_ns)
    thresholds(figure, *limits, row=1, when=" from %{x:.2f} ms")
    _draw_readings(figure, changes)
    pmax = changes.pmax
    steps = line([*(set_ns / 1e6), until_ns / 1e6], [*pmax, pmax[-1]], INK, 1.5)
    steps["line"]["shape"] = "hv"
    steps["hovertemplate"] = "pmax %{y:.3g} from %{x:.2f} ms<extra></extra>"
    figure.add_trace(steps, row=2)
    longest = float(changes.qlen_bytes.max(initial=1))
    # kmax is shown only as far as the queue stays readable
    kmax = float(changes.kmax.max(initial=1))
    size_axis(figure, max(1.2 * longest, min(1.1 * kmax, 2.2 * longest)), 1)
    highest = float(pmax.max(initial=0.0)) or 1.0
    figure.update_yaxes(title="pmax", range=[0, 1.15 * highest], nticks=4, row=2)
    time_axis(figure, 2)
    return figure


def _draw_readings(figure: Figure, changes: _QueueChanges) -> None:
    """Draw the readings with symbols for what the arm then did with kmax."""
    raised = changes.raised
    for word, chosen, symbol in (
        ("raised", raised > 0, "triangle-up"),
        ("lowered", raised < 0, "triangle-down"),
        ("kept", (raised == 0) & (changes.read_ns > 0), "circle-open"),
    ):
        chosen = chosen & (changes.read_bytes >= 0)
        if chosen.any():
            border = {"color": INK, "width": 1}
            readings = scatter(
                x=changes.read_ns[chosen] / 1e6,
                y=changes.read_bytes[chosen],
                mode="markers",
                marker={"size": 9, "symbol": symbol, "color": "white", "line": border},
                customdata=changes.kmax[chosen],
                hovertemplate=f"%{{y:,}} B at %{{x:.2f}} ms: kmax {word}, %{{customdata:,}} B"
                "<extra></extra>",
            )
            figure.add_trace(readings, row=1)


def _answers(changes: _QueueChanges) -> str:
    """Return after which readings kmax went up and down, and how soon the changes took effect."""
    raised, read_bytes, read_ns = changes.raised, changes.read_bytes, changes.read_ns
    known = (read_bytes >= 0) & (read_ns > 0)
    clauses = []
    for word, chosen in (("raised", raised > 0), ("lowered", raised < 0)):
        chosen = chosen & known
        if chosen.any():
            mean = quantity(float(read_bytes[chosen].mean()), "bytes")
            clauses.append(f"{word} kmax {_times(int(chosen.sum()))}, after {mean} on average")
    text = f"It {', and '.join(clauses)}." if clauses else "It left kmax as it was."
    late = (changes.applied_ns - read_ns)[read_ns > 0]
    if len(late):
        median = quantity(float(np.median(late)), "ns")
        text += f" A change took effect {median} after its reading (median)."
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
