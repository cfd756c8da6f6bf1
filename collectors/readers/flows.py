"""Flow tables: the recent flows of each queue, and the figures of PET's state computed from them.

A table belongs to a switch. Its memory is shared with the BPF program on the switch's ports
(collectors/bpf/flow_table.bpf.c, whose layout is repeated here). That program adds and updates
entries; this module reads and removes them. Neither needs a system call. Removal follows the two
clean-ups of PET (section 4.5.1): all expired entries on schedule, and the oldest part of them when
more than a share of the memory is in use.

Time is counted in slots of one decision each. An entry expires when its flow has not been seen for
`window` slots (PET's k, equation 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors.readers.flow_layout import (
    CLEANUP_EVERY_SLOTS,
    ENTRY_BYTES,
    HEAD_BYTES,
    NOT_COUNTED,
    REMOVED_SHARE,
    SLOT,
    SLOT_BYTES,
    TAKEN_OVER,
    THRESHOLD_SHARE,
    USED,
    WINDOW,
    WINDOW_SLOTS,
)
from orchestration.model.records import Ints

# Up to this size a flow is a mouse, above it an elephant (PET, section 4.2.1).
ELEPHANT_BYTES = 1_000_000
_ENTRY_WORDS = ENTRY_BYTES // 8
_CLASSES = 4
# Words of an entry: key (hash, interface), addresses, bytes, then header length and class.
_KEY, _ENDS, _BYTES, _LAST = 0, 1, 2, 3
_CLASS_SHIFT = 32


@dataclass(frozen=True)
class FlowReading:
    """Figures of the flows seen within the window, shapes (queues,)."""

    incast_degree: Ints
    mice_flows: Ints
    elephant_flows: Ints


def per_queue(
    queue: Ints, receiver: Ints, sender: Ints, seen_bytes: Ints, queues: int, hosts: int
) -> FlowReading:
    """Count flows by queue. The arrays have one entry per flow and queue, shapes (entries,).

    `receiver` and `sender` are numbers of hosts; `seen_bytes` is the flow's payload so far.
    """
    big = seen_bytes > ELEPHANT_BYTES
    pairs = np.unique((queue * hosts + receiver) * hosts + sender)
    groups, senders = np.unique(pairs // hosts, return_counts=True)
    degree = np.zeros(queues, dtype=np.int64)
    np.maximum.at(degree, groups // hosts, senders)
    elephants = np.bincount(queue[big], minlength=queues)
    return FlowReading(degree, np.bincount(queue, minlength=queues) - elephants, elephants)


class FlowTables:
    """The tables of all switches.

    `memories` has one shared memory per switch. `places` has each queue's interface, unique in the
    fabric, and traffic class. `hosts` maps each address (four bytes) to the number of its host. A
    slot ends after `readings_per_slot` readings.
    """

    def __init__(
        self,
        memories: Sequence[Any],
        places: Sequence[tuple[int, int]],
        hosts: Mapping[bytes, int],
        readings_per_slot: int = 1,
        window_slots: int = WINDOW_SLOTS,
    ) -> None:
        self._tables = [_Table(memory) for memory in memories]
        self._queues = len(places)
        self._queue_of = queue_numbers(places)
        self._hosts = len(set(hosts.values()))
        known = sorted((int.from_bytes(address, "little"), host) for address, host in hosts.items())
        self._addresses = np.array([item[0] for item in known], dtype=np.int64)
        self._host_of = np.array([item[1] for item in known], dtype=np.int64)
        self._readings_per_slot = readings_per_slot
        self._window = window_slots
        # Start at this slot, so that a free entry, which has slot 0, looks expired.
        self._slot = window_slots
        self._readings = self._slots = 0
        self._scheduled = _Cleanup()
        self._threshold = _Cleanup()
        self._most_used = 0
        for table in self._tables:
            table.head[WINDOW] = window_slots
            table.head[SLOT] = self._slot

    def read(self) -> FlowReading:
        """Count the flows of the last slots, clean up, and begin the next slot if it is due.

        Packets that come later belong to the next reading.
        """
        rows = np.concatenate([table.since(self._slot - self._window) for table in self._tables])
        receivers, senders, sizes = parts(rows)
        reading = per_queue(
            self._queue_of[queue_keys(rows)],
            self._host(receivers),
            self._host(senders),
            sizes,
            self._queues,
            self._hosts,
        )
        self._readings += 1
        if self._readings % self._readings_per_slot == 0:
            self._slots += 1
        self._clean_up()
        if self._readings % self._readings_per_slot == 0:
            self._slot += 1
            for table in self._tables:
                table.head[SLOT] = self._slot
        return reading

    def _host(self, addresses: Ints) -> Ints:
        found: Ints = self._host_of[np.searchsorted(self._addresses, addresses)]
        return found

    def _clean_up(self) -> None:
        ends_slot = self._readings % self._readings_per_slot == 0
        on_schedule = ends_slot and self._slots % CLEANUP_EVERY_SLOTS == 0
        self._scheduled.runs += on_schedule
        before = self._slot - self._window
        for table in self._tables:
            used = int(table.head[USED])
            self._most_used = max(self._most_used, used)
            if on_schedule:
                self._scheduled.removed += table.remove_expired(before, 1.0)
            elif used > THRESHOLD_SHARE * len(table.entries):
                self._threshold.runs += 1
                self._threshold.removed += table.remove_expired(before, REMOVED_SHARE)

    def facts(self) -> dict[str, Any]:
        """Return facts about the tables for the trial's record, JSON-ready."""
        entries = max((len(table.entries) for table in self._tables), default=0)
        return {
            "window_slots": self._window,
            "entries_per_switch": entries,
            "bytes_per_switch": HEAD_BYTES + (SLOT_BYTES + ENTRY_BYTES) * entries,
            "most_entries_used": self._most_used,
            "scheduled_cleanups": self._scheduled.runs,
            "removed_on_schedule": self._scheduled.removed,
            "threshold_cleanups": self._threshold.runs,
            "removed_at_threshold": self._threshold.removed,
            "expired_taken_over": sum(int(item.totals[TAKEN_OVER]) for item in self._tables),
            "packets_not_counted": sum(int(item.totals[NOT_COUNTED]) for item in self._tables),
        }


