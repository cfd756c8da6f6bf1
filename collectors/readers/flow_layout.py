"""The layout of a flow table (collectors/bpf/flow_table.bpf.c), and when its entries are removed.

Standard library only: devices run this.
"""

from __future__ import annotations

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
