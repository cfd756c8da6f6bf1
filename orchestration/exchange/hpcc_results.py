"""Read the output files of the HPCC ns-3 simulator and its forks: fct and pfc.

Times are simulator time in ns. Hosts are addresses of eight hexadecimal digits with the node's id
in the middle 16 bits, or, in ConWeave's files, the id itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestration.exchange.hpcc_inputs import HpccFlows, HpccTopology, check_hosts
from orchestration.exchange.textrows import CHECK_FORMAT, Rows, joined, rows
from orchestration.model.csv_columns import refuse, shown
from orchestration.model.errors import InputError
from orchestration.model.records import Ints

# The simulator reads start times as doubles in seconds, and truncates them to nanoseconds.
_ROUNDING_NS = (0, -1, 1)
_FIRST_PORT = 10000
# The columns after the two hosts: name in messages, and least value.
_FCT_COLUMNS = (
    ("the port", 0),
    ("the port", 0),
    ("the size", 1),
    ("the start", 0),
    ("the completion time", 1),
    ("the standalone time", 1),
)
# 2 and 3 are written by a fork, at the sending switch, one link delay earlier.
PFC_KINDS = {0: "pfc-resume", 1: "pfc-pause", 2: "pfc-pause-sent", 3: "pfc-resume-sent"}


@dataclass(frozen=True)
class HpccFct:
    """The rows of an fct file in its order: arrays of shape (rows,), with line numbers."""

    path: Path
    line: Ints
    src: Ints
    dst: Ints
    sport: Ints
    dport: Ints
    size_bytes: Ints
    start_ns: Ints
    fct_ns: Ints
    alone_ns: Ints

    def __len__(self) -> int:
        return len(self.line)

    @property
    def ordered(self) -> bool:
        """True if the end times never decrease, as in the simulator's own files."""
        return bool(np.all(np.diff(self.start_ns + self.fct_ns) >= 0))


def read_fct(path: Path, topology: HpccTopology) -> HpccFct:
    """Read an fct file of eight columns, or of nine with the flow's number first.

    Raises InputError, with the line, for other formats, and for hosts not in the topology.
    """
    parts: list[tuple[Ints, ...]] = []
    for block in rows(path, (8, 9), what="a finished flow"):
        shift = len(block.columns) - 8
        src, dst = (_nodes(block, shift + column) for column in (0, 1))
        check_hosts(block, topology, src, dst)
        rest = (
            block.integers(shift + column, name, least=least)
            for column, (name, least) in enumerate(_FCT_COLUMNS, start=2)
        )
        parts.append((np.array(block.lines, dtype=np.int64), src, dst, *rest))
    if not parts:
        raise InputError.single(
            str(path), "has no finished flows", "give the file of a run that came to its end"
        )
    return HpccFct(path, *joined(parts))


def _nodes(block: Rows, column: int) -> Ints:
    """Return node ids from addresses like 0b000501, or from decimal ids."""
    known: dict[bytes, int] = {}
    for row, cell in enumerate(block.columns[column]):
        if cell not in known:
            known[cell] = _node(block, row, cell)
    return np.array([known[cell] for cell in block.columns[column]], dtype=np.int64)


def _node(block: Rows, row: int, cell: bytes) -> int:
    if cell.isdigit() and not (len(cell) == 8 and cell.startswith(b"0")):
        return int(cell)
    if not re.fullmatch(rb"0[bB][0-9a-fA-F]{6}", cell):
        what = f"{shown(cell)} is neither an address like 0b000501 nor an id"
        block.refuse(row, what, CHECK_FORMAT)
    return (int(cell, 16) >> 8) & 0xFFFF


@dataclass(frozen=True)
class Pairing:
    """The flow of each fct row, shape (rows,); `off` counts rows that differ by a nanosecond."""

    flow: Ints
    off: int


def pair(fct: HpccFct, flows: HpccFlows) -> Pairing:
    """Pair the rows of an fct file with the flows of the flow file of the same run.

    They match by source, destination, size and start, and by destination port if the flow file has
    it. The simulator's source ports count the flows of a pair of hosts, which distinguishes equal
    flows; where the count does not fit, equal flows match in the order of their source ports.
    Raises InputError, with the line, for a row without a flow or with the flow of another row.
    """
    ported = bool(flows.dport.any())
    flow = _by_source_port(fct, flows, ported)
    free = np.ones(len(flows), dtype=bool)
    free[flow[flow >= 0]] = False
    off = int(np.count_nonzero(fct.start_ns[flow >= 0] != flows.start_ns[flow[flow >= 0]]))
    for delta in _ROUNDING_NS:
        rows_left = np.flatnonzero(flow < 0)
        flows_left = np.flatnonzero(free)
        if not len(rows_left) or not len(flows_left):
            break
        wanted = [fct.src, fct.dst, fct.size_bytes, fct.start_ns - delta]
        offered = [flows.src, flows.dst, flows.size_bytes, flows.start_ns]
        if ported:
            wanted.append(fct.dport)
            offered.append(flows.dport)
        found = _matches(
            [column[rows_left] for column in wanted],
            fct.sport[rows_left],
            [column[flows_left] for column in offered],
        )
        hit = found >= 0
        flow[rows_left[hit]] = flows_left[found[hit]]
        free[flows_left[found[hit]]] = False
        off += int(np.count_nonzero(hit)) if delta else 0
    if (flow < 0).any():
        row = int(np.argmax(flow < 0))
        more = int(np.count_nonzero(flow < 0)) - 1
        refuse(
            fct.path,
            int(fct.line[row]),
            f"{flows.path} has no flow (or no further one) from {fct.src[row]} to {fct.dst[row]} "
            f"of {fct.size_bytes[row]} B at {fct.start_ns[row]} ns"
            + (f", and {more} more rows have none" if more else ""),
            "give the flow file of the same run; a row that stands twice must go",
        )
    return Pairing(flow, off)


