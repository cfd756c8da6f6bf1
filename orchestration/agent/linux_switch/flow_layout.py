"""A flow table's memory, as collectors/bpf/flow_table.bpf.c lays it out.

The BPF program adds and updates entries; `FlowEntries` reads them, and removes expired ones. Time
is divided into slots. An entry has the number of the slot in which its flow's last packet was seen,
and is expired when that is not one of the last `WINDOW_SLOTS`.
"""

from __future__ import annotations

from array import array
from math import ceil
from typing import Any

# A table is its head, the slot of each entry (4 bytes each), and the entries.
HEAD_BYTES, SLOT_BYTES, ENTRY_BYTES = 64, 4, 32
# Indices of 32-bit words in the head, then of 64-bit words.
SLOT, WINDOW, USED = 0, 1, 2
TAKEN_OVER, NOT_COUNTED = 2, 3

WINDOW_SLOTS = 3
CLEANUP_EVERY_SLOTS = 10
# If more than `THRESHOLD_SHARE` of the entries are in use, `REMOVED_SHARE` of the expired ones are
# removed at once.
THRESHOLD_SHARE = 0.75
REMOVED_SHARE = 0.5


class FlowEntries:
    """Reads and removes the entries in a table's `memory`."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.count, rest = divmod(len(memory) - HEAD_BYTES, SLOT_BYTES + ENTRY_BYTES)
        if rest:
            raise ValueError(f"a flow table of {len(memory)} bytes has another layout")
        self._start = HEAD_BYTES + SLOT_BYTES * self.count
        self.slot = WINDOW_SLOTS
        self._put(WINDOW, WINDOW_SLOTS)
        # so that a free entry, which has slot 0, counts as expired
        self._put(SLOT, self.slot)

    def read(self, *, ends_slot: bool, on_schedule: bool) -> dict[str, Any]:
        """Return the entries of the last slots, and counters; remove expired entries.

        Entries are removed with `on_schedule`, and otherwise if the table is nearly full. With
        `ends_slot`, the next slot begins.
        """
        expired_slot = self.slot - WINDOW_SLOTS
        slots = array("I")
        slots.frombytes(self._memory[HEAD_BYTES : self._start])
        recent = [index for index, slot in enumerate(slots) if slot > expired_slot]
        rows = b"".join(map(self._entry, recent))
        used = self._word(USED)
        by_threshold = not on_schedule and used > THRESHOLD_SHARE * self.count
        removed = 0
        if on_schedule or by_threshold:
            removed = self._remove(slots, expired_slot, 1.0 if on_schedule else REMOVED_SHARE)
        if ends_slot:
            self.slot += 1
            self._put(SLOT, self.slot)
        return {
            "rows": rows,
            "used": used,
            "removed": removed,
            "by_threshold": by_threshold,
            "taken_over": self._word64(TAKEN_OVER),
            "not_counted": self._word64(NOT_COUNTED),
        }

    def _remove(self, slots: Any, expired_slot: int, share: float) -> int:
        old = [index for index, slot in enumerate(slots) if slot <= expired_slot]
        expired = [index for index in old if any(self._entry(index)[:8])]
        expired.sort(key=slots.__getitem__)
        removed_entries = expired[: ceil(share * len(expired))]
        for index in removed_entries:
            at = self._start + ENTRY_BYTES * index
            self._memory[at : at + ENTRY_BYTES] = bytes(ENTRY_BYTES)
            at = HEAD_BYTES + SLOT_BYTES * index
            self._memory[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
        self._put(USED, self._word(USED) - len(removed_entries))
        return len(removed_entries)

    def _entry(self, index: int) -> bytes:
        at = self._start + ENTRY_BYTES * index
        return bytes(self._memory[at : at + ENTRY_BYTES])

    def _word(self, number: int) -> int:
        return int.from_bytes(self._memory[4 * number : 4 * number + 4], "little")

    def _word64(self, number: int) -> int:
        return int.from_bytes(self._memory[8 * number : 8 * number + 8], "little")

    def _put(self, number: int, value: int) -> None:
        self._memory[4 * number : 4 * number + 4] = value.to_bytes(4, "little")
