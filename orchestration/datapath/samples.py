"""Lets the engine read the fabric by itself at given times, and fetches what it has read.

Flows are counted with each reading. The structs are those of `sample.c` and `flow_table.c`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np

from collectors.readers.flows import ELEPHANT_BYTES, FlowReading, queue_numbers
from collectors.readers.tc import QueueReading
from orchestration.agent.linux_switch.flow_layout import CLEANUP_EVERY_SLOTS, WINDOW_SLOTS
from orchestration.core.records import Ints
from orchestration.datapath.hosts import HOST_STATE, NIC_STATE, Hosts, TrafficMatrix
from orchestration.datapath.paths import PATHS_STATE, PathFile
from orchestration.datapath.ports import (
    BUFFER_STATE,
    PAUSE_STATE,
    QUEUE_STATE,
    SharedBuffers,
    queue_reading,
)

SAMPLES = "/proc/closloop/samples"
# struct plan
_PLAN = struct.Struct("=QQ10I")
# The kernel keeps no more of readings until they are fetched.
_MAX_BYTES = 16 << 20


class Senders(IntFlag):
    """Who sends a trial's flows: once all of these have none left, one reading is the last."""

    NOBODY = 0
    PROCESS = 1
    NICS = 2


class Sample(NamedTuple):
    """A reading, with its time of CLOCK_MONOTONIC; `hosts` is None if they were not read."""

    t_ns: int
    queues: QueueReading
    flows: FlowReading | None = None
    shared: dict[str, Ints] | None = None
    hosts: dict[str, Ints] | None = None
    pairs: Ints | None = None
    paths: dict[str, Ints] | None = None


def report_sender_done() -> None:
    """Say that the process that sends flows has none left."""
    fd = os.open(SAMPLES, os.O_WRONLY)
    os.write(fd, b"\1")
    os.close(fd)


class SampleFile:
    """The readings of a fabric that the engine takes by itself."""

    def __init__(
        self,
        queues: int,
        hosts: Hosts,
        shared: SharedBuffers | None,
        senders: Senders,
        *,
        flows: bool,
        pairs: TrafficMatrix | None = None,
        paths: PathFile | None = None,
    ) -> None:
        """Open it. With `flows`, the kernel counts flows (`KernelFlowTables`)."""
        self._paths = paths
        self._fd = os.open(SAMPLES, os.O_RDWR)
        self._hosts, self._shared, self._flows, self._pairs = hosts, shared, flows, pairs
        switches = shared.switches if shared else 0
        nics = hosts.nics.count if hosts.nics else 0
        self._counts = (queues, switches, hosts.count, nics)
        self._senders = senders
        fields: list[Any] = [("t_ns", np.uint64), ("queues", QUEUE_STATE, (queues,))]
        if flows:
            words = 3 * queues
            fields += [("flows", np.uint32, (queues, 3)), ("unused", np.uint32, (words % 2,))]
        if shared:
            fields += [("pauses", PAUSE_STATE, (queues,)), ("buffers", BUFFER_STATE, (switches,))]
        if paths:
            fields.append(("paths", PATHS_STATE, (paths.count,)))
        fields += [("hosts", HOST_STATE, (hosts.count,)), ("nics", NIC_STATE, (nics,))]
        if pairs:
            fields += [("pairs", np.uint64, (pairs.count,))]
        self._sample = np.dtype(fields)
        # how many readings can be asked for at once
        self.max_ahead = _MAX_BYTES // self._sample.itemsize
        self._asked = 0
        self._with_hosts = range(0)

    def request(
        self, first_ns: int, period_ns: int, readings: int, hosts_first: int, hosts_every: int
    ) -> None:
        """Let the kernel read the fabric by itself, at times of CLOCK_MONOTONIC.

        Hosts are read at every `hosts_every`th of them, from `hosts_first` on (0: the first).
        """
        last = (hosts_first, hosts_every, self._paths.count if self._paths else 0, 0)
        os.write(
            self._fd,
            _PLAN.pack(first_ns, period_ns, readings, self._senders, *self._counts, *last),
        )
        self._asked = readings
        self._with_hosts = range(hosts_first, readings, hosts_every)

    def fetch(self) -> list[Sample]:
        """Wait for the readings that were asked for; return them, fewer if all flows have ended."""
        data = os.pread(self._fd, self._asked * self._sample.itemsize, 0)
        found = np.frombuffer(data, dtype=self._sample)
        return [self._read(one, number in self._with_hosts) for number, one in enumerate(found)]

    def _read(self, one: Any, with_hosts: bool) -> Sample:
        return Sample(
            int(one["t_ns"]),
            queue_reading(one["queues"]),
            FlowReading(*one["flows"].T.astype(np.int64)) if self._flows else None,
            self._shared.values(one["pauses"], one["buffers"]) if self._shared else None,
            self._hosts.values(one["hosts"], one["nics"]) if with_hosts else None,
            self._pairs.values(one["pairs"]) if self._pairs else None,
            self._paths.values(one["paths"]) if self._paths else None,
        )


FLOW_TABLES = "/proc/closloop/flow_tables"
ENTRY_BITS = 12
_SETTINGS = struct.Struct("=8I")
_ENTRY_BYTES = 36  # with the slot of its last packet
_FACTS = (
    "most_entries_used",
    "scheduled_cleanups",
    "removed_on_schedule",
    "threshold_cleanups",
    "removed_at_threshold",
    "expired_taken_over",
    "packets_not_counted",
)


class KernelFlowTables:
    """A table of each switch's recent flows. The arguments are those of `FlowTables`."""

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        hosts: Mapping[bytes, int],
        readings_per_slot: int,
        entry_bits: int = ENTRY_BITS,
    ) -> None:
        """Begin to count."""
        self._entries = 1 << entry_bits
        queue_of = queue_numbers(places).astype(np.uint32)
        known = sorted((int.from_bytes(address, "little"), host) for address, host in hosts.items())
        settings = _SETTINGS.pack(
            entry_bits,
            WINDOW_SLOTS,
            readings_per_slot,
            CLEANUP_EVERY_SLOTS,
            ELEPHANT_BYTES,
            len(places),
            len(queue_of),
            len(known),
        )
        self._fd = os.open(FLOW_TABLES, os.O_RDWR)
        os.write(self._fd, settings + queue_of.tobytes() + np.array(known, np.uint32).tobytes())

    def facts(self) -> dict[str, Any]:
        """Return facts about the tables for the trial's record, JSON-ready."""
        data = os.pread(self._fd, 8 * len(_FACTS), 0)
        return {
            "window_slots": WINDOW_SLOTS,
            "entries_per_switch": self._entries,
            "bytes_per_switch": _ENTRY_BYTES * self._entries,
            **dict(zip(_FACTS, struct.unpack(f"={len(_FACTS)}Q", data), strict=True)),
        }
