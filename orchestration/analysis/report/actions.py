"""The picture of a tuner's threshold changes over the queue that caused them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestration.analysis.figure_parts import size_axis, thresholds, time_axis
from orchestration.analysis.report.queue_figures import changes_of, downsample
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.sample_parts import arrivals
from orchestration.core.records import MISSING, Floats, Ints
from orchestration.render.figure import Figure, Trace, scatter
from orchestration.render.figure_style import INK, Colours, base_figure, line
from orchestration.render.numbers import quantity
from orchestration.render.page import Picture
from orchestration.results.reader import TrialResult

# The most changes that can be told apart in a picture.
_MOST_CHANGES = 250


@dataclass(frozen=True)
class ActedQueue:
    """One queue, and the changes that a tuner made to its thresholds in the shown repeat.

    It is the longest of the queues that were changed at least half as often as any other while
    flows arrived. `t_ns` and `qlen_bytes` (points,) are the queue. The other arrays have shape
    (changes,), the initial setting first: time and length of the reading (-1 unknown), time when
    the change took effect, thresholds. `changes` and `everywhere` count changes of this queue and
    of all queues while flows arrived. The arrays may be cut after the first changes, and the queue
    with them.
    """

    tuner: str
    label: str
    towards: str
    repeat: int
    changes: int
    everywhere: int
    t_ns: Ints
    qlen_bytes: Ints
    seen_ns: Ints
    seen_bytes: Ints
    applied_ns: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats


def acted_queues(shown: ShownRepeat, points: int) -> list[ActedQueue]:
    """Return one queue for each tuner that changed thresholds after the start.

    Raises InputError for an unreadable table.
    """
    if not shown.sampled:
        return []
    found = (
        _acted(tuner, result, shown.repeat, points) for tuner, result in shown.by_tuner.items()
    )
    return [queue for queue in found if queue is not None]


def _acted(tuner: str, result: TrialResult, repeat: int, points: int) -> ActedQueue | None:
    actions = result.table("actions")
    end_ns = int(result.spec.duration_ns)
    soon = actions["applied_ns"] <= end_ns
    late = soon & (actions["t_ns"] > result.spec.warm_up_ns)
    if not late.any():
        return None
    mine = {number: changes_of(result, number) for number in range(len(result.testbed.queues))}
    counts = {number: int(np.count_nonzero(rows & late)) for number, rows in mine.items()}
    lengths = arrivals(result.ports, result.spec.measured_ns).qlen_bytes.mean(axis=0)
    often = [number for number, count in counts.items() if 2 * count >= max(counts.values())]
    queue = max(often, key=lambda number: float(lengths[number]))
    rows = np.flatnonzero(mine[queue] & soon)
    rows = rows[np.argsort(actions["applied_ns"][rows], kind="stable")][: _MOST_CHANGES + 1]
    if counts[queue] > _MOST_CHANGES:
        end_ns = min(end_ns, int(actions["applied_ns"][rows[-1]]))
    ports = result.ports
    length = ports.qlen_bytes[:, queue]
    known = (length != MISSING) & (ports.t_ns <= end_ns)
    t_ns, qlen = downsample(ports.t_ns[known], length[known], points)
    seen_ns = actions["t_ns"][rows]
    port = result.testbed.queues[queue]
    return ActedQueue(
        tuner=tuner,
        label=port.label,
        towards=result.testbed.peer_device(port).name,
        repeat=repeat,
        changes=counts[queue],
        everywhere=int(np.count_nonzero(late)),
        t_ns=t_ns,
        qlen_bytes=qlen,
        seen_ns=seen_ns,
        seen_bytes=_seen(ports.t_ns, length, seen_ns),
        applied_ns=actions["applied_ns"][rows],
        kmin_bytes=actions["kmin_bytes"][rows],
        kmax_bytes=actions["kmax_bytes"][rows],
        pmax=actions["pmax"][rows],
    )


def _seen(t_ns: Ints, length: Ints, seen_ns: Ints) -> Ints:
    """Return the queue's length at the last sample up to each time, -1 if there is none."""
    at = np.searchsorted(t_ns, seen_ns, side="right") - 1
    return np.where((at >= 0) & (seen_ns > 0), length[np.maximum(at, 0)], MISSING)


