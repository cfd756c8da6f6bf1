"""Packets by path: how each switch spread its packets over its ports upwards, a panel per tuner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestration.analysis.device_figures import packets_by_uplink, shares
from orchestration.analysis.figure_parts import Cells, cell_panels
from orchestration.analysis.report.shown import ShownRepeat
from orchestration.analysis.sample_parts import after_warm_up
from orchestration.core.records import Ints
from orchestration.render.figure_style import Colours
from orchestration.render.page import Picture, rows_of

# The most rows whose names are readable on a phone.
_MOST_SWITCHES = 24
_ROW_PIXELS = 16
# Brewer's Blues, as lightness only; dark means much.
_SCALE = [(0, "#EFF3FF"), (0.25, "#BDD7E7"), (0.5, "#6BAED6"), (0.75, "#3182BD"), (1, "#08306B")]


@dataclass(frozen=True)
class UplinkPackets:
    """Packets of switches by uplink in one repeat: tuner -> switch -> (uplinks,).

    `left_out` counts the switches that are not drawn, which sent fewer.
    """

    repeat: int
    packets: dict[str, dict[str, Ints]]
    left_out: int


def uplink_packets(shown: ShownRepeat) -> UplinkPackets | None:
    """Return the packets by uplink; None if no switch has a choice."""
    found = {
        trial.tuner: packets_by_uplink(result.testbed, after_warm_up(result, "queue"))
        for trial, result in zip(shown.trials, shown.results, strict=True)
    }
    names = list(next(iter(found.values())))
    if not names:
        return None
    total = {name: sum(int(rows[name].sum()) for rows in found.values()) for name in names}
    most = set(sorted(names, key=lambda name: -total[name])[:_MOST_SWITCHES])
    drawn = {
        tuner: {name: row for name, row in rows.items() if name in most}
        for tuner, rows in found.items()
    }
    return UplinkPackets(shown.repeat, drawn, len(names) - len(most))


def uplink_picture(found: UplinkPackets, colours: Colours) -> Picture:
    """Draw a cell for each uplink: its share of its switch's packets."""
    first = next(iter(found.packets.values()))
    wide = max(len(row) for row in first.values())
    top = max(float(np.nanmax(shares(row), initial=0)) for row in _rows(found))
    figure = cell_panels(
        {tuner: _panel(rows, wide) for tuner, rows in found.packets.items()},
        colours,
        says=": %{y} sent %{text} by port %{x}",
        row_pixels=_ROW_PIXELS,
        x_title="port to the tier above",
        scale={"colorscale": _SCALE, "cmin": 0, "cmax": round(100 * top, 1)},
        scale_title="of the switch's packets, %",
    )
    figure.update_xaxes(type="category", showgrid=False, dtick=1)
    left = f" {found.left_out} more switches sent fewer." if found.left_out else ""
    return Picture(
        _title(found),
        "Each cell is an uplink's share of the packets that its switch sent upwards, in repeat "
        f"{found.repeat}; evenly spread they would be equal in a row.{left}",
        figure,
        "packets-by-path",
        rows_of(
            {"tuner": tuner, "switch": name, "uplink": place, "packets": count}
            for tuner, by_switch in found.packets.items()
            for name, row in by_switch.items()
            for place, count in enumerate(row.tolist(), start=1)
        ),
    )


def _rows(found: UplinkPackets) -> list[Ints]:
    return [row for rows in found.packets.values() for row in rows.values()]


def _panel(rows: dict[str, Ints], wide: int) -> Cells:
    grid = [[*(100 * shares(row)).tolist(), *[None] * (wide - len(row))] for row in rows.values()]
    cells = [[None if cell is None or cell != cell else cell for cell in line] for line in grid]
    return Cells(
        [str(place + 1) for place in range(wide)],
        list(rows),
        [[None if cell is None else round(cell, 2) for cell in line] for line in cells],
        [["" if cell is None else f"{cell:.1f} %" for cell in line] for line in cells],
    )


def _title(found: UplinkPackets) -> str:
    tuner, name, share, even = max(
        (
            (tuner, name, float(np.nanmax(shares(row))), 1 / len(row))
            for tuner, rows in found.packets.items()
            for name, row in rows.items()
            if row.sum()
        ),
        key=lambda item: item[2] / item[3],
        default=("", "", 0.0, 1.0),
    )
    if not name:
        return "No switch sent anything upwards"
    return (
        f"The most uneven switch is {name}: {share:.0%} by one port, where {even:.0%} were even, "
        f"with {tuner}"
    )
