"""Read the queue lengths that the HPCC ns-3 simulator wrote: histograms since a time, no series.

It samples every port each 100 ns and writes, at whole multiples of 100 ms only, all samples up to
then (`monitor_buffer` in alibaba-edu/High-Precision-Congestion-Control, scratch/third.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inventory.topology import Testbed
from orchestration.artifacts.stamp import Reason
from orchestration.exchange.hpcc_inputs import HpccTopology
from orchestration.exchange.hpcc_results import port_counts
from orchestration.exchange.textrows import CHECK_FORMAT, head
from orchestration.model.csv_columns import opened, refuse, shown
from orchestration.model.errors import InputError
from orchestration.model.records import Ints
from orchestration.model.units import format_duration

_BIN_BYTES = 1000
_PERIOD_NS = 100


def queue_facts(
    path: Path | None,
    topology: HpccTopology,
    testbed: Testbed,
    base_ns: int,
    start_ns: Ints,
    duration_ns: int,
    findings: list[Reason],
) -> dict[str, Any]:
    """Return the fact of queue lengths: those up to the end of arrivals, as near as dumps allow.

    `start_ns` (flows,) are the starts, `base_ns` is the simulator's time that is their 0, and
    `duration_ns` is how long flows arrive, 0 if unknown. What is not known joins `findings`.
    They are of the time `while flows arrived` if they end at the end of arrivals, or follow the
    last start by no more than the longest pause between two starts.
    """
    if path is None:
        return {}
    last_ns = int(start_ns.max())
    arrived_ns = max(last_ns, duration_ns)
    found = _read(path, topology, base_ns + arrived_ns)
    from_ns, until_ns = found.from_ns - base_ns, found.until_ns - base_ns
    if until_ns <= int(start_ns.min()):
        text = (
            f"{path.name} has queue lengths of {format_duration(found.until_ns, 9)} only, before "
            "flows began: the simulator writes them at whole multiples of 100ms, and none fell "
            "into the run"
        )
        findings.append(Reason("queues-unknown", "warning", text))
        return {}
    pause_ns = int(np.diff(np.sort(start_ns)).max(initial=0))
    arriving = from_ns >= 0 and last_ns <= until_ns <= max(arrived_ns + 1000, last_ns + pause_ns)
    labels = [device.name for device in testbed.devices]
    return {
        "queue_histogram": {
            "bin_bytes": _BIN_BYTES,
            "from_ns": from_ns,
            "until_ns": until_ns,
            "arrived_ns": arrived_ns,
            "while_flows_arrived": arriving,
            "queues": {
                testbed.ports_of[labels[switch]][port].label: {"counts": counts}
                for (switch, port), counts in sorted(found.counts.items())
            },
        }
    }


@dataclass(frozen=True)
class QueueHistogram:
    """Queue lengths from a time on: (switch, port) -> number of samples in bins of 1,000 B."""

    until_ns: int
    counts: dict[tuple[int, int], list[int]]

    @property
    def from_ns(self) -> int:
        """The time of the first sample."""
        samples = max(map(sum, self.counts.values()), default=1)
        return self.until_ns - (samples - 1) * _PERIOD_NS


def _read(path: Path, topology: HpccTopology, wanted_ns: int) -> QueueHistogram:
    """Read a queue-length file, in which each block counts from the start.

    Returns the first block at or after `wanted_ns`, else the last. Raises InputError, with the
    line, if a block counts less than the one before it.
    """
    head(path, 1)
    ports = port_counts(topology)
    last = QueueHistogram(-1, {})
    here: QueueHistogram | None = None
    chosen: QueueHistogram | None = None
    with opened(path) as file:
        number, line = 0, b"\n"
        for number, line in enumerate(file, start=1):
            cells = line.split()
            if not cells:
                continue
            try:
                if cells[0] == b"time:":
                    (t_ns,) = (int(cell) for cell in cells[1:])
                    if here is not None:
                        _grown(path, number, last, here)
                        last = here
                    if t_ns <= last.until_ns:
                        what = f"the time {t_ns} ns is not after {last.until_ns} ns"
                        refuse(path, number, what, "give the file of one run")
                    here = QueueHistogram(t_ns, {})
                    if chosen is None and t_ns >= wanted_ns:
                        chosen = here
                    continue
                values = [int(cell) for cell in cells]
            except ValueError:
                refuse(
                    path, number, f"{shown(line.strip())} is no sampling of a queue", CHECK_FORMAT
                )
            if here is None:
                refuse(path, number, "comes before the first `time:`", CHECK_FORMAT)
            switch, port, counts = values[0], values[1] if len(values) > 1 else 0, values[2:]
            known = switch in topology.switches and 1 <= port <= ports[switch]
            if not known or not counts or min(counts) < 0:
                what = f"{shown(line.strip())} is no queue of {topology.path} with its counts"
                refuse(path, number, what, "give the topology file of the same run")
            here.counts[switch, port - 1] = counts
    if here is None:
        raise InputError.single(str(path), "has no `time:` line", CHECK_FORMAT)
    if not line.endswith(b"\n"):
        refuse(path, number, "the last line has no end: it may be cut off", "copy the file again")
    _grown(path, number, last, here)
    return chosen or here


def _grown(path: Path, line: int, before: QueueHistogram, after: QueueHistogram) -> None:
    """Raise InputError if a queue has fewer samples than before: two runs, or a truncated file."""
    for queue, counts in before.counts.items():
        if sum(after.counts.get(queue, ())) < sum(counts):
            what = (
                f"the block of {after.until_ns} ns has fewer samples of switch {queue[0]}, port "
                f"{queue[1] + 1} than the block before it"
            )
            refuse(path, line, what, "the file is cut off, or of two runs: give one run's, whole")