def actions_over_queue(queue: ActedQueue, colours: Colours) -> Picture:
    """Draw a queue with the thresholds set after its readings, and pmax below."""
    figure = Figure(2, heights=[0.76, 0.24], gap=0.06)
    base_figure(height=390, right=16, figure=figure)
    length = line(queue.t_ns / 1e6, queue.qlen_bytes, colours[queue.tuner], 1.5)
    length.update(fill="tozeroy", hovertemplate="%{x:.2f} ms: %{y:,} B<extra></extra>")
    figure.add_trace(length, row=1)
    set_ns, end_ns = np.maximum(queue.applied_ns, 0), int(queue.t_ns[-1])
    limits = (queue.kmin_bytes, queue.kmax_bytes)
    thresholds(figure, set_ns, *limits, end_ns, row=1, when=" from %{x:.2f} ms")
    raised = np.diff(queue.kmax_bytes, prepend=queue.kmax_bytes[:1])
    for word, chosen, symbol in (
        ("raised", raised > 0, "triangle-up"),
        ("lowered", raised < 0, "triangle-down"),
        ("kept", (raised == 0) & (queue.seen_ns > 0), "circle-open"),
    ):
        chosen = chosen & (queue.seen_bytes >= 0)
        if chosen.any():
            figure.add_trace(_readings(queue, chosen, word, symbol), row=1)
    pmax = line([*(set_ns / 1e6), end_ns / 1e6], [*queue.pmax, queue.pmax[-1]], INK, 1.5)
    pmax["line"]["shape"] = "hv"
    pmax["hovertemplate"] = "pmax %{y:.3g} from %{x:.2f} ms<extra></extra>"
    figure.add_trace(pmax, row=2)
    longest = float(queue.qlen_bytes.max(initial=1))
    # show kmax only as far as the queue, the subject of the picture, stays readable
    top = max(1.2 * longest, min(1.1 * float(queue.kmax_bytes.max(initial=1)), 2.2 * longest))
    size_axis(figure, top, row=1)
    highest = float(queue.pmax.max(initial=0.0)) or 1.0
    figure.update_yaxes(title="pmax", range=[0, 1.15 * highest], nticks=4, row=2)
    time_axis(figure, 2)
    return Picture(
        f"{queue.tuner} changed the thresholds of {queue.label} towards {queue.towards} "
        f"{_times(queue.changes)}",
        f"{_answers(queue, raised)} Repeat {queue.repeat}, the longest of the queues that it "
        f"changed often; {queue.everywhere:,} changes in all queues.{_cut(queue)} Triangles: the "
        "readings that raised or lowered kmax. Dotted: kmin, dashed: kmax, as read back from the "
        "queue.",
        figure,
        f"actions-{queue.tuner}",
        {
            "reading_ns": queue.seen_ns.tolist(),
            "qlen_bytes": [value if value >= 0 else "" for value in queue.seen_bytes.tolist()],
            "applied_ns": queue.applied_ns.tolist(),
            "kmin_bytes": queue.kmin_bytes.tolist(),
            "kmax_bytes": queue.kmax_bytes.tolist(),
            "pmax": queue.pmax.tolist(),
        },
    )


def _readings(queue: ActedQueue, chosen: np.ndarray, word: str, symbol: str) -> Trace:
    return scatter(
        x=queue.seen_ns[chosen] / 1e6,
        y=queue.seen_bytes[chosen],
        mode="markers",
        marker={"size": 9, "symbol": symbol, "color": "white", "line": {"color": INK, "width": 1}},
        customdata=queue.kmax_bytes[chosen],
        hovertemplate=f"%{{y:,}} B at %{{x:.2f}} ms: kmax {word}, %{{customdata:,}} B"
        "<extra></extra>",
    )


def _answers(queue: ActedQueue, raised: Ints) -> str:
    """Return after which readings kmax went up and down, and how soon the changes took effect."""
    known = (queue.seen_bytes >= 0) & (queue.seen_ns > 0)
    clauses = []
    for word, chosen in (("raised", raised > 0), ("lowered", raised < 0)):
        chosen = chosen & known
        if chosen.any():
            mean = quantity(float(queue.seen_bytes[chosen].mean()), "bytes")
            clauses.append(f"{word} kmax {_times(int(chosen.sum()))}, after {mean} on average")
    text = f"It {', and '.join(clauses)}." if clauses else "It left kmax as it was."
    late = (queue.applied_ns - queue.seen_ns)[queue.seen_ns > 0]
    if len(late):
        text += f" A change was in force {quantity(float(np.median(late)), 'ns')} after its "
        text += "reading (median)."
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _cut(queue: ActedQueue) -> str:
    drawn = int(np.count_nonzero(queue.seen_ns > 0))
    return f" The first {drawn} are drawn." if drawn < queue.changes else ""