def queue_keys(rows: NDArray[np.uint64]) -> Ints:
    """Return for each entry the index of its queue in `queue_numbers`."""
    interfaces = rows[:, _KEY] >> np.uint64(32)
    classes = rows[:, _LAST] >> np.uint64(_CLASS_SHIFT)
    return (interfaces * np.uint64(_CLASSES) + classes).astype(np.int64)


def parts(rows: NDArray[np.uint64]) -> tuple[Ints, Ints, Ints]:
    """Return receivers' and senders' addresses, and payload, of each entry."""
    receivers = rows[:, _ENDS] >> np.uint64(32)
    senders = rows[:, _ENDS] & np.uint64(0xFFFFFFFF)
    return (
        receivers.astype(np.int64),
        senders.astype(np.int64),
        rows[:, _BYTES].astype(np.int64),
    )


def read_rows(data: bytes) -> NDArray[np.uint64]:
    """Return entries that a device sent."""
    return np.frombuffer(data, dtype=np.uint64).reshape(-1, _ENTRY_WORDS)


def queue_numbers(places: Sequence[tuple[int, int]]) -> Ints:
    """Return each queue's number, indexed by interface * 4 + class.

    A class that a port does not have counts as the port's first one.
    """
    size = 1 + max((ifindex for ifindex, _ in places), default=0)
    numbers = np.zeros((size, _CLASSES), dtype=np.int64)
    for queue, (ifindex, klass) in enumerate(places):
        numbers[ifindex, klass if klass else slice(None)] = queue
    return numbers.ravel()


@dataclass
class _Cleanup:
    runs: int = 0
    removed: int = 0


class _Table:
    """Views of one switch's memory."""

    def __init__(self, memory: Any) -> None:
        count, rest = divmod(len(memory) - HEAD_BYTES, SLOT_BYTES + ENTRY_BYTES)
        if rest:
            raise ValueError(f"a flow table of {len(memory)} bytes has another layout")
        self.head = np.frombuffer(memory, dtype=np.uint32, count=HEAD_BYTES // 4)
        self.totals = np.frombuffer(memory, dtype=np.uint64, count=HEAD_BYTES // 8)
        self.slots = np.frombuffer(memory, dtype=np.uint32, count=count, offset=HEAD_BYTES)
        start = HEAD_BYTES + SLOT_BYTES * count
        words = np.frombuffer(memory, dtype=np.uint64, count=count * _ENTRY_WORDS, offset=start)
        self.entries = words.reshape(count, _ENTRY_WORDS)

    def since(self, before: int) -> NDArray[np.uint64]:
        """Return the entries whose flow was seen after slot `before`."""
        rows: NDArray[np.uint64] = self.entries[np.flatnonzero(self.slots > before)]
        return rows

    def remove_expired(self, before: int, share: float) -> int:
        """Remove this share of the entries last seen in slot `before` or earlier, oldest first."""
        expired = np.flatnonzero((self.slots <= before) & (self.entries[:, _KEY] != 0))
        gone = expired
        if share < 1:
            oldest = np.argsort(self.slots[expired], kind="stable")
            gone = expired[oldest[: math.ceil(share * len(expired))]]
        self.entries[gone] = 0
        self.slots[gone] = 0
        self.head[USED] -= len(gone)
        return len(gone)
