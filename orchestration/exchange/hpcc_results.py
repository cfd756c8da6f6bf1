"""Read the output files of the HPCC ns-3 simulator and its forks: fct, pfc and queue lengths.

Times are the simulator's, in ns. Hosts are addresses of eight hexadecimal digits with the node's id
in the middle 16 bits or, in ConWeave's files, the ids themselves.

Queue lengths are histograms and no time series: the simulator samples every port every 100 ns, and
writes all samples since the start, but only at whole multiples of 100 ms (`monitor_buffer` in
alibaba-edu/High-Precision-Congestion-Control, scratch/third.cc).
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.core.csv_columns import numbered_lines, quoted_cell, refuse
from orchestration.core.errors import InputError
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration
from orchestration.exchange.hpcc_inputs import HpccFlows, HpccTopology, check_hosts
from orchestration.exchange.textrows import CHECK_FORMAT, Rows, concatenated, head, rows
from orchestration.results.stamp import Reason

# The simulator reads start times as doubles in seconds, and truncates them to nanoseconds.
_ROUNDING_NS = (0, -1, 1)
_FIRST_PORT = 10000
# The columns after the two hosts: their names in messages, and their minimum.
_FCT_COLUMNS = (
    *(("the port", 0), ("the port", 0), ("the size", 1), ("the start", 0)),
    *(("the completion time", 1), ("the standalone time", 1)),
)
_BIN_BYTES = 1000
_PERIOD_NS = 100
# A fork writes 2 and 3, at the switch that sends them, one link delay earlier.
PFC_KINDS = {0: "pfc-resume", 1: "pfc-pause", 2: "pfc-pause-sent", 3: "pfc-resume-sent"}


@dataclass(frozen=True)
class HpccFct:
    """The rows of an fct file in its order: arrays of shape (rows,), with line numbers.

    `standalone_ns` is the completion time on an idle path, as the simulator computes it.
    """

    path: Path
    line: Ints
    src: Ints
    dst: Ints
    sport: Ints
    dport: Ints
    size_bytes: Ints
    start_ns: Ints
    fct_ns: Ints
    standalone_ns: Ints

    def __len__(self) -> int:
        return len(self.line)

    @property
    def ordered(self) -> bool:
        """Whether the flows are in the order of their ends, as in the simulator's own files."""
        return bool(np.all(np.diff(self.start_ns + self.fct_ns) >= 0))


def read_fct(path: Path, topology: HpccTopology) -> HpccFct:
    """Read an fct file of eight columns, or of nine with the flow's number first.

    Raises InputError, with the line, for other formats, and for hosts not in the topology.
    """
    parts: list[tuple[Ints, ...]] = []
    for block in rows(path, (8, 9), what="a completed flow"):
        shift = len(block.columns) - 8
        src, dst = (_nodes(block, shift + column) for column in (0, 1))
        check_hosts(block, topology, src, dst)
        rest = (
            block.integers(shift + column, name, minimum=minimum)
            for column, (name, minimum) in enumerate(_FCT_COLUMNS, start=2)
        )
        parts.append((np.array(block.lines, dtype=np.int64), src, dst, *rest))
    if not parts:
        raise InputError.single(
            str(path), "has no completed flows", "give the file of a run that has ended"
        )
    return HpccFct(path, *concatenated(parts))


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
        what = f"{quoted_cell(cell)} is neither an address like 0b000501 nor an id"
        block.refuse(row, what, CHECK_FORMAT)
    return (int(cell, 16) >> 8) & 0xFFFF


