"""Readings that the guest's kernel takes by itself at given times, to be fetched together.

Flows are counted with each reading. The layouts of structs are those in `sample.c` and
`flow_table.c`.
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
# The kernel keeps at most this size of readings until they are fetched.
_MAX_BYTES = 16 << 20


class Senders(IntFlag):
    """Who sends a trial's flows. When none of them has flows left, there is one last reading."""

    NOBODY = 0
    PROCESS = 1
    NICS = 2


class Sample(NamedTuple):
    """A reading at `t_ns` of CLOCK_MONOTONIC. What was not read is None."""

    t_ns: int
    queues: QueueReading
    flows: FlowReading | None = None
    shared: dict[str, Ints] | None = None
    hosts: dict[str, Ints] | None = None
    pairs: Ints | None = None
    paths: dict[str, Ints] | None = None


def report_sender_done() -> None:
    """Tell the kernel that the process that sends flows has none left."""
    fd = os.open(SAMPLES, os.O_WRONLY)
    os.write(fd, b"\1")
    os.close(fd)


class SampleFile:
    """The readings of a fabric that the kernel takes by itself."""

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
        """Open the kernel's file. With `flows`, readings count flows (see `KernelFlowTables`)."""
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
        # how many readings can be requested at once
        self.max_ahead = _MAX_BYTES // self._sample.itemsize
        self._requested = 0
        self._with_hosts = range(0)

    def request(
        self, first_ns: int, period_ns: int, readings: int, hosts_first: int, hosts_every: int
    ) -> None:
        """Let the kernel read the fabric `readings` times, at times of CLOCK_MONOTONIC.

        Hosts are read with every `hosts_every`th reading, from number `hosts_first` on; the first
        reading has number 0.
        """
        last = (hosts_first, hosts_every, self._paths.count if self._paths else 0, 0)
        os.write(
            self._fd,
            _PLAN.pack(first_ns, period_ns, readings, self._senders, *self._counts, *last),
        )
        self._requested = readings
        self._with_hosts = range(hosts_first, readings, hosts_every)

    def fetch(self) -> list[Sample]:
        """Wait for the requested readings; return them, or fewer if all flows have ended."""
        data = os.pread(self._fd, self._requested * self._sample.itemsize, 0)
        rows = np.frombuffer(data, dtype=self._sample)
        return [self._read(row, number in self._with_hosts) for number, row in enumerate(rows)]

    def _read(self, row: Any, with_hosts: bool) -> Sample:
        return Sample(
            int(row["t_ns"]),
            queue_reading(row["queues"]),
            FlowReading(*row["flows"].T.astype(np.int64)) if self._flows else None,
            self._shared.values(row["pauses"], row["buffers"]) if self._shared else None,
            self._hosts.values(row["hosts"], row["nics"]) if with_hosts else None,
            self._pairs.values(row["pairs"]) if self._pairs else None,
            self._paths.values(row["paths"]) if self._paths else None,
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
    """Flow tables in the guest's kernel, one for each switch.

    The arguments are those of `collectors.readers.flows.FlowTables`.
    """

    def __init__(
        self,
        queues: Sequence[tuple[int, int]],
        hosts: Mapping[bytes, int],
        readings_per_slot: int,
        entry_bits: int = ENTRY_BITS,
    ) -> None:
        """Create the tables, and begin to count flows."""
        self._entries = 1 << entry_bits
        queue_of = queue_numbers(queues).astype(np.uint32)
        host_of_address = sorted(
            (int.from_bytes(address, "little"), host) for address, host in hosts.items()
        )
        settings = _SETTINGS.pack(
            entry_bits,
            WINDOW_SLOTS,
            readings_per_slot,
            CLEANUP_EVERY_SLOTS,
            ELEPHANT_BYTES,
            len(queues),
            len(queue_of),
            len(host_of_address),
        )
        self._fd = os.open(FLOW_TABLES, os.O_RDWR)
        hosts_as_bytes = np.array(host_of_address, np.uint32).tobytes()
        os.write(self._fd, settings + queue_of.tobytes() + hosts_as_bytes)

    def facts(self) -> dict[str, Any]:
        """Return facts about the tables for the trial's record, JSON-ready."""
        data = os.pread(self._fd, 8 * len(_FACTS), 0)
        return {
            "window_slots": WINDOW_SLOTS,
            "entries_per_switch": self._entries,
            "bytes_per_switch": _ENTRY_BYTES * self._entries,
            **dict(zip(_FACTS, struct.unpack(f"={len(_FACTS)}Q", data), strict=True)),
        }
