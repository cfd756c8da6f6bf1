"""A testbed's key figures, JSON-ready (tiers, links, oversubscription, base RTTs), and a drawing.

A base RTT is propagation only. The bandwidth-delay product (BDP) is the base RTT times the rate of
the path's slowest link.

The drawing shows the top switches, and below them the parts that they connect. Each column is a set
of devices that stay connected without the top tier: a leaf with its hosts, a rack of leaves that
share hosts, a pod of a fat tree. If not all columns fit, those in the middle are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inventory.routing import PathTable, attachment
from orchestration.core.topology import Link, Testbed, reachable
from orchestration.core.units import format_rate


def summarise(testbed: Testbed) -> dict[str, Any]:
    """Return the testbed's figures, as plain data with units in the names."""
    return {
        "name": testbed.name,
        "description": testbed.description,
        "source": testbed.source,
        "hosts": len(testbed.hosts),
        "switches": len(testbed.switches),
        "mtu_bytes": testbed.mtu_bytes,
        "port_buffer_bytes": max(port.buffer_bytes for port in testbed.switch_ports),
        "classes": _classes(testbed),
        "tiers": _tiers(testbed),
        "links": _links(testbed),
        "paths": _paths(testbed),
    }


def tier_name(testbed: Testbed, tier: int) -> str:
    """Return the common name of a tier's devices, `leaf` for leaf1, leaf2; else `tier 1`."""
    if tier == 0:
        return "host"
    names = {d.name.rstrip("0123456789_") for d in testbed.devices if d.tier == tier}
    return names.pop() if len(names) == 1 else f"tier {tier}"


