"""The figure of a tuner's threshold changes over the queue that caused them."""

from __future__ import annotations

import numpy as np

from orchestration.analysis.figure_parts import size_axis, thresholds, time_axis
from orchestration.analysis.measured_window import measured_samples
from orchestration.analysis.report.queue_figures import changes_of, downsample
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.core.records import MISSING, Ints
from orchestration.render.figure import Figure, scatter
from orchestration.render.figure_style import INK, Colours, base_figure, line
from orchestration.render.numbers import quantity
from orchestration.render.page import CaptionedFigure
from orchestration.results.reader import TrialResult

# More changes could not be distinguished in a figure.
_MAX_CHANGES = 250


def actions_over_queues(shown: ShownRepeat, points: int, colours: Colours) -> list[CaptionedFigure]:
    """Draw one queue for each tuner that changed thresholds after the start.

    Raises InputError for an unreadable table.
    """
    if not shown.sampled:
        return []
    drawn = (
        _actions_over_queue(tuner, result, shown.repeat, points, colours[tuner])
        for tuner, result in shown.by_tuner.items()
    )
    return [picture for picture in drawn if picture]


def _actions_over_queue(
    tuner: str, result: TrialResult, repeat: int, points: int, colour: str
) -> CaptionedFigure | None:
    """Draw a queue with the thresholds set after its readings, and pmax below.

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
    seen_ns, applied_ns, kmin, kmax, pmax = (
        actions[name][rows] for name in ("t_ns", "applied_ns", "kmin_bytes", "kmax_bytes", "pmax")
    )
    # the length at the last sample before each reading
    at = np.searchsorted(ports.t_ns, seen_ns, side="right") - 1
    seen = np.where((at >= 0) & (seen_ns > 0), length[np.maximum(at, 0)], MISSING)

    figure = Figure(2, heights=[0.76, 0.24], gap=0.06)
    base_figure(height=390, right=16, figure=figure)
    held = line(t_ns / 1e6, qlen, colour, 1.5)
    held.update(fill="tozeroy", hovertemplate="%{x:.2f} ms: %{y:,} B<extra></extra>")
    figure.add_trace(held, row=1)
    set_ns, until_ns = np.maximum(applied_ns, 0), int(t_ns[-1])
    thresholds(figure, set_ns, kmin, kmax, until_ns, row=1, when=" from %{x:.2f} ms")
    raised = np.diff(kmax, prepend=kmax[:1])
    for word, chosen, symbol in (
        ("raised", raised > 0, "triangle-up"),
        ("lowered", raised < 0, "triangle-down"),
        ("kept", (raised == 0) & (seen_ns > 0), "circle-open"),
    ):
        chosen = chosen & (seen >= 0)
        if chosen.any():
            border = {"color": INK, "width": 1}
            readings = scatter(
                x=seen_ns[chosen] / 1e6,
                y=seen[chosen],
                mode="markers",
                marker={"size": 9, "symbol": symbol, "color": "white", "line": border},
                customdata=kmax[chosen],
                hovertemplate=f"%{{y:,}} B at %{{x:.2f}} ms: kmax {word}, %{{customdata:,}} B"
                "<extra></extra>",
            )
            figure.add_trace(readings, row=1)
    steps = line([*(set_ns / 1e6), until_ns / 1e6], [*pmax, pmax[-1]], INK, 1.5)
    steps["line"]["shape"] = "hv"
    steps["hovertemplate"] = "pmax %{y:.3g} from %{x:.2f} ms<extra></extra>"
    figure.add_trace(steps, row=2)
    longest = float(qlen.max(initial=1))
    # show kmax only as far as the queue, the subject of the picture, stays readable
    size_axis(figure, max(1.2 * longest, min(1.1 * float(kmax.max(initial=1)), 2.2 * longest)), 1)
    highest = float(pmax.max(initial=0.0)) or 1.0
    figure.update_yaxes(title="pmax", range=[0, 1.15 * highest], nticks=4, row=2)
    time_axis(figure, 2)

    port = result.testbed.queues[queue]
    answers = _answers(seen_ns, seen, applied_ns, raised)
    drawn = int(np.count_nonzero(seen_ns > 0))
    cut = f" Only the first {drawn} are drawn." if drawn < counts[queue] else ""
    return CaptionedFigure(
        f"{tuner} changed the thresholds of {port.label} towards "
        f"{result.testbed.peer_device(port).name} {_times(counts[queue])}",
        f"{answers} Shown is repeat {repeat}, the longest of the queues that it changed often; "
        f"there were {int(np.count_nonzero(late)):,} changes in all queues.{cut} Triangles: the "
        "readings after which it raised or lowered kmax. Dotted: kmin, dashed: kmax, as read back "
        "from the queue.",
        figure,
        f"actions-{tuner}",
        {
            "reading_ns": seen_ns.tolist(),
            "qlen_bytes": [value if value >= 0 else "" for value in seen.tolist()],
            "applied_ns": applied_ns.tolist(),
            "kmin_bytes": kmin.tolist(),
            "kmax_bytes": kmax.tolist(),
            "pmax": pmax.tolist(),
        },
    )


def _answers(seen_ns: Ints, seen: Ints, applied_ns: Ints, raised: Ints) -> str:
    """Return after which readings kmax went up and down, and how soon the changes took effect."""
    known = (seen >= 0) & (seen_ns > 0)
    clauses = []
    for word, chosen in (("raised", raised > 0), ("lowered", raised < 0)):
        chosen = chosen & known
        if chosen.any():
            mean = quantity(float(seen[chosen].mean()), "bytes")
            clauses.append(f"{word} kmax {_times(int(chosen.sum()))}, after {mean} on average")
    text = f"It {', and '.join(clauses)}." if clauses else "It left kmax as it was."
    late = (applied_ns - seen_ns)[seen_ns > 0]
    if len(late):
        median = quantity(float(np.median(late)), "ns")
        text += f" A change took effect {median} after its reading (median)."
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
