"""A flow table's memory (collectors/bpf/flow_table.bpf.c): read, and when entries are removed."""

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
# Share of the entries in use above which this share of the expired ones is removed at once.
THRESHOLD_SHARE = 0.75
REMOVED_SHARE = 0.5


class FlowEntries:
    """Reads and removes the entries of a table's memory."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.count, rest = divmod(len(memory) - HEAD_BYTES, SLOT_BYTES + ENTRY_BYTES)
        if rest:
            raise ValueError(f"a flow table of {len(memory)} bytes has another layout")
        self._start = HEAD_BYTES + SLOT_BYTES * self.count
        self.slot = WINDOW_SLOTS
        self._put(WINDOW, WINDOW_SLOTS)
        # so that a free entry, which has slot 0, looks expired
        self._put(SLOT, self.slot)

    def read(self, *, ends_slot: bool, on_schedule: bool) -> dict[str, Any]:
        """Return the flows of the window, remove expired ones if due, and begin the next slot."""
        before = self.slot - WINDOW_SLOTS
        slots = array("I")
        slots.frombytes(self._memory[HEAD_BYTES : self._start])
        seen = [place for place, slot in enumerate(slots) if slot > before]
        rows = b"".join(map(self._entry, seen))
        used = self._word(USED)
        by_threshold = not on_schedule and used > THRESHOLD_SHARE * self.count
        removed = 0
        if on_schedule or by_threshold:
            removed = self._remove(slots, before, 1.0 if on_schedule else REMOVED_SHARE)
        if ends_slot:
            self.slot += 1
            self._put(SLOT, self.slot)
        return {
            "rows": rows,
            "used": used,
            "removed": removed,
            "by_threshold": by_threshold,
            "taken_over": self._long(TAKEN_OVER),
            "not_counted": self._long(NOT_COUNTED),
        }

    def _remove(self, slots: Any, before: int, share: float) -> int:
        old = [place for place, slot in enumerate(slots) if slot <= before]
        expired = [place for place in old if any(self._entry(place)[:8])]
        expired.sort(key=slots.__getitem__)
        gone = expired[: ceil(share * len(expired))]
        for place in gone:
            at = self._start + ENTRY_BYTES * place
            self._memory[at : at + ENTRY_BYTES] = bytes(ENTRY_BYTES)
            at = HEAD_BYTES + SLOT_BYTES * place
            self._memory[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
        self._put(USED, self._word(USED) - len(gone))
        return len(gone)

    def _entry(self, place: int) -> bytes:
        at = self._start + ENTRY_BYTES * place
        return bytes(self._memory[at : at + ENTRY_BYTES])

    def _word(self, number: int) -> int:
        return int.from_bytes(self._memory[4 * number : 4 * number + 4], "little")

    def _long(self, number: int) -> int:
        return int.from_bytes(self._memory[8 * number : 8 * number + 8], "little")

    def _put(self, number: int, value: int) -> None:
        self._memory[4 * number : 4 * number + 4] = value.to_bytes(4, "little")