def match_flows(fct: HpccFct, flows: HpccFlows) -> tuple[Ints, int]:
    """Return for each fct row the number of its flow in the flow file of the same run (rows,).

    Also return how many rows start a nanosecond earlier or later than their flow.

    They match by source, destination, size and start, and by destination port if the flow file has
    ports. The simulator's source ports count the flows of a pair of hosts, which distinguishes
    equal flows. Where that count does not fit, equal flows match in the order of source ports.
    Raises InputError, with the line, for a row without a flow, or with the flow of another row.
    """
    has_ports = bool(flows.dport.any())
    flow = _by_source_port(fct, flows, has_ports)
    rounded = int(np.count_nonzero(fct.start_ns[flow >= 0] != flows.start_ns[flow[flow >= 0]]))
    names = ("src", "dst", "size_bytes", *(("dport",) if has_ports else ()))

    def keys(table: HpccFct | HpccFlows, rows: Ints, delta_ns: int = 0) -> Iterator[object]:
        start_ns = (table.start_ns[rows] - delta_ns).tolist()
        return zip(start_ns, *(getattr(table, name)[rows].tolist() for name in names), strict=True)

    waiting: dict[object, deque[int]] = defaultdict(deque)
    free = np.setdiff1d(np.arange(len(flows)), flow)
    for number, key in zip(free.tolist(), keys(flows, free), strict=True):
        waiting[key].append(number)
    for delta_ns in _ROUNDING_NS:
        left = np.flatnonzero(flow < 0)
        left = left[np.argsort(fct.sport[left], kind="stable")]
        for row, key in zip(left.tolist(), keys(fct, left, delta_ns), strict=True):
            if equal := waiting.get(key):
                flow[row] = equal.popleft()
                rounded += delta_ns != 0
    if (flow < 0).any():
        row = int(np.argmax(flow < 0))
        more = int(np.count_nonzero(flow < 0)) - 1
        refuse(
            fct.path,
            int(fct.line[row]),
            f"{flows.path} has no flow (or no further one) from {fct.src[row]} to {fct.dst[row]} "
            f"of {fct.size_bytes[row]} B at {fct.start_ns[row]} ns"
            + (f", and {more} more rows have none" if more else ""),
            "give the flow file of the same run, or remove a row that is there twice",
        )
    return flow, rounded


def _by_source_port(fct: HpccFct, flows: HpccFlows, has_ports: bool) -> Ints:
    """Return each row's flow by the count in its source port; -1 where that flow does not match."""
    pair_of = flows.src << 32 | flows.dst
    order = np.argsort(pair_of, kind="stable")
    pairs, first = np.unique(pair_of[order], return_index=True)
    counts = np.diff(np.append(first, len(order)))
    pair_of_row = fct.src << 32 | fct.dst
    index = np.minimum(np.searchsorted(pairs, pair_of_row), len(pairs) - 1)
    rank = fct.sport - _FIRST_PORT
    known = (pairs[index] == pair_of_row) & (rank >= 0) & (rank < counts[index])
    flow = order[np.where(known, first[index] + rank, 0)]
    known &= flows.size_bytes[flow] == fct.size_bytes
    known &= np.abs(flows.start_ns[flow] - fct.start_ns) <= 1
    if has_ports:
        known &= flows.dport[flow] == fct.dport
    matched = np.where(known, flow, -1)
    # of duplicate rows only one gets the flow; the caller refuses the others
    _, first_rows = np.unique(matched, return_index=True)
    duplicate = np.ones(len(matched), dtype=bool)
    duplicate[first_rows] = False
    return np.where(duplicate, -1, matched)


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
            what = (
                f"node {node[row]} has no port {port[row]}, or {kind[row]} is not a kind of pause "
                "(0 to 3)"
            )
            block.refuse(row, what, "give the topology file of the same run")
        parts.append((t_ns, node, port - 1, kind))
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return HpccPauses(none, none, none, none)
    return HpccPauses(*concatenated(parts))


def port_counts(topology: HpccTopology) -> Ints:
    """Return how many links each node has, shape (nodes,)."""
    ends = [end for link in topology.links for end in (link.a, link.b)]
    return np.bincount(np.array(ends, dtype=np.int64), minlength=topology.nodes)


