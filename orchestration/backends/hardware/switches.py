"""A switch as the rig sees it: the requests that read and set its queues, and their answers.

There is a class for each operating system; its requests are operations of the agent's services. All
arrays have an entry for each of the switch's queues, in the order of `Testbed.queues`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inventory.rack import Rack, switch_system
from orchestration.core.records import Change, Floats, Ints
from orchestration.device.errors import DeviceError

Request = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class SwitchReading:
    """One reading of a switch's queues; `MISSING` where the switch does not offer a number.

    `t_ns` is the time of each queue's numbers on the device's clock, `MISSING` where it is unknown.
    If there is `took_ns`, the numbers are from some moment between `t_ns` and so long after it.
    `signal_t_ns` has the times of signals that have times of their own. `paused_ns` is an upper
    bound on the total time for which pause frames have stopped the queue's port; None for switches
    without pauses. `peak_bytes` are watermarks: the highest depths within the last poll's period.
    """

    t_ns: Ints
    qlen_bytes: Ints
    tx_bytes: Ints
    tx_packets: Ints
    marked_packets: Ints
    dropped_packets: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats
    paused_ns: Ints | None = None
    peak_bytes: Ints | None = None
    signal_t_ns: Mapping[str, Ints] = field(default_factory=dict)
    took_ns: int | None = None


class Switch(ABC):
    """One switch of a rack; a subclass for each operating system.

    `services` are the agent's services that it needs. `reads_back` says whether it reports the
    thresholds that it has, or only those that were requested of it.
    """

    services: Sequence[str]
    reads_back: bool
    _operation_prefix: str

    def __init__(self, device: str, locations: Sequence[Sequence[Any]]) -> None:
        """`locations` say where the agent finds each queue, such as an interface and a handle."""
        self.device = device
        self._locations = locations

    def open_request(self) -> Request:
        """Return the request that makes the queues known to the agent, and reads them."""
        queues = [list(location) for location in self._locations]
        return f"{self._operation_prefix}.open", {"queues": queues}

    def read_request(self) -> Request:
        """Return the request that reads the queues."""
        return f"{self._operation_prefix}.read", {}

    def set_request(self, queues: Ints, kmin: Ints, kmax: Ints, pmax: Floats) -> Request:
        """Return the request that sets the thresholds of some queues and then reads all.

        `queues` are indices among the switch's queues. All arrays have shape (changes,).
        """
        columns = (queues.tolist(), kmin.tolist(), kmax.tolist(), self._max_p(pmax))
        changes = [list(row) for row in zip(*columns, strict=True)]
        return f"{self._operation_prefix}.set", {"changes": changes}

    def reading(self, answer: Any) -> SwitchReading:
        """Return the reading in the answer to any of these requests. Raises DeviceError."""
        try:
            return self._reading(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(
                self.device, f"its agent's answer is not a reading: {error}"
            ) from error

    @abstractmethod
    def _reading(self, answer: Any) -> SwitchReading:
        """Return the reading; raise KeyError, TypeError or ValueError if the answer has none."""

    @abstractmethod
    def _max_p(self, pmax: Floats) -> list[Any]:
        """Return the switch's numbers for marking probabilities at kmax."""

    @abstractmethod
    def sources(self) -> Mapping[str, str]:
        """Return the source of each signal that the switch offers; call it after a reading."""

    def shortcomings(self, sample_period_ns: int) -> Sequence[str]:
        """Return sentences on signals that are missing or updated less often than sampled.

        Call it after a reading.
        """
        return ()

    def expected(self) -> Mapping[str, Any] | None:
        """Return the thresholds that the device should have after the last request.

        None if it reads its thresholds back. Call it after a reading.
        """
        return None


def make_switch(rack: Rack, device: str) -> Switch:
    """Return a switch of the rack, as an object of its operating system's class."""
    switch: Switch = switch_system(rack.access[device].platform).switch(rack, device)
    return switch


# SONiC's pmax is whole percent, and 1 B stands for a threshold of 0.
_HALF_A_PERCENT = 0.005
_MIN_BYTES = 1
# A kernel's max_P has 32 bits.
_PMAX_TOLERANCE = 1e-6
_SHOWN = 5


class ReadBack:
    """Counts changes of thresholds by what was reported afterwards: equal, requested, or wrong.

    Linux' RED reports the thresholds that it has. SONiC's ASIC_DB has the thresholds that were
    requested of the ASIC, which may have rounded them: such a change counts as requested.

    `labels` name the queues; `reads_back` says which of them report what they have.
    """

    def __init__(self, labels: Sequence[str], reads_back: np.ndarray) -> None:
        self._labels = labels
        self._reads_back = reads_back
        self._counts = {"equal": 0, "requested": 0, "wrong": 0}
        self._wrong: list[str] = []

    def compare(self, change: Change, reported: Floats) -> None:
        """Compare a change of thresholds with what was reported (rows kmin, kmax, pmax)."""
        reads = self._reads_back[change.targets]
        minimum = np.where(reads, 0, _MIN_BYTES)
        same = reported[0] == np.maximum(change.kmin_bytes, minimum)
        same &= reported[1] == np.maximum(change.kmax_bytes, minimum)
        same &= np.abs(reported[2] - change.pmax) <= _PMAX_TOLERANCE + _HALF_A_PERCENT * ~reads
        wrong = np.flatnonzero(~same)
        self._counts["equal"] += int((same & reads).sum())
        self._counts["requested"] += int((same & ~reads).sum())
        self._counts["wrong"] += len(wrong)
        for row in wrong[: _SHOWN - len(self._wrong)].tolist():
            has = "has" if reads[row] else "was requested to have"
            self._wrong.append(
                f"{self._labels[change.targets[row]]} was asked for kmin "
                f"{change.kmin_bytes[row]}, kmax {change.kmax_bytes[row]}, pmax "
                f"{change.pmax[row]:g}, and {has} {reported[0][row]:.0f}, "
                f"{reported[1][row]:.0f}, {reported[2][row]:g}"
            )

    def facts(self) -> dict[str, Any]:
        """Return the numbers of changes that were read back equal, only requested, and wrong."""
        return dict(self._counts)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the stamp: a wrong threshold makes a trial invalid."""
        return [
            {"code": "read-back-differs", "severity": "invalid", "text": text}
            for text in self._wrong
        ]
