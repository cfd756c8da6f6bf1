"""Compares every change of thresholds with what the switch reported afterwards.

Linux' RED reports what it has. SONiC's ASIC_DB has what was requested of the ASIC, and nothing says
what that made of it: such a change counts as requested, never as read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestration.core.records import Change, Floats

# SONiC's pmax is whole percent, and 1 B stands for a threshold of 0.
_HALF_A_PERCENT = 0.005
_LEAST_BYTES = 1
# A kernel's max_P has 32 bits.
_PMAX_TOLERANCE = 1e-6
_SHOWN = 5


class ReadBack:
    """Counts changes that were read back as asked, were only requested, or are otherwise.

    `labels` name the queues; `reads_back` says which of them report what they have.
    """

    def __init__(self, labels: Sequence[str], reads_back: np.ndarray) -> None:
        self._labels = labels
        self._reads_back = reads_back
        self._counts = {"equal": 0, "requested": 0, "wrong": 0}
        self._wrong: list[str] = []

    def compare(self, asked: Change, found: Floats) -> None:
        """Compare a change of thresholds with what was reported (rows kmin, kmax, pmax)."""
        reads = self._reads_back[asked.targets]
        least = np.where(reads, 0, _LEAST_BYTES)
        same = found[0] == np.maximum(asked.kmin_bytes, least)
        same &= found[1] == np.maximum(asked.kmax_bytes, least)
        same &= np.abs(found[2] - asked.pmax) <= _PMAX_TOLERANCE + _HALF_A_PERCENT * ~reads
        wrong = np.flatnonzero(~same)
        self._counts["equal"] += int((same & reads).sum())
        self._counts["requested"] += int((same & ~reads).sum())
        self._counts["wrong"] += len(wrong)
        for change in wrong[: _SHOWN - len(self._wrong)].tolist():
            has = "has" if reads[change] else "was requested to have"
            self._wrong.append(
                f"{self._labels[asked.targets[change]]} was asked for kmin "
                f"{asked.kmin_bytes[change]}, kmax {asked.kmax_bytes[change]}, pmax "
                f"{asked.pmax[change]:g}, and {has} {found[0][change]:.0f}, "
                f"{found[1][change]:.0f}, {found[2][change]:g}"
            )

    def facts(self) -> dict[str, Any]:
        """Return the number of changes that were read back equal, requested, and wrong."""
        return dict(self._counts)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the stamp: a wrong threshold makes a trial invalid."""
        return [
            {"code": "read-back-differs", "severity": "invalid", "text": text}
            for text in self._wrong
        ]
