"""How a flow ended, as numbers in `flows.status`. Standard library only: host agents use it."""

from __future__ import annotations

DONE, UNFINISHED, FAILED = 0, 1, 2
STATUS_NAMES = ("done", "unfinished", "failed")