def _by_source_port(fct: HpccFct, flows: HpccFlows, ported: bool) -> Ints:
    """Return each row's flow by the count in its source port, -1 where that does not match."""
    pair_of = flows.src << 32 | flows.dst
    order = np.argsort(pair_of, kind="stable")
    pairs, first = np.unique(pair_of[order], return_index=True)
    counts = np.diff(np.append(first, len(order)))
    wanted = fct.src << 32 | fct.dst
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    rank = fct.sport - _FIRST_PORT
    known = (pairs[place] == wanted) & (rank >= 0) & (rank < counts[place])
    flow = order[np.where(known, first[place] + rank, 0)]
    known &= flows.size_bytes[flow] == fct.size_bytes
    known &= np.abs(flows.start_ns[flow] - fct.start_ns) <= 1
    if ported:
        known &= flows.dport[flow] == fct.dport
    found = np.where(known, flow, -1)
    # Of duplicate rows, only one gets the flow; the caller refuses the others.
    _, once = np.unique(found, return_index=True)
    again = np.ones(len(found), dtype=bool)
    again[once] = False
    return np.where(again, -1, found)


def _matches(wanted: Sequence[Ints], order: Ints, offered: Sequence[Ints]) -> Ints:
    """Return for each wanted row the index of the offered row with the same key, or -1.

    Wanted rows with equal keys are matched in `order`, offered rows in their own order.
    """
    count = len(wanted[0])
    columns = [np.concatenate(pair) for pair in zip(wanted, offered, strict=True)]
    side = np.concatenate((order, np.arange(len(offered[0]))))
    is_offer = np.arange(len(side)) >= count
    sequence = np.lexsort((side, is_offer, *columns))
    same = np.ones(len(sequence), dtype=bool)
    same[0] = False
    for column in columns:
        ordered = column[sequence]
        same[1:] &= ordered[1:] == ordered[:-1]
    group = np.cumsum(~same) - 1
    first = np.flatnonzero(~same)
    offers = np.zeros(len(first), dtype=np.int64)
    np.add.at(offers, group[is_offer[sequence]], 1)
    asked = np.diff(np.append(first, len(sequence))) - offers
    result = np.full(count, -1, dtype=np.int64)
    rank = np.arange(len(sequence)) - first[group]
    asks = ~is_offer[sequence] & (rank < offers[group])
    place = first[group] + asked[group] + rank
    result[sequence[asks]] = sequence[place[asks]] - count
    return result


@dataclass(frozen=True)
class HpccPauses:
    """The rows of a pfc file: arrays of shape (rows,). `port` is an index into a node's links."""

    t_ns: Ints
    node: Ints
    port: Ints
    kind: Ints


def read_pfc(path: Path, topology: HpccTopology) -> HpccPauses:
    """Read a pfc file. Raises InputError, with the line, for a port not in the topology."""
    ports = port_counts(topology)
    parts = []
    for block in rows(path, (5,), what="a pause"):
        t_ns, node, _, port, kind = (
            block.integers(n, name)
            for n, name in enumerate(("the time", "the node", "the type", "the port", "the pause"))
        )
        bad = (node >= topology.nodes) | (kind > 3) | (port < 1)
        bad |= port > ports[np.minimum(node, topology.nodes - 1)]
        if bad.any():
            row = int(np.argmax(bad))
            what = f"no node {node[row]} with a port {port[row]} and a pause {kind[row]} (0 to 3)"
            block.refuse(row, what, "give the topology file of the same run")
        parts.append((t_ns, node, port - 1, kind))
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return HpccPauses(none, none, none, none)
    return HpccPauses(*joined(parts))


def port_counts(topology: HpccTopology) -> Ints:
    """Return how many links each node has, shape (nodes,)."""
    ends = [end for link in topology.links for end in (link.a, link.b)]
    return np.bincount(np.array(ends, dtype=np.int64), minlength=topology.nodes)
