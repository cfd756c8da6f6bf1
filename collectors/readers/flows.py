"""Flow tables: the recent flows of each queue, and the parts of PET's state that they give.

The tuner PET observes the incast degree of a queue and how many of its flows are mice (short) and
elephants (long). Each switch has a flow table for that. Its memory is shared with the BPF program
on the switch's ports (collectors/bpf/flow_table.bpf.c), which adds and updates entries.
`FlowEntries` reads and removes them, in guests and on devices. Neither needs a system call. There
are two clean-ups, as in PET (section 4.5.1): all expired entries are removed on schedule, and the
oldest part of them when more than a certain share of the memory is in use.

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
_KEY, _ADDRESSES, _BYTES, _LAST = 0, 1, 2, 3
_CLASS_SHIFT = 32


@dataclass(frozen=True)
class FlowReading:
    """What is known of the flows seen within the window, shapes (queues,)."""

    incast_degree: Ints
    mice_flows: Ints
    elephant_flows: Ints


def per_queue(
    queue: Ints, receiver: Ints, sender: Ints, seen_bytes: Ints, queues: int, hosts: int
) -> FlowReading:
    """Count flows by queue. The first four arrays have an entry per flow and queue.

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
    """Counts the flows in the tables of all switches, and decides when tables are cleaned up.

    `hosts` maps each address (four bytes) to the number of its host; flows between other addresses
    do not count. A slot ends after `readings_per_slot` readings. `numbers` has to be filled with
    the `queue_numbers` of each switch.
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
        flows = [self._flows(switch, answer) for switch, answer in answers.items()]
        queue, receiver, sender, size = map(np.concatenate, zip(*flows, strict=True))
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
        """The largest number of flows at a switch, in one reading, that were not between hosts."""
        return self._of_others

    def _flows(self, switch: str, answer: Mapping[str, Any]) -> tuple[Ints, Ints, Ints, Ints]:
        """Return a switch's flows between hosts: queue, receiver, sender and bytes of each."""
        facts, by_threshold = self._facts, bool(answer["by_threshold"])
        facts["most_entries_used"] = max(facts["most_entries_used"], int(answer["used"]))
        facts["threshold_cleanups"] += by_threshold
        kind = "removed_at_threshold" if by_threshold else "removed_on_schedule"
        facts[kind] += int(answer["removed"])
        self._totals[switch] = int(answer["taken_over"]), int(answer["not_counted"])
        rows = np.frombuffer(answer["rows"], dtype=np.uint64).reshape(-1, _ENTRY_WORDS)
        receiver, has_receiver = self._hosts(rows[:, _ADDRESSES] >> np.uint64(32))
        sender, has_sender = self._hosts(rows[:, _ADDRESSES] & np.uint64(0xFFFFFFFF))
        counts = has_receiver & has_sender
        self._of_others = max(self._of_others, int((~counts).sum()))
        queues = self.numbers[switch][queue_keys(rows[counts])]
        return queues, receiver[counts], sender[counts], rows[counts, _BYTES].astype(np.int64)

    def _hosts(self, words: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the number of the host with each address, and whether there is such a host."""
        addresses = words.astype(np.int64)
        index = np.minimum(np.searchsorted(self._addresses, addresses), len(self._addresses) - 1)
        return self._host_of[index], self._addresses[index] == addresses


class FlowTables:
    """The tables of all switches, in this process's memory.

    `memories` has one shared memory per switch. `queues` has each queue's interface index, unique
    in the fabric, and its traffic class. The other arguments are those of `FlowCounts`.
    """

    def __init__(
        self,
        memories: Sequence[Any],
        queues: Sequence[tuple[int, int]],
        hosts: Mapping[bytes, int],
        readings_per_slot: int = 1,
    ) -> None:
        tables = [FlowEntries(memoryview(memory)) for memory in memories]
        self._tables = {f"{number}": table for number, table in enumerate(tables)}
        self._flows = FlowCounts(hosts, len(queues), readings_per_slot)
        self._flows.numbers |= dict.fromkeys(self._tables, queue_numbers(queues))

    def read(self) -> FlowReading:
        """Count the flows of the last slots, clean up, and begin the next slot if it is due.

        Packets that come later belong to the next reading.
        """
        return self._flows.read(
            lambda arguments: {
                name: table.read(**arguments) for name, table in self._tables.items()
            }
        )

    def facts(self) -> dict[str, Any]:
        """Return facts about the tables for the trial's record, JSON-ready."""
        entries = max((table.count for table in self._tables.values()), default=0)
        size = HEAD_BYTES + (SLOT_BYTES + ENTRY_BYTES) * entries
        own = {"entries_per_switch": entries, "bytes_per_switch": size}
        return {**own, **self._flows.facts()}


def queue_keys(rows: NDArray[np.uint64]) -> Ints:
    """Return for each entry the index into `queue_numbers` at which its queue is."""
    interfaces = rows[:, _KEY] >> np.uint64(32)
    classes = rows[:, _LAST] >> np.uint64(_CLASS_SHIFT)
    return (interfaces * np.uint64(_CLASSES) + classes).astype(np.int64)


def queue_numbers(queues: Sequence[tuple[int, int]]) -> Ints:
    """Return the numbers of queues, indexed by interface index * 4 + traffic class.

    `queues` has the interface index and the class of each. A class that a port does not have counts
    as the port's first one.
    """
    size = 1 + max((ifindex for ifindex, _ in queues), default=0)
    numbers = np.zeros((size, _CLASSES), dtype=np.int64)
    for number, (ifindex, klass) in enumerate(queues):
        numbers[ifindex, klass if klass else slice(None)] = number
    return numbers.ravel()
