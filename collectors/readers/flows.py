"""Flow tables: the recent flows of each queue, and the figures of PET's state computed from them.

A table belongs to a switch. Its memory is shared with the BPF program on the switch's ports
(collectors/bpf/flow_table.bpf.c), which adds and updates entries. `FlowEntries` reads and removes
them, in guests as on devices. Neither needs a system call. Removal follows the two clean-ups of PET
(section 4.5.1): all expired entries on schedule, and the oldest part of them when more than a share
of the memory is in use.

Time is counted in slots of one decision each. An entry expires when its flow has not been seen for
`WINDOW_SLOTS` slots (PET's k, equation 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.agent.linux_switch.flow_layout import (
    CLEANUP_EVERY_SLOTS,
    ENTRY_BYTES,
    HEAD_BYTES,
    SLOT_BYTES,
    WINDOW_SLOTS,
    FlowEntries,
)
from orchestration.core.records import Ints

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


class FlowCounts:
    """Counts the flows that the tables of all switches have, and says when they are cleaned up.

    `hosts` maps each address (four bytes) to the number of its host; flows of others do not count.
    A slot ends after `readings_per_slot` readings. `numbers` has each switch's `queue_numbers`.
    """

    def __init__(self, hosts: Mapping[bytes, int], queues: int, readings_per_slot: int) -> None:
        known = sorted((int.from_bytes(address, "little"), host) for address, host in hosts.items())
        self._addresses = np.array([address for address, _ in known], dtype=np.int64)
        self._host_of = np.array([host for _, host in known], dtype=np.int64)
        self._counts = queues, len(set(hosts.values()))
        self._readings_per_slot = readings_per_slot
        self._readings = self._of_others = 0
        self.numbers: dict[str, Ints] = {}
        self._facts = {
            "most_entries_used": 0,
            "scheduled_cleanups": 0,
            "removed_on_schedule": 0,
            "threshold_cleanups": 0,
            "removed_at_threshold": 0,
        }
        self._totals: dict[str, tuple[int, int]] = {}

    def read(self, ask: Callable[[dict[str, bool]], Mapping[str, dict[str, Any]]]) -> FlowReading:
        """Count the flows of the last slots.

        `ask` passes its argument to `FlowEntries.read` of every switch, and returns the answers.
        """
        self._readings += 1
        slots, left = divmod(self._readings, self._readings_per_slot)
        on_schedule = left == 0 and slots % CLEANUP_EVERY_SLOTS == 0
        self._facts["scheduled_cleanups"] += on_schedule
        answers = ask({"ends_slot": left == 0, "on_schedule": on_schedule})
        found = [self._flows(switch, said) for switch, said in answers.items()]
        queue, receiver, sender, size = map(np.concatenate, zip(*found, strict=True))
        return per_queue(queue, receiver, sender, size, *self._counts)

    def facts(self) -> dict[str, Any]:
        """Return facts about the tables for the trial's record, JSON-ready."""
        return {
            "window_slots": WINDOW_SLOTS,
            **self._facts,
            "expired_taken_over": sum(taken for taken, _ in self._totals.values()),
            "packets_not_counted": sum(missed for _, missed in self._totals.values()),
        }

    @property
    def flows_of_others(self) -> int:
        """The most flows of one switch and reading that were not between hosts."""
        return self._of_others

    def _flows(self, switch: str, said: Mapping[str, Any]) -> tuple[Ints, Ints, Ints, Ints]:
        facts, by_threshold = self._facts, bool(said["by_threshold"])
        facts["most_entries_used"] = max(facts["most_entries_used"], int(said["used"]))
        facts["threshold_cleanups"] += by_threshold
        kind = "removed_at_threshold" if by_threshold else "removed_on_schedule"
        facts[kind] += int(said["removed"])
        self._totals[switch] = int(said["taken_over"]), int(said["not_counted"])
        rows = np.frombuffer(said["rows"], dtype=np.uint64).reshape(-1, _ENTRY_WORDS)
        to, to_known = self._hosts(rows[:, _ENDS] >> np.uint64(32))
        by, by_known = self._hosts(rows[:, _ENDS] & np.uint64(0xFFFFFFFF))
        ours = to_known & by_known
        self._of_others = max(self._of_others, int((~ours).sum()))
        queues = self.numbers[switch][queue_keys(rows[ours])]
        return queues, to[ours], by[ours], rows[ours, _BYTES].astype(np.int64)

    def _hosts(self, words: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the numbers of hosts by address, and which of these are hosts' at all."""
        addresses = words.astype(np.int64)
        at = np.minimum(np.searchsorted(self._addresses, addresses), len(self._addresses) - 1)
        return self._host_of[at], self._addresses[at] == addresses


class FlowTables:
    """The tables of all switches in this process's memory.

    `memories` has one shared memory per switch. `places` has each queue's interface, unique in the
    fabric, and traffic class. The others are those of `FlowCounts`.
    """

    def __init__(
        self,
        memories: Sequence[Any],
        places: Sequence[tuple[int, int]],
        hosts: Mapping[bytes, int],
        readings_per_slot: int = 1,
    ) -> None:
        self._tables = {f"{at}": FlowEntries(memoryview(one)) for at, one in enumerate(memories)}
        self._flows = FlowCounts(hosts, len(places), readings_per_slot)
        self._flows.numbers |= dict.fromkeys(self._tables, queue_numbers(places))

    def read(self) -> FlowReading:
        """Count the flows of the last slots, clean up, and begin the next slot if it is due.

        Packets that come later belong to the next reading.
        """
        return self._flows.read(
            lambda due: {name: table.read(**due) for name, table in self._tables.items()}
        )

    def facts(self) -> dict[str, Any]:
        """Return facts about the tables for the trial's record, JSON-ready."""
        entries = max((table.count for table in self._tables.values()), default=0)
        size = HEAD_BYTES + (SLOT_BYTES + ENTRY_BYTES) * entries
        own = {"entries_per_switch": entries, "bytes_per_switch": size}
        return {**own, **self._flows.facts()}


def queue_keys(rows: NDArray[np.uint64]) -> Ints:
    """Return for each entry the index of its queue in `queue_numbers`."""
    interfaces = rows[:, _KEY] >> np.uint64(32)
    classes = rows[:, _LAST] >> np.uint64(_CLASS_SHIFT)
    return (interfaces * np.uint64(_CLASSES) + classes).astype(np.int64)


def queue_numbers(places: Sequence[tuple[int, int]]) -> Ints:
    """Return each queue's number, indexed by interface * 4 + class.

    A class that a port does not have counts as the port's first one.
    """
    size = 1 + max((ifindex for ifindex, _ in places), default=0)
    numbers = np.zeros((size, _CLASSES), dtype=np.int64)
    for queue, (ifindex, klass) in enumerate(places):
        numbers[ifindex, klass if klass else slice(None)] = queue
    return numbers.ravel()
