"""How a flow ended, as numbers in `flows.status`. Standard library only: host agents use it."""

from __future__ import annotations

# LASTING: its pattern has it send for as long as the trial lasts.
DONE, UNFINISHED, FAILED, LONG_LIVED = 0, 1, 2, 3
STATUS_NAMES = ("done", "unfinished", "failed", "lasting")
