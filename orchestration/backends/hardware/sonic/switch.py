"""A SONiC switch as the rig sees it (`switches.Switch`): its requests and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inventory.rack import Rack
from orchestration.backends.hardware.sonic.config import queue_places
from orchestration.backends.hardware.sonic.counters import (
    Stream,
    cells_of_switch,
    shares,
    shortcomings,
    sources,
)
from orchestration.backends.hardware.switches import Request, SwitchReading
from orchestration.core.records import MISSING, Floats, Ints
from orchestration.device.errors import DeviceError

_ROW = 8
# A pause frame asks for at most 65,535 quanta of 512 bits (IEEE 802.1Qbb).
_LONGEST_PAUSE_BITS = 65_535 * 512


class SonicSwitch:
    """A switch whose queues are an ASIC's; SONiC polls them, and its database is read.

    After a reading, `peak_bytes` has the queues' watermarks and `pauses` the PFC frames received
    and sent, shape (2, queues), of all priorities of the queue's port; `MISSING` where there are
    none.
    """

    services = ("sonic",)
    reads_back = False

    def __init__(self, rack: Rack, device: str) -> None:
        self.device = device
        self._places = queue_places(rack, device)
        self._rates_bps = np.array(
            [queue.rate_bps for queue in rack.testbed.queues if queue.device == device],
            dtype=np.float64,
        )
        self._about: dict[str, Any] = {}
        self._depth = self._marks = False
        self._stream = Stream()
        self._requested: Ints = np.zeros((2, 0), dtype=np.int64)
        self.peak_bytes: Ints = np.full(len(self._places), MISSING, dtype=np.int64)
        self.pauses: Ints = np.full((2, len(self._places)), MISSING, dtype=np.int64)
        self.restarts = self.edit_ns = 0

    def open_request(self) -> Request:
        """Return the request that opens the queues."""
        return "sonic.open", {"queues": [list(place) for place in self._places]}

    def read_request(self) -> Request:
        """Return the request that reads the queues."""
        return "sonic.read", {}

    def set_request(self, places: Ints, kmin: Ints, kmax: Ints, pmax: Floats) -> Request:
        """Return the request that sets some queues."""
        columns = (places.tolist(), kmin.tolist(), kmax.tolist(), pmax.tolist())
        return "sonic.set", {"changes": [list(row) for row in zip(*columns, strict=True)]}

    def reading(self, answer: Any) -> SwitchReading:
        """Turn an answer into numbers."""
        try:
            return self._reading(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(self.device, f"its agent's answer is no reading: {error}") from error

    def _reading(self, answer: Any) -> SwitchReading:
        rows = _numbers(answer["rows"]).reshape(len(self._places), _ROW)
        t_ns, marks_ns, depth_ns = (
            _numbers(answer[name]).reshape(len(rows))
            for name in ("t_ns", "marks_t_ns", "depth_t_ns")
        )
        self._about = answer.get("about", self._about)
        self.peak_bytes = _numbers(answer["peak_bytes"]).reshape(len(rows))
        self.restarts, self.edit_ns = int(answer["restarts"]), int(answer["edit_ns"])
        totals = {port: [_total(way) for way in ways] for port, ways in answer["pauses"].items()}
        self.pauses = np.array([totals[port] for port, _, _ in self._places], dtype=np.int64).T
        qlen, sent, packets, marked, dropped, kmin, kmax, percent = rows.T
        self._depth, self._marks = bool((qlen >= 0).all()), bool((marked >= 0).all())
        self._requested = np.stack([kmin, kmax])
        self._stream.reading(answer["streamed"], answer["stream"], marked.size)
        return SwitchReading(
            t_ns=_oldest(t_ns, (marked, marks_ns), (qlen, depth_ns)),
            qlen_bytes=qlen,
            tx_bytes=sent,
            tx_packets=packets,
            marked_packets=marked,
            dropped_packets=dropped,
            kmin_bytes=kmin,
            kmax_bytes=kmax,
            pmax=shares(percent),
            paused_ns=self._paused_ns(),
            peak_bytes=self.peak_bytes,
            signal_t_ns={
                **dict.fromkeys(("tx_bytes", "tx_packets", "dropped_packets"), t_ns),
                "marked_packets": marks_ns,
                "qlen_bytes": depth_ns,
            },
        )

    def _paused_ns(self) -> Ints:
        """Return the longest time that received pauses may have stopped each port, in ns."""
        received = np.maximum(self.pauses[0], 0).astype(np.float64)
        paused: Ints = np.rint(received * _LONGEST_PAUSE_BITS * 1e9 / self._rates_bps).astype(
            np.int64
        )
        return paused

    def sources(self) -> Mapping[str, str]:
        """Return the source of each number; numbers that the switch does not offer are left out."""
        return sources(self._about, self._stream, depth=self._depth, marks=self._marks)

    def shortcomings(self, sample_period_ns: int) -> list[str]:
        """Return what the switch lacks, or updates less often than it is sampled."""
        found = shortcomings(
            self._about,
            self._stream,
            depth=self._depth,
            marks=self._marks,
            sample_period_ns=sample_period_ns,
        )
        if self.restarts:
            found.append(f"its Redis was restarted meanwhile ({self.restarts} times)")
        if self.edit_ns and self._about.get("asic") == "mellanox":
            found.append(
                "each change takes a profile off its queue for a moment, and marking with it: "
                f"less than {self.edit_ns / 1e6:.1f} ms, the longest that a change took"
            )
        return found

    def expected(self) -> Mapping[str, Any]:
        """Return what the ASIC should have for the thresholds that were last requested.

        `thresholds` are [kmin, kmax] in bytes, by interface and queue, null where unknown.
        """
        cells = cells_of_switch(self._about)
        return {
            "asic": f"has thresholds {cells.said}",
            "longest_change_ns": self.edit_ns,
            "step_bytes": cells.step_bytes,
            "thresholds": {
                f"{port}|{queue}": [cells.expected(int(value)) for value in column]
                for (port, queue, _), column in zip(self._places, self._requested.T, strict=True)
            },
        }


def _oldest(t_ns: Ints, *others: tuple[Ints, Ints]) -> Ints:
    """Return the oldest of some times; of the others (values and times), where there are values."""
    oldest = t_ns
    for values, other_ns in others:
        oldest = np.where(values == MISSING, oldest, np.minimum(oldest, other_ns))
    return oldest


def _numbers(values: Any) -> Ints:
    """Convert to integers, with `MISSING` for null."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        return MISSING if value is None else value

    return np.array(filled(values), dtype=np.int64)


def _total(counts: list[Any]) -> int:
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known else MISSING
