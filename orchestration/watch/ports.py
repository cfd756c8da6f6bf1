"""What a snapshot says of each switch port: its queue, its link's use, its marks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectors.snapshot import Snapshot
from inventory.topology import Testbed
from orchestration.model.knobs import ECN
from orchestration.model.records import Floats, Ints


@dataclass(frozen=True)
class PortFigures:
    """Arrays of shape (ports,), as `Testbed.switch_ports`; NaN where a device has no such number.

    A port's queues are taken together: bytes and packets are added, `fill` is that of its fullest.
    `fill` is the mean queue since the snapshot before, over Kmax, or over the buffer where nothing
    marks. `peak_bytes`, `utilisation` (0..1, framing counted), `marked_packets` and `marked_share`
    (of the packets sent) are of the time since then too.
    """

    window_ns: int
    queue_bytes: Floats
    peak_bytes: Floats
    fill: Floats
    utilisation: Floats
    sent_packets: Floats
    marked_packets: Floats
    marked_share: Floats
    dropped_packets: Floats


def port_figures(testbed: Testbed, snapshot: Snapshot) -> PortFigures:
    """Return the figures of all switch ports."""
    window_ns = snapshot.t_ns - snapshot.before_ns
    buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.float64)
    rates = np.array([port.rate_bps for port in testbed.switch_ports], dtype=np.float64)
    kmax = snapshot.settings.get(ECN.name, {}).get("kmax_bytes", np.zeros(len(buffers)))
    limit = np.where(kmax > 0, kmax, buffers)
    sent_bytes = _grown(snapshot, "tx_bytes")
    sent = _grown(snapshot, "tx_packets")
    marked = _grown(snapshot, "marked_packets")
    per_port = testbed.queues_per_port

    def added(values: Floats) -> Floats:
        total: Floats = values.reshape(-1, per_port).sum(axis=1)
        return total

    on_wire = added(sent_bytes) + testbed.framing_bytes * np.nan_to_num(added(sent))
    with np.errstate(divide="ignore", invalid="ignore"):
        use = on_wire * 8e9 / window_ns / rates if window_ns else np.full(len(rates), np.nan)
        share = np.where(added(sent) > 0, added(marked) / added(sent), added(marked) * 0)
    return PortFigures(
        window_ns=window_ns,
        queue_bytes=added(_known(snapshot.qlen_bytes)),
        peak_bytes=added(_known(snapshot.peak_bytes)),
        fill=(_known(snapshot.mean_bytes) / limit).reshape(-1, per_port).max(axis=1),
        utilisation=use,
        sent_packets=added(sent),
        marked_packets=added(marked),
        marked_share=share,
        dropped_packets=added(_known(snapshot.dropped_packets)),
    )


def fullest(figures: PortFigures, count: int) -> list[int]:
    """Return the numbers of the ports with the fullest queues, fullest first; empty ones never."""
    fill = np.nan_to_num(figures.fill)
    order = np.argsort(-fill, kind="stable")[:count]
    return [int(port) for port in order if fill[port] > 0]


def _known(values: Ints | Floats) -> Floats:
    known: Floats = np.where(values < 0, np.nan, values)
    return known


def _grown(snapshot: Snapshot, counter: str) -> Floats:
    return _known(snapshot[counter]) - _known(snapshot.before[counter])
