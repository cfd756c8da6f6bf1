"""How a flow ended, as numbers in `flows.status`.

Agents on hosts use this module too, so it imports nothing but the standard library.
"""

from __future__ import annotations

# A long-lived flow sends for as long as the trial lasts. Tables call this status "lasting".
DONE, UNFINISHED, FAILED, LONG_LIVED = 0, 1, 2, 3
STATUS_NAMES = ("done", "unfinished", "failed", "lasting")
