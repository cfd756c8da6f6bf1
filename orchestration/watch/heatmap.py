"""The layout of a heat map: the fabric as rows of cells, the top tier first.

There is a cell per port, or per device if ports have no room. Levels are numbers from 0 to 8, drawn
as heights: 0 is empty, 1 to 7 are eighths, 8 is full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inventory.summary import tier_name
from orchestration.core.records import Floats
from orchestration.core.topology import Testbed

FULL = 8
UNKNOWN = -1
_GAP = 2
# Below this a queue or a link counts as empty.
_NOTHING = 0.002


@dataclass(frozen=True)
class Cell:
    """A cell, which shows the highest value of these switch ports, given by their indices."""

    ports: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A device with a cell per port; or, without a name, many devices with one cell each."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def width(self) -> int:
        """Return the number of columns, which the name above the cells needs as well."""
        return max(len(self.name), len(self.cells))


@dataclass(frozen=True)
class MapRow:
    """One row of the map: its tier, and its blocks from left to right."""

    tier: str
    blocks: tuple[Block, ...]

    @property
    def lines(self) -> int:
        """Return the number of lines of text: names if there are any, queues, and links."""
        return 3 if any(block.name for block in self.blocks) else 2


@dataclass(frozen=True)
class HeatMap:
    """The rows of a heat map.

    `margin` is the width of their labels in columns, and `left_out` the number of devices that have
    no room.
    """

    rows: tuple[MapRow, ...]
    margin: int
    cell_is_port: bool
    left_out: int


def lay_out(testbed: Testbed, width: int, lines: int) -> HeatMap:
    """Return the fabric's map in at most `width` columns and `lines` lines of text.

    Cells are ports if all of them have room, else devices. Devices without room are counted.
    """
    tiers = sorted({testbed.device[name].tier for name in testbed.switches}, reverse=True)
    labels = {tier: tier_name(testbed, tier) for tier in tiers}
    margin = max(len(label) for label in labels.values()) + 4
    port_index = {port.index: index for index, port in enumerate(testbed.switch_ports)}
    devices = {
        tier: [
            (name, tuple(port_index[port.index] for port in testbed.ports_of[name]))
            for name in testbed.switches
            if testbed.device[name].tier == tier
        ]
        for tier in tiers
    }
    by_port = [
        MapRow(labels[tier], tuple(blocks))
        for tier in tiers
        for blocks in _wrapped(
            [Block(name, tuple(Cell((p,)) for p in ports)) for name, ports in devices[tier]],
            width - margin,
        )
    ]
    if sum(row.lines for row in by_port) <= lines and all(
        sum(block.width for block in row.blocks) <= width - margin for row in by_port
    ):
        return HeatMap(tuple(by_port), margin, cell_is_port=True, left_out=0)
    room = max(1, width - margin)
    by_device = [
        MapRow(labels[tier], (Block("", tuple(Cell(ports) for _, ports in some)),))
        for tier in tiers
        for some in (devices[tier][at : at + room] for at in range(0, len(devices[tier]), room))
    ]
    shown_rows = by_device[: max(1, lines // 2)]
    left_out = sum(len(row.blocks[0].cells) for row in by_device[len(shown_rows) :])
    return HeatMap(tuple(shown_rows), margin, cell_is_port=False, left_out=left_out)


def level(cell: Cell, values: Floats) -> int:
    """Return the level of a cell, 0 to 8, or UNKNOWN.

    `values` has shape (ports,), with 1.0 for full and NaN for unknown. The highest value of the
    cell's ports counts.
    """
    known = [value for port in cell.ports if not math.isnan(value := float(values[port]))]
    if not known:
        return UNKNOWN
    value = max(known)
    if value < _NOTHING:
        return 0
    return FULL if value >= 1 else min(FULL - 1, 1 + math.floor(value * (FULL - 1)))


def _wrapped(blocks: Sequence[Block], width: int) -> list[list[Block]]:
    """Return the blocks in rows of at most `width` columns; a wider block gets a row of its own."""
    rows: list[list[Block]] = [[]]
    used = 0
    for block in blocks:
        if rows[-1] and used + _GAP + block.width > width:
            rows.append([])
            used = 0
        used += block.width + (_GAP if rows[-1] else 0)
        rows[-1].append(block)
    return rows
