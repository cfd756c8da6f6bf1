"""Reads the switches' shared buffers, their pauses, and what the watchdog has found.

The structs are those of `pfc.h` and `watchdog.c`. States of queues and switches come with the
engine's readings (see `samples`).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from inventory.topology import Queue, Testbed
from orchestration.model.records import Event, Ints
from orchestration.model.units import format_duration

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
Kind = Literal["deadlock", "storm", "congestion", "restored"]
_KINDS: tuple[Kind, ...] = ("deadlock", "storm", "congestion", "restored")
SIGNALS = (
    *(f"priority.{name}" for name in PAUSE_STATE.names or ()),
    "switch.buffer_bytes",
    "switch.headroom_bytes",
)


@dataclass(frozen=True)
class Incident:
    """What the watchdog found at a queue: `queues` are their labels, each waits for the next.

    A deadlock's last one waits for that at `begin`; that of a storm is stopped by `peer`.
    """

    t_ns: int
    kind: Kind
    queues: tuple[str, ...]
    begin: int = 0
    peer: str = ""

    def words(self) -> str:
        """Return it as a sentence's end."""
        chain = " > ".join(self.queues)
        match self.kind:
            case "deadlock":
                circle = self.queues[self.begin :]
                led = "" if not self.begin else f", which {self.queues[0]} waits for"
                return f"{' > '.join((*circle, circle[0]))} wait for each other{led}"
            case "storm":
                return f"{chain} is stopped by {self.peer}, which has no reason to"
            case "congestion":
                return f"{chain} is stopped by a queue that sends"
            case "restored":
                return f"{chain} obeys pauses again"


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
        queues = [self._testbed.queues[number] for number in row["queue"][: row["count"]]]
        return Incident(
            int(row["at_ns"]) - t0_ns,
            _KINDS[row["kind"]],
            tuple(queue.label for queue in queues),
            int(row["begin"]),
            self._peer(queues[-1]),
        )

    def _peer(self, queue: Queue) -> str:
        peer = self._testbed.ports[queue.peer]
        return peer.label

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
        incidents, drops = self.incidents(t0_ns), self.lossless_drops()
        findings = [
            {
                "code": f"pfc-{one.kind}",
                "severity": "warning",
                "text": f"at {format_duration(one.t_ns, 4)} {one.words()}",
            }
            for one in _first_of_each(incidents)
        ]
        if drops:
            name = max(drops, key=lambda switch: drops[switch])
            findings.append(
                {
                    "code": "headroom-exceeded",
                    "severity": "warning",
                    "text": f"{sum(drops.values())} packets of lossless classes found no headroom "
                    f"and were dropped, {drops[name]} of them at {name}",
                }
            )
        events = [Event(one.t_ns, f"pfc-{one.kind}", one.words()) for one in incidents]
        facts = {
            "pfc": {"incidents": [asdict(one) for one in incidents], "lossless_drops": drops},
            "findings": findings,
        }
        return events, facts


def _first_of_each(incidents: list[Incident]) -> list[Incident]:
    """Return the first incident of each kind and circle; what was restored needs no finding."""
    first: dict[tuple[str, frozenset[str]], Incident] = {}
    for one in incidents:
        about = one.queues[one.begin :] if one.kind == "deadlock" else one.queues[-1:]
        if one.kind != "restored":
            first.setdefault((one.kind, frozenset(about)), one)
    return list(first.values())
