"""A switch as the rig sees it: the requests that read and set its queues, and their answers.

Each operating system has a class, over the operations of the agent's services. All arrays have an
entry for each of the switch's queues, in the order of `Testbed.queues`.
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

    `t_ns` is when each queue's numbers were true, on the device's clock, `MISSING` where that is
    unknown; with `took_ns` they were at some moment within so long after it. `signal_t_ns` has the
    times of signals with times of their own. `paused_ns` is the total time that pause frames have
    kept the queue's port from sending, at most; None for switches without pauses. `peak_bytes` are
    watermarks: not depths, but the maxima within the last poll's period.
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
    """One switch of a rack, by an agent's service; a class a platform.

    `services` are those that it needs of the agent; `reads_back` says whether it reports the
    thresholds that it has, not those that were requested of it.
    """

    services: Sequence[str]
    reads_back: bool
    _operations: str  # how their names begin

    def __init__(self, device: str, places: Sequence[Sequence[Any]]) -> None:
        """`places` are where the agent finds the queues."""
        self.device = device
        self._places = places

    def open_request(self) -> Request:
        """Return the request that makes the queues known to the agent, and reads them."""
        return f"{self._operations}.open", {"queues": [list(place) for place in self._places]}

    def read_request(self) -> Request:
        """Return the request that reads the queues."""
        return f"{self._operations}.read", {}

    def set_request(self, places: Ints, kmin: Ints, kmax: Ints, pmax: Floats) -> Request:
        """Return the request that sets some queues (by their index here) and reads all."""
        columns = (places.tolist(), kmin.tolist(), kmax.tolist(), self._max_p(pmax))
        changes = [list(row) for row in zip(*columns, strict=True)]
        return f"{self._operations}.set", {"changes": changes}

    def reading(self, answer: Any) -> SwitchReading:
        """Turn the answer to any of these requests into numbers. Raises DeviceError."""
        try:
            return self._reading(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(self.device, f"its agent's answer is no reading: {error}") from error

    @abstractmethod
    def _reading(self, answer: Any) -> SwitchReading:
        """Raise KeyError, TypeError or ValueError for what is no reading."""

    @abstractmethod
    def _max_p(self, pmax: Floats) -> list[Any]:
        """Return the switch's numbers for probabilities at kmax."""

    @abstractmethod
    def sources(self) -> Mapping[str, str]:
        """Return the source of each number that the switch offers; call it after a reading."""

    def shortcomings(self, sample_period_ns: int) -> Sequence[str]:
        """Return what is missing, or updated less often than sampled; call it after a reading."""
        return ()

    def expected(self) -> Mapping[str, Any] | None:
        """Return what the device is expected to make of the thresholds last requested.

        None where it reads them back. Call it after a reading.
        """
        return None


def make_switch(rack: Rack, device: str) -> Switch:
    """Return a switch of the rack, of the class of its operating system."""
    switch: Switch = switch_system(rack.access[device].platform).switch(rack, device)
    return switch


# SONiC's pmax is whole percent, and 1 B stands for a threshold of 0.
_HALF_A_PERCENT = 0.005
_MIN_BYTES = 1
# A kernel's max_P has 32 bits.
_PMAX_TOLERANCE = 1e-6
_SHOWN = 5


class ReadBack:
    """Counts changes that were read back as asked, were only requested, or are otherwise.

    Linux' RED reports what it has. SONiC's ASIC_DB has what was requested of the ASIC, and nothing
    says what that made of it: such a change counts as requested, never as read back.

    `labels` name the queues; `reads_back` says which of them report what they have.
    """

    def __init__(self, labels: Sequence[str], reads_back: np.ndarray) -> None:
        self._labels = labels
        self._reads_back = reads_back
        self._counts = {"equal": 0, "requested": 0, "wrong": 0}
        self._wrong: list[str] = []

    def compare(self, asked: Change, found: Floats) -> None:
        """Compare a change of thresholds with what was reported (rows kmin, kmax, pmax)."""
        reads = self._reads_back[asked.targets]
        minimum = np.where(reads, 0, _MIN_BYTES)
        same = found[0] == np.maximum(asked.kmin_bytes, minimum)
        same &= found[1] == np.maximum(asked.kmax_bytes, minimum)
        same &= np.abs(found[2] - asked.pmax) <= _PMAX_TOLERANCE + _HALF_A_PERCENT * ~reads
        wrong = np.flatnonzero(~same)
        self._counts["equal"] += int((same & reads).sum())
        self._counts["requested"] += int((same & ~reads).sum())
        self._counts["wrong"] += len(wrong)
        for change in wrong[: _SHOWN - len(self._wrong)].tolist():
            has = "has" if reads[change] else "was requested to have"
            self._wrong.append(
                f"{self._labels[asked.targets[change]]} was asked for kmin "
                f"{asked.kmin_bytes[change]}, kmax {asked.kmax_bytes[change]}, pmax "
                f"{asked.pmax[change]:g}, and {has} {found[0][change]:.0f}, "
                f"{found[1][change]:.0f}, {found[2][change]:g}"
            )

    def facts(self) -> dict[str, Any]:
        """Return the number of changes that were read back equal, requested, and wrong."""
        return dict(self._counts)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the stamp: a wrong threshold makes a trial invalid."""
        return [
            {"code": "read-back-differs", "severity": "invalid", "text": text}
            for text in self._wrong
        ]
