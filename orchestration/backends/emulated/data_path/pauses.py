"""Reads the switches' shared buffers, their pauses, and what the watchdog has found.

The structs are those of `buffer.c` and `watchdog.c`.
"""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np

from inventory.topology import Testbed
from orchestration.backends.incidents import KINDS, Incident, incident, pfc_outcome
from orchestration.model.records import Event, Ints

PAUSES, BUFFERS = "/proc/closloop/pauses", "/proc/closloop/buffers"
INCIDENTS = "/proc/closloop/incidents"
_PAUSE = np.dtype(
    [
        ("pauses_received", np.uint64),
        ("paused_ns", np.uint64),
        ("pauses_sent", np.uint64),
        ("pausing_ns", np.uint64),
        ("held_bytes", np.uint32),
        ("headroom_bytes", np.uint32),
    ]
)
_BUFFER = np.dtype(
    [("lossless_drops", np.uint64), ("buffer_bytes", np.uint32), ("headroom_bytes", np.uint32)]
)
_MOST_STEPS = 24
_INCIDENT = np.dtype(
    [
        ("at_ns", np.uint64),
        ("kind", np.uint32),
        ("count", np.uint32),
        ("begin", np.uint32),
        ("queue", np.uint32, (_MOST_STEPS,)),
        ("unused", np.uint32),
    ]
)
SIGNALS = (
    *(f"priority.{name}" for name in _PAUSE.names or ()),
    "switch.buffer_bytes",
    "switch.headroom_bytes",
)


class SharedBuffers:
    """The shared buffers of all switches of a testbed that has them."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        lossless = set(testbed.lossless_queues)
        self._places = np.array(
            [number for number, queue in enumerate(testbed.queues) if queue in lossless],
            dtype=np.int64,
        )
        self._pauses = os.open(PAUSES, os.O_RDONLY)
        self._buffers = os.open(BUFFERS, os.O_RDONLY)

    def read(self) -> dict[str, Ints]:
        """Return the signals of lossless classes and of switches, by key."""
        buffers = _read(self._buffers, _BUFFER, len(self._testbed.switches))
        of_classes: dict[str, Ints] = {}
        if len(self._places):
            pauses = _read(self._pauses, _PAUSE, len(self._testbed.queues))[self._places]
            of_classes = {
                f"priority.{name}": pauses[name].astype(np.int64) for name in _PAUSE.names or ()
            }
        return {
            **of_classes,
            "switch.buffer_bytes": buffers["buffer_bytes"].astype(np.int64),
            "switch.headroom_bytes": buffers["headroom_bytes"].astype(np.int64),
        }

    def incidents(self, t0_ns: int) -> list[Incident]:
        """Return what the watchdog has found; time 0 is `t0_ns` of CLOCK_MONOTONIC."""
        with open(INCIDENTS, "rb") as file:
            found = np.frombuffer(file.read(), dtype=_INCIDENT)
        return [self._incident(row, t0_ns) for row in found]

    def _incident(self, row: np.void, t0_ns: int) -> Incident:
        numbers = row["queue"][: row["count"]].tolist()
        t_ns = int(row["at_ns"]) - t0_ns
        return incident(self._testbed, t_ns, KINDS[row["kind"]], numbers, int(row["begin"]))

    def lossless_drops(self) -> dict[str, int]:
        """Return the packets of lossless classes that found no headroom, by switch, if any."""
        drops = _read(self._buffers, _BUFFER, len(self._testbed.switches))["lossless_drops"]
        return {
            name: int(count)
            for name, count in zip(self._testbed.switches, drops, strict=True)
            if count
        }

    def outcome(self, t0_ns: int) -> tuple[list[Event], dict[str, Any]]:
        """Return a trial's events and facts: what was found, and findings for its stamp."""
        return pfc_outcome(self.incidents(t0_ns), self.lossless_drops())


def _read(fd: int, dtype: np.dtype[Any], count: int) -> Any:
    size = count * dtype.itemsize
    data = os.pread(fd, size, 0)
    if len(data) != size:
        raise OSError(f"the kernel has {len(data)} bytes of buffers instead of {size}")
    return cast(Any, np.frombuffer(data, dtype=dtype))
