"""How a flow ended, as numbers: `flows.status`. Standard library only: agents on hosts use it."""

from __future__ import annotations

DONE, UNFINISHED, FAILED = 0, 1, 2
STATUS_NAMES = ("done", "unfinished", "failed")