def queue_facts(
    path: Path | None,
    topology: HpccTopology,
    testbed: Testbed,
    base_ns: int,
    start_ns: Ints,
    duration_ns: int,
    findings: list[Reason],
) -> dict[str, Any]:
    """Return queue lengths as a fact of the trial, up to the end of arrivals or the next writing.

    `start_ns` (flows,) are the flows' starts, `base_ns` is the simulator's time that is their 0,
    and `duration_ns` is how long flows arrive, 0 if unknown. If there are none from the time of the
    run, that is added to `findings`. They count as `while flows arrived` if they end when arrivals
    end, or after the last start by no more than the longest time between two starts.
    """
    if path is None:
        return {}
    last_ns = int(start_ns.max())
    arrived_ns = max(last_ns, duration_ns)
    histogram = _read(path, topology, base_ns + arrived_ns)
    from_ns, until_ns = histogram.from_ns - base_ns, histogram.until_ns - base_ns
    if until_ns <= int(start_ns.min()):
        text = (
            f"{path.name} has queue lengths until {format_duration(histogram.until_ns, 9)} only, "
            "before flows began: the simulator writes them at whole multiples of 100ms, and none "
            "of these is in the run"
        )
        findings.append(Reason("queues-unknown", "warning", text))
        return {}
    pause_ns = int(np.diff(np.sort(start_ns)).max(initial=0))
    covers_arrivals = from_ns >= 0 and last_ns <= until_ns <= max(
        arrived_ns + 1000, last_ns + pause_ns
    )
    labels = [device.name for device in testbed.devices]
    return {
        "queue_histogram": {
            "bin_bytes": _BIN_BYTES,
            "from_ns": from_ns,
            "until_ns": until_ns,
            "arrived_ns": arrived_ns,
            "while_flows_arrived": covers_arrivals,
            "queues": {
                testbed.ports_of[labels[switch]][port].label: {"counts": counts}
                for (switch, port), counts in sorted(histogram.counts.items())
            },
        }
    }


@dataclass(frozen=True)
class QueueHistogram:
    """The samples of queue lengths until a time, by switch and port, counted in bins of 1,000 B."""

    until_ns: int
    counts: dict[tuple[int, int], list[int]]

    @property
    def from_ns(self) -> int:
        """The time of the first sample."""
        samples = max(map(sum, self.counts.values()), default=1)
        return self.until_ns - (samples - 1) * _PERIOD_NS


def _read(path: Path, topology: HpccTopology, end_ns: int) -> QueueHistogram:
    """Read a file of queue lengths, in which each block counts all samples since the start.

    Returns the first block at or after `end_ns`, else the last one. Raises InputError, with the
    line, if a block has fewer samples than the one before it.
    """
    head(path, 1)
    ports = port_counts(topology)
    last = QueueHistogram(-1, {})
    block: QueueHistogram | None = None
    chosen: QueueHistogram | None = None
    for number, line in numbered_lines(path, "copy the file again"):
        cells = line.split()
        if not cells:
            continue
        try:
            if cells[0] == b"time:":
                (t_ns,) = (int(cell) for cell in cells[1:])
                if block is not None:
                    _check_counts_grow(path, number, last, block)
                    last = block
                if t_ns <= last.until_ns:
                    what = f"the time {t_ns} ns is not after {last.until_ns} ns"
                    refuse(path, number, what, "give the file of one run")
                block = QueueHistogram(t_ns, {})
                if chosen is None and t_ns >= end_ns:
                    chosen = block
                continue
            values = [int(cell) for cell in cells]
        except ValueError:
            refuse(
                path,
                number,
                f"{quoted_cell(line.strip())} is not the samples of a queue",
                CHECK_FORMAT,
            )
        if block is None:
            refuse(path, number, "comes before the first `time:`", CHECK_FORMAT)
        switch, port, counts = values[0], values[1] if len(values) > 1 else 0, values[2:]
        known = switch in topology.switches and 1 <= port <= ports[switch]
        if not known or not counts or min(counts) < 0:
            what = f"{quoted_cell(line.strip())} is not a queue of {topology.path} with its counts"
            refuse(path, number, what, "give the topology file of the same run")
        block.counts[switch, port - 1] = counts
    if block is None:
        raise InputError.single(str(path), "has no `time:` line", CHECK_FORMAT)
    _check_counts_grow(path, number, last, block)
    return chosen or block


def _check_counts_grow(
    path: Path, line: int, before: QueueHistogram, after: QueueHistogram
) -> None:
    """Raise InputError if a queue has fewer samples than in the block before."""
    for queue, counts in before.counts.items():
        if sum(after.counts.get(queue, ())) < sum(counts):
            what = (
                f"the block of {after.until_ns} ns has fewer samples of switch {queue[0]}, port "
                f"{queue[1] + 1} than the block before it"
            )
            refuse(
                path,
                line,
                what,
                "the file is cut off, or of two runs: give the whole file of one run",
            )