def _classes(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each traffic class; empty if ports have one queue."""
    total = sum(klass.weight for klass in testbed.classes)
    return [
        {
            "name": klass.name,
            "weight": klass.weight,
            "share": klass.weight / total,
            "congestion_control": klass.congestion_control,
            "queue_buffer_bytes": max(q.buffer_bytes for q in testbed.queues if q.klass == number),
        }
        for number, klass in enumerate(testbed.classes)
    ]


def _tiers(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each tier, hosts first; oversubscription is that of its worst device."""
    rows = []
    for tier in sorted({device.tier for device in testbed.devices}):
        names = [device.name for device in testbed.devices if device.tier == tier]
        ratios = [ratio for name in names if (ratio := _oversubscription(testbed, name))]
        rows.append(
            {
                "tier": tier,
                "name": tier_name(testbed, tier),
                "devices": len(names),
                "ports_per_device": max(len(testbed.ports_of[name]) for name in names),
                "oversubscription": max(ratios, default=None),
            }
        )
    return rows


def _oversubscription(testbed: Testbed, name: str) -> float:
    """Return a device's bandwidth down divided by that up, 0 if it lacks either."""
    tier = testbed.device[name].tier
    down = up = 0
    for port in testbed.ports_of[name]:
        if testbed.peer_device(port).tier > tier:
            up += port.rate_bps
        else:
            down += port.rate_bps
    return down / up if up else 0.0


def _links(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each kind of link: the tiers that it connects, rate and delay."""
    kinds: Counter[tuple[int, int, int, int]] = Counter()
    for link in testbed.links:
        ends = (testbed.device[testbed.ports[port].device].tier for port in (link.a, link.b))
        low, high = sorted(ends)
        kinds[low, high, link.rate_bps, link.delay_ns] += 1
    return [
        {
            "between": [tier_name(testbed, low), tier_name(testbed, high)],
            "links": count,
            "rate_bps": rate_bps,
            "delay_ns": delay_ns,
        }
        for (low, high, rate_bps, delay_ns), count in sorted(kinds.items())
    ]


def _paths(testbed: Testbed) -> list[dict[str, Any]]:
    """Return a row for each length of path between hosts, with its longest base RTT.

    Two hosts represent all that attach to the same switches.
    """
    racks: dict[tuple[str, ...], list[str]] = {}
    for host in testbed.hosts:
        racks.setdefault(attachment(testbed, host), []).append(host)
    hosts = [host for rack in racks.values() for host in rack[:2]]
    table = PathTable(testbed)
    longest: dict[int, tuple[int, int]] = {}
    for src in hosts:
        for dst in hosts:
            if src != dst:
                path = table.path(src, dst)
                rtt_ns = table.base_rtt_ns(src, dst)
                row = (rtt_ns, rtt_ns * path.rate_bps // (8 * 10**9))
                longest[path.hops] = max(row, longest.get(path.hops, row))
    return [
        {"switches": hops - 1, "base_rtt_ns": rtt_ns, "bdp_bytes": bdp_bytes}
        for hops, (rtt_ns, bdp_bytes) in sorted(longest.items())
    ]


_GAP = 2
_MAX_NAME_CHARS = 20
# Characters of the bus, the horizontal line between two tiers, by whether they join to the left, to
# the right, upwards and downwards.
_JOINTS = {
    (0, 0, 1, 1): "│",
    (1, 1, 0, 0): "─",
    (1, 1, 1, 0): "┴",
    (1, 1, 0, 1): "┬",
    (1, 1, 1, 1): "┼",
    (0, 1, 1, 0): "└",
    (0, 1, 0, 1): "┌",
    (0, 1, 1, 1): "├",
    (1, 0, 1, 0): "┘",
    (1, 0, 0, 1): "┐",
    (1, 0, 1, 1): "┤",
}


@dataclass(frozen=True)
class _Column:
    """A box with lines of text, and a text below it. Without lines there is only the text."""

    lines: tuple[str, ...] = ()
    below: str = ""

    @property
    def width(self) -> int:
        inside = max((len(line) + 4 for line in self.lines), default=0)
        return max(inside, len(self.below))


_OMITTED = _Column(below="…")


def draw_topology(testbed: Testbed, width: int = 80) -> list[str]:
    """Return the lines of the drawing, each at most `width` columns wide."""
    top = max(device.tier for device in testbed.devices)
    tiers = sorted({d.tier for d in testbed.devices if 0 < d.tier < top}, reverse=True)
    labels = [tier_name(testbed, tier) for tier in (top, *tiers)]
    tier_of = {device.name: device.tier for device in testbed.devices}
    rates = [_cabling(testbed, top, frozenset)]
    rates.append(_cabling(testbed, 0, lambda ends: min(ends, key=tier_of.__getitem__)))
    margin = max(len(text) for text in (*labels, *rates)) + 3
    roots = _fitting(
        [_Column((_short(d.name),)) for d in testbed.devices if d.tier == top], width - margin
    )
    columns = _fitting(
        [_column(testbed, names, tiers) for names in _connected_sets(testbed, top)], width - margin
    )
    span = max(_total(roots), _total(columns))
    root_centres = _centres(roots, span)
    column_centres = _centres(columns, span)

    page = _Page(margin)
    for centre, root in zip(root_centres, roots, strict=True):
        page.box(0, centre, root)
    page.label(1, labels[0])
    page.bus(3, _shown_centres(root_centres, roots), _shown_centres(column_centres, columns))
    page.label(3, rates[0])
    hosts_row = 4
    if tiers:
        hosts_row = 7 + len(tiers)
        for centre, column in zip(column_centres, columns, strict=True):
            if column is not _OMITTED:
                for row in range(4, hosts_row):
                    page.text(row, centre, "│")
            page.box(4, centre, column)
        for row, label in enumerate(labels[1:], start=5):
            page.label(row, label)
        page.label(hosts_row - 1, rates[1])
    for centre, column in zip(column_centres, columns, strict=True):
        page.text(hosts_row, centre, column.below)
    page.label(hosts_row, "host")
    return page.lines()


class _Page:
    """Characters by row and column, right of a margin for labels."""

    def __init__(self, margin: int) -> None:
        self._margin = margin
        self._cells: dict[tuple[int, int], str] = {}

    def label(self, row: int, text: str) -> None:
        self._put(row, 1 - self._margin, text)

    def text(self, row: int, centre: int, text: str) -> None:
        self._put(row, centre - len(text) // 2, text)

    def box(self, row: int, centre: int, column: _Column) -> None:
        if not column.lines:
            self.text(row + 1, centre, column.below if column is _OMITTED else "")
            return
        inner = max(len(line) for line in column.lines) + 2
        left = centre - (inner + 2) // 2
        for number, line in enumerate(column.lines, start=1):
            self._put(row + number, left, f"│{line:^{inner}}│")
        self._put(row, left, f"┌{'─' * inner}┐")
        self._put(row + len(column.lines) + 1, left, f"└{'─' * inner}┘")
        self._put(row + len(column.lines) + 1, centre, "┬")
        if row:
            self._put(row, centre, "┴")

    def bus(self, row: int, above: Sequence[int], below: Sequence[int]) -> None:
        first, last = min(*above, *below), max(*above, *below)
        for x in range(first, last + 1):
            joins = (x > first, x < last, x in above, x in below)
            self._put(row, x, _JOINTS[joins])

    def lines(self) -> list[str]:
        height = max(row for row, _ in self._cells) + 1
        width = max(x for _, x in self._cells) + 1
        return [
            "".join(self._cells.get((row, x), " ") for x in range(-self._margin, width)).rstrip()
            for row in range(height)
        ]

    def _put(self, row: int, x: int, text: str) -> None:
        self._cells.update({(row, x + i): char for i, char in enumerate(text)})


def _connected_sets(testbed: Testbed, top: int) -> list[list[str]]:
    """Return the sets of devices that are connected without the top tier, in the testbed's order.

    Hosts that connect only to the top tier form one set, the last.
    """
    neighbours: dict[str, list[str]] = {d.name: [] for d in testbed.devices if d.tier < top}
    for link in testbed.links:
        a, b = _ends(testbed, link)
        if a in neighbours and b in neighbours:
            neighbours[a].append(b)
            neighbours[b].append(a)
    groups: list[list[str]] = []
    alone: list[str] = []
    seen: set[str] = set()
    for name, others in neighbours.items():
        if not others and testbed.device[name].kind == "host":
            alone.append(name)
        elif name not in seen:
            group = reachable(name, neighbours.__getitem__)
            seen.update(group)
            groups.append([other for other in neighbours if other in group])
    return [*groups, alone] if alone else groups


def _column(testbed: Testbed, names: Sequence[str], tiers: Sequence[int]) -> _Column:
    by_tier = {tier: [n for n in names if testbed.device[n].tier == tier] for tier in (0, *tiers)}
    has_box = any(by_tier[tier] for tier in tiers)
    lines = tuple(_span(by_tier[tier]) for tier in tiers) if has_box else ()
    return _Column(lines, _span(by_tier[0]))


def _span(names: Sequence[str]) -> str:
    """Return `h1..h6` for consecutively numbered names, else as many names as are easy to read."""
    if len(names) > 2:
        stem = names[0].rstrip("0123456789")
        first = names[0].removeprefix(stem)
        if first and list(names) == [f"{stem}{int(first) + i}" for i in range(len(names))]:
            return _short(f"{names[0]}..{names[-1]}")
    return _short(", ".join(names))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME_CHARS else text[: _MAX_NAME_CHARS - 1] + "…"


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """Return as many columns as fit into `width`: the first ones, a gap, and the last one."""
    if _total(columns) <= width:
        return columns
    shown = columns[:1]
    for column in columns[1:-1]:
        if _total([*shown, column, _OMITTED, columns[-1]]) > width:
            break
        shown.append(column)
    return [*shown, _OMITTED, columns[-1]]


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _centres(columns: Sequence[_Column], span: int) -> list[int]:
    """Return the position of each column's middle, with the row centred in `span`."""
    left = (span - _total(columns)) // 2
    root_centres = []
    for column in columns:
        root_centres.append(left + column.width // 2)
        left += column.width + _GAP
    return root_centres


def _shown_centres(root_centres: Sequence[int], columns: Sequence[_Column]) -> list[int]:
    return [x for x, column in zip(root_centres, columns, strict=True) if column is not _OMITTED]


def _cabling(testbed: Testbed, tier: int, key: Callable[[tuple[str, str]], object]) -> str:
    """Return text such as `2x100Gbps` for the links of a tier's devices.

    `key` takes a link's two devices; the number is that of the links with the commonest key.
    """
    links = [
        (ends, link.rate_bps)
        for link in testbed.links
        for ends in (_ends(testbed, link),)
        if tier in {testbed.device[name].tier for name in ends}
    ]
    rates = "/".join(format_rate(rate) for rate in sorted({rate for _, rate in links}))
    maximum = max(Counter(key(ends) for ends, _ in links).values())
    return f"{maximum}x{rates}" if maximum > 1 else rates


def _ends(testbed: Testbed, link: Link) -> tuple[str, str]:
    return testbed.ports[link.a].device, testbed.ports[link.b].device
