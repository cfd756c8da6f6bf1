"""Action spaces: tables of (kmin, kmax, pmax) that a tuner chooses from, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.model.knobs import ECN
from orchestration.model.records import Change, Floats, Ints

KB = 1_000


@dataclass(frozen=True)
class Templates:
    """ECN settings to choose from, by number. All arrays have shape (actions,)."""

    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats

    def __len__(self) -> int:
        return len(self.pmax)

    def settings(self, queues: Ints, choice: Ints) -> Change:
        """Return the change that gives `queues` the templates `choice`, of the same shape."""
        columns = (self.kmin_bytes, self.kmax_bytes, self.pmax)
        return ECN.change(queues, *(column[choice] for column in columns))

    def nearest(self, kmin_bytes: float, kmax_bytes: float, pmax: float) -> int:
        """Return the template nearest to a setting, by octaves of the thresholds and by pmax."""
        distance = (
            np.abs(np.log2(self.kmin_bytes / max(kmin_bytes, 1.0)))
            + np.abs(np.log2(self.kmax_bytes / max(kmax_bytes, 1.0)))
            + np.abs(self.pmax - pmax)
        )
        return int(np.argmin(distance))


def product(
    kmin_bytes: Sequence[int], kmax_bytes: Sequence[int], pmax: Sequence[float], *, equal: bool
) -> Templates:
    """Return every combination whose kmin is below its kmax (or at it, if `equal`)."""
    rows = [
        (low, high, share)
        for low in kmin_bytes
        for high in kmax_bytes
        for share in pmax
        if low < high or (equal and low == high)
    ]
    lows, highs, shares = zip(*rows, strict=True)
    return Templates(
        np.array(lows, dtype=np.int64),
        np.array(highs, dtype=np.int64),
        np.array(shares, dtype=np.float64),
    )


def exponential_bytes(alpha_kb: float, levels: int) -> tuple[int, ...]:
    """Return E(n) = alpha * 2^n KB for n = 0 .. levels - 1 (ACC; PET, equation 5)."""
    return tuple(round(alpha_kb * 2**n * KB) for n in range(levels))


def graphcc_templates() -> Templates:
    """Return GraphCC's 120 settings (section 4.1): 24 pairs with kmin <= kmax, 5 probabilities."""
    return product(
        [2 * KB, 4 * KB, 8 * KB, 16 * KB, 32 * KB],
        [16 * KB, 32 * KB, 64 * KB, 128 * KB, 256 * KB],
        [0.01, 0.25, 0.5, 0.75, 1.0],
        equal=True,
    )


def acc_templates(alpha_kb: float = 1.0, levels: int = 10) -> Templates:
    """Return ACC's templates: kmin < kmax from E(n), with five probabilities.

    The part of the paper that gives alpha and the steps of pmax was not available. 1 KB to 512 KB
    covers both static settings that it compares with. The probabilities are GraphCC's.
    """
    edges = exponential_bytes(alpha_kb, levels)
    return product(edges, edges, [0.01, 0.25, 0.5, 0.75, 1.0], equal=False)


# PET's heads choose n of kmin, n of kmax and pmax independently.
PET_ALPHA_KB = 20.0
PET_LEVELS = 10
PET_PMAX = tuple(round(0.05 * step, 2) for step in range(1, 21))


def pet_templates() -> Templates:
    """Return PET's settings as a table (section 4.2.2): E(n), alpha 20, pmax in steps of 5 %."""
    edges = exponential_bytes(PET_ALPHA_KB, PET_LEVELS)
    return product(edges, edges, PET_PMAX, equal=False)
