"""Compares every change of thresholds with what the switch reported afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestration.model.records import Change, Floats

# An ASIC rounds thresholds to units of at most this, and pmax to whole percent.
_COARSEST_BYTES = 8192
_HALF_A_PERCENT = 0.005
# A kernel's max_P has 32 bits.
_PMAX_TOLERANCE = 1e-6
_SHOWN = 5


class ReadBack:
    """Counts changes that were read back as requested, rounded by the ASIC, or otherwise.

    `labels` name the queues; `rounds` says which of them belong to an ASIC that rounds.
    """

    def __init__(self, labels: Sequence[str], rounds: np.ndarray) -> None:
        self._labels = labels
        self._rounds = rounds
        self._counts = {"equal": 0, "rounded": 0, "wrong": 0}
        self._wrong: list[str] = []

    def compare(self, asked: Change, found: Floats) -> None:
        """Compare a change of thresholds with what was read back (rows kmin, kmax, pmax)."""
        kmin_off = found[0] - asked.kmin_bytes
        kmax_off = found[1] - asked.kmax_bytes
        pmax_off = np.abs(found[2] - asked.pmax)
        equal = (kmin_off == 0) & (kmax_off == 0) & (pmax_off <= _PMAX_TOLERANCE)
        near = (pmax_off <= _HALF_A_PERCENT + _PMAX_TOLERANCE) & self._rounds[asked.targets]
        for off in (kmin_off, kmax_off):
            near &= (off >= 0) & (off < _COARSEST_BYTES)
        wrong = np.flatnonzero(~equal & ~near)
        self._counts["equal"] += int(equal.sum())
        self._counts["rounded"] += int((near & ~equal).sum())
        self._counts["wrong"] += len(wrong)
        for change in wrong[: _SHOWN - len(self._wrong)].tolist():
            self._wrong.append(
                f"{self._labels[asked.targets[change]]} was asked for kmin "
                f"{asked.kmin_bytes[change]}, kmax {asked.kmax_bytes[change]}, pmax "
                f"{asked.pmax[change]:g}, and has {found[0][change]:.0f}, {found[1][change]:.0f}, "
                f"{found[2][change]:g}"
            )

    def facts(self) -> dict[str, Any]:
        """Return the number of changes that were read back equal, rounded and wrong."""
        return dict(self._counts)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the stamp: a wrong threshold makes a trial invalid."""
        return [
            {"code": "read-back-differs", "severity": "invalid", "text": text}
            for text in self._wrong
        ]
