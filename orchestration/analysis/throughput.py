"""Throughput over time: of chosen flows where flows were sampled, else of the busiest port.

The chosen flows are the largest of each pattern, and the slowest and the fastest of those that
compete for long: they show whether flows converge, and which of them starve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import DONE, LONG_LIVED, MISSING, STATUS_NAMES, Floats, Ints
from orchestration.results.reader import TrialResult

Choice = Literal["largest", "slowest", "fastest", "busiest"]
# Smaller flows are over before there is a rate to compare.
_MIN_BYTES = 100_000


@dataclass(frozen=True)
class Throughput:
    """The throughput of a flow or of a port between two samples each.

    `bps` and `t_ns`, the ends of the intervals, have the shape (intervals,). Of a flow it is the
    payload that was acknowledged, NaN before its start and after its end; of a port all bytes,
    headers and framing included. `mean_bps` is over the flow's or the trial's whole time. `name` is
    a port's label, or the flow's hosts. `pattern` and `flow_id` are "" and -1 for a port.
    """

    choice: Choice
    name: str
    t_ns: Ints
    bps: Floats
    mean_bps: float
    line_bps: int
    pattern: str = ""
    flow_id: int = -1


def throughput_over_time(result: TrialResult, count: int = 6) -> tuple[Throughput, ...]:
    """Return the throughput of up to `count` flows; without samples of flows, of the busiest port.

    Without samples of ports, too, it is empty. Raises InputError for a table that cannot be read.
    """
    flows = flow_throughputs(result, count)
    port = None if flows else busiest_port_throughput(result)
    return flows or ((port,) if port else ())


def flow_throughputs(result: TrialResult, count: int = 6) -> tuple[Throughput, ...]:
    """Return the throughput of up to `count` flows, each once; () without samples of flows.

    First is the largest flow of each pattern, the patterns with most payload first. Then the
    slowest and the fastest are taken in turn, from the long-lived flows, or without any from those
    of at least 100 KB. Only flows count that start before the last sample.
    """
    table, flows, schedule = (result.table(name) for name in ("flow_samples", "flows", "schedule"))
    number = len(flows["flow_id"])
    rows = len(table["t_ns"]) // max(1, number)
    if rows < 2:
        return ()
    t_ns = table["t_ns"][:rows]
    acked = table["acked_bytes"].reshape(number, rows)
    done = flows["status"] == STATUS_NAMES[DONE]
    start_ns, end_ns = schedule["start_ns"], np.where(done, flows["end_ns"], t_ns[-1])
    got = np.where(done, schedule["bytes"], np.maximum(acked[:, -1], 0))
    known = (acked[:, -1] != MISSING) & (start_ns < t_ns[-1])
    mean_bps = got * 8e9 / np.maximum(end_ns - start_ns, 1)
    competing = known & (flows["status"] == STATUS_NAMES[LONG_LIVED])
    if not competing.any():
        competing = known & (schedule["bytes"] >= _MIN_BYTES)
    chosen: dict[int, Choice] = {}
    for choice, flow in _in_order(got, known, mean_bps, competing, schedule["class"]):
        if len(chosen) < count:
            chosen.setdefault(flow, choice)
    testbed = result.testbed

    def one(flow: int, choice: Choice) -> Throughput:
        src, dst = str(schedule["src"][flow]), str(schedule["dst"][flow])
        alive = (t_ns[1:] > start_ns[flow]) & (t_ns[:-1] < end_ns[flow])
        return Throughput(
            choice,
            f"{src} to {dst}",
            t_ns[1:],
            np.where(alive, _rate_bps(t_ns, acked[flow]), math.nan),
            float(mean_bps[flow]),
            min(testbed.host_rate_bps(src), testbed.host_rate_bps(dst)),
            str(schedule["class"][flow]),
            int(flows["flow_id"][flow]),
        )

    return tuple(one(flow, choice) for flow, choice in chosen.items())


def _in_order(
    got: Ints,
    known: NDArray[np.bool_],
    mean_bps: Floats,
    competing: NDArray[np.bool_],
    pattern: NDArray[np.object_],
) -> Iterator[tuple[Choice, int]]:
    """Yield the flows in the order in which they are chosen; one may come several times."""
    named, of = np.unique(pattern[known].astype(str), return_inverse=True)
    rows = np.flatnonzero(known)
    payload = np.bincount(of, got[rows], len(named))
    for index in np.argsort(-payload, kind="stable").tolist():
        own = rows[of == index]
        yield "largest", int(own[np.argmax(got[own])])
    rows = np.flatnonzero(competing)
    by_rate = rows[np.argsort(mean_bps[rows], kind="stable")].tolist()
    for slowest, fastest in zip(by_rate, reversed(by_rate), strict=True):
        yield "slowest", slowest
        yield "fastest", fastest


def busiest_port_throughput(result: TrialResult) -> Throughput | None:
    """Return the throughput of the switch port that was busiest relative to its rate.

    None with fewer than two samples of ports. Raises InputError for a table that cannot be read.
    """
    ports, testbed = result.ports, result.testbed
    if len(ports.t_ns) < 2 or not testbed.queues:
        return None

    def wire_bytes(rows: slice, queues: slice = slice(None)) -> Floats:
        sent, packets = ports.tx_bytes[rows, queues], ports.tx_packets[rows, queues]
        wire = sent + testbed.framing_bytes * packets
        return np.where((sent == MISSING) | (packets == MISSING), math.nan, wire.astype(np.float64))

    wide, last = testbed.queues_per_port, wire_bytes(slice(-1, None))[0]
    sums = np.nan_to_num(last).reshape(-1, wide).sum(axis=1)
    rates_bps = np.array([port.rate_bps for port in testbed.switch_ports], dtype=np.float64)
    busiest = int(np.argmax(sums / rates_bps))
    port = testbed.switch_ports[busiest]
    own = wire_bytes(slice(None), slice(busiest * wide, (busiest + 1) * wide)).sum(axis=1)
    bps = np.diff(own) * 8e9 / np.diff(ports.t_ns)
    mean_bps = float(sums[busiest] * 8e9 / ports.t_ns[-1])
    return Throughput("busiest", port.label, ports.t_ns[1:], bps, mean_bps, port.rate_bps)


def _rate_bps(t_ns: Ints, counter: Ints) -> Floats:
    """Return the rate between two samples each, NaN where a value is missing."""
    values = np.where(counter == MISSING, math.nan, counter.astype(np.float64))
    return np.asarray(np.diff(values) * 8e9 / np.diff(t_ns))
