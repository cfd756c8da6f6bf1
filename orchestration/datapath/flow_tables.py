"""The data path's own flow tables: it counts flows itself, with each reading of `QueueFile`.

The structs are those of `flow_table.c`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collectors.readers.flows import ELEPHANT_BYTES, queue_numbers
from orchestration.agent.linux_switch.flow_layout import CLEANUP_EVERY_SLOTS, WINDOW_SLOTS

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


class OwnFlowTables:
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
