"""Who stops whom: how long devices had told their neighbours to pause, a panel per tuner."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from orchestration.analysis.figure_parts import Cells, cell_panels
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.core.topology import Testbed
from orchestration.render.figure_style import Colours
from orchestration.render.numbers import quantity
from orchestration.render.page import Picture, rows_of
from orchestration.results.reader import TrialResult

# The most rows and columns whose names are readable on a phone.
_MOST_DEVICES = 24
# Names of devices stand upright below the columns.
_ROW_PIXELS, _NAMES_PIXELS = 18, 86
# Brewer's Reds: a single hue that varies in lightness only; dark means long.
_SCALE = [(0, "#FBF3F0"), (0.25, "#FCBBA1"), (0.5, "#FB6A4A"), (0.75, "#CB181D"), (1, "#67000D")]

# (who stops, who is stopped) -> ns
_Pairs = dict[tuple[str, str], int]


@dataclass(frozen=True)
class PausedPairs:
    """How long one device had stopped another in one repeat: tuner -> pair -> ns.

    Times of several cables and classes between two devices are added. `left_out` counts the pairs
    whose devices are not drawn.
    """

    repeat: int
    stopping: tuple[str, ...]
    stopped: tuple[str, ...]
    paused_ns: dict[str, _Pairs]
    left_out: int


def paused_pairs(shown: ShownRepeat) -> PausedPairs | None:
    """Return who stopped whom; None if nobody did, or no switch of the trials could."""
    paused_ns = {
        trial.tuner: _pairs(result)
        for trial, result in zip(shown.trials, shown.results, strict=True)
    }
    total: _Pairs = defaultdict(int)
    for pairs in paused_ns.values():
        for pair, ns in pairs.items():
            total[pair] += ns
    if not total:
        return None
    order = {device.name: place for place, device in enumerate(shown.results[0].testbed.devices)}
    stopping, stopped = (_longest(total, side, order) for side in (0, 1))
    left = [pair for pair in total if pair[0] not in stopping or pair[1] not in stopped]
    return PausedPairs(shown.repeat, stopping, stopped, paused_ns, len(left))


def _pairs(result: TrialResult) -> _Pairs:
    """Return the pairs of one trial, by its last sample."""
    table = result.table("pauses")
    last = table["t_ns"] == table["t_ns"].max(initial=-1)
    peers = _peers(result.testbed)
    pairs: _Pairs = defaultdict(int)
    columns = (table[name][last].tolist() for name in ("device", "port", "pausing_ns"))
    for device, port, ns in zip(*columns, strict=True):
        if ns > 0:
            pairs[device, peers[device, port]] += ns
    return dict(pairs)


def _peers(testbed: Testbed) -> dict[tuple[str, str], str]:
    return {
        (port.device, port.name): testbed.peer_device(port).name for port in testbed.switch_ports
    }


def _longest(total: _Pairs, side: int, order: dict[str, int]) -> tuple[str, ...]:
    """Return the devices on one side of the pairs that last longest, in the testbed's order."""
    sums: dict[str, int] = defaultdict(int)
    for pair, ns in total.items():
        sums[pair[side]] += ns
    most = sorted(sums, key=lambda name: (-sums[name], order[name]))[:_MOST_DEVICES]
    return tuple(sorted(most, key=order.__getitem__))


def pause_picture(found: PausedPairs, colours: Colours) -> Picture:
    """Draw a cell for each pair of neighbours: the time for which the row stopped the column."""
    top_ms = max(ns for pairs in found.paused_ns.values() for ns in pairs.values()) / 1e6
    figure = cell_panels(
        {tuner: _panel(pairs, found) for tuner, pairs in found.paused_ns.items()},
        colours,
        says=": %{y} stopped %{x} for %{text}",
        row_pixels=_ROW_PIXELS,
        x_title="is stopped by the row",
        scale={"colorscale": _SCALE, "cmin": 0, "cmax": top_ms},
        scale_title="time stopped, ms",
        below_pixels=_NAMES_PIXELS,
    )
    figure.update_xaxes(type="category", showgrid=False, tickangle=-90, dtick=1)
    return Picture(
        _most(found),
        f"{_counts(found)} Each cell is how long the device of the row had stopped that of the "
        f"column, all their cables and lossless classes added, in repeat {found.repeat}."
        f"{_left(found)}",
        figure,
        "who-stops-whom",
        rows_of(
            {"tuner": tuner, "stops": pair[0], "stopped": pair[1], "paused_ns": ns}
            for tuner, pairs in found.paused_ns.items()
            for pair, ns in sorted(pairs.items())
        ),
    )


def _panel(pairs: _Pairs, found: PausedPairs) -> Cells:
    grid = [[pairs.get((a, b)) for b in found.stopped] for a in found.stopping]
    return Cells(
        list(found.stopped),
        list(found.stopping),
        [[None if ns is None else round(ns / 1e6, 4) for ns in line] for line in grid],
        [["" if ns is None else quantity(ns, "ns") for ns in line] for line in grid],
    )


def _most(found: PausedPairs) -> str:
    tuner, pair, ns = max(
        (
            (tuner, pair, ns)
            for tuner, pairs in found.paused_ns.items()
            for pair, ns in pairs.items()
        ),
        key=lambda item: item[2],
    )
    return f"{pair[0]} stopped {pair[1]} the longest: {quantity(ns, 'ns')}, with {tuner}"


def _counts(found: PausedPairs) -> str:
    clauses = []
    for tuner, pairs in found.paused_ns.items():
        stopping, stopped = (len({pair[side] for pair in pairs}) for side in (0, 1))
        clauses.append(
            f"with {tuner} {stopped} devices were stopped by {stopping}, for "
            f"{quantity(sum(pairs.values()), 'ns')} in all"
        )
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _left(found: PausedPairs) -> str:
    return f" {found.left_out} more pairs are not drawn." if found.left_out else ""
