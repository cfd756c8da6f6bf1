"""Reads the switches' shared buffers, their pauses, and what the watchdog has found.

The structs are those of `buffer.h` and `watchdog.c`. States of queues and switches come with the
engine's readings (see `samples`).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from collectors.incidents import KINDS, Incident, incident, pfc_outcome
from orchestration.core.records import Event, Ints
from orchestration.core.topology import Testbed

BUFFERS = "/proc/closloop/buffers"
INCIDENTS = "/proc/closloop/incidents"
# struct cl_pause_state
PAUSE_STATE = np.dtype(
    [
        ("pauses_received", np.uint64),
        ("paused_ns", np.uint64),
        ("pauses_sent", np.uint64),
        ("pausing_ns", np.uint64),
        ("held_bytes", np.uint32),
        ("headroom_bytes", np.uint32),
    ]
)
# struct cl_buffer_state
BUFFER_STATE = np.dtype(
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
    *(f"priority.{name}" for name in PAUSE_STATE.names or ()),
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
        self._buffers = os.open(BUFFERS, os.O_RDONLY)

    @property
    def switches(self) -> int:
        """Return the number of switches."""
        return len(self._testbed.switches)

    def values(self, pauses: np.ndarray, buffers: np.ndarray) -> dict[str, Ints]:
        """Return the signals of lossless classes and of switches, by key.

        `pauses` has the states of all queues, dtype `PAUSE_STATE`, `buffers` those of all switches,
        dtype `BUFFER_STATE`.
        """
        of_classes: dict[str, Ints] = {}
        if len(self._places):
            lossless = pauses[self._places]
            of_classes = {
                f"priority.{name}": lossless[name].astype(np.int64)
                for name in PAUSE_STATE.names or ()
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
        size = self.switches * BUFFER_STATE.itemsize
        data = os.pread(self._buffers, size, 0)
        if len(data) != size:
            raise OSError(f"{BUFFERS} has {len(data)} bytes instead of {size}")
        drops = np.frombuffer(data, dtype=BUFFER_STATE)["lossless_drops"]
        return {
            name: int(count)
            for name, count in zip(self._testbed.switches, drops, strict=True)
            if count
        }

    def outcome(self, t0_ns: int) -> tuple[list[Event], dict[str, Any]]:
        """Return a trial's events and facts: what was found, and findings for its stamp."""
        return pfc_outcome(self.incidents(t0_ns), self.lossless_drops())
