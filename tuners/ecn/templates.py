"""Templates: tables of (kmin, kmax, pmax) that a tuner chooses from, thresholds in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestration.core.knobs import ECN
from orchestration.core.records import Action, Change, Floats, Ints

KB = 1_000


@dataclass(frozen=True)
class Parts:
    """A table of templates as combinations of a kmin, a kmax and a pmax, which varies fastest.

    `sizes` are the numbers of different kmin, kmax and pmax. `kmin` and `kmax`, shape (pairs,),
    are the indices of each pair's kmin and kmax among these.
    """

    sizes: tuple[int, int, int]
    kmin: Ints
    kmax: Ints

    def sums(self, outputs: Any) -> Any:
        """Return the value of each template, (…, templates): the sum of its parts' values.

        `outputs`, (…, sum of `sizes`), has a value for each kmin, each kmax and each pmax; NumPy or
        torch. A network with one output per template would learn each of them from the few
        decisions that chose just that template. The largest of hundreds of such estimates belongs
        to the luckiest template, not to the best.
        """
        first, second = self.sizes[0], self.sizes[0] + self.sizes[1]
        pairs = outputs[..., self.kmin] + outputs[..., first + self.kmax]
        both = pairs[..., :, None] + outputs[..., None, second:]
        return both.reshape(*both.shape[:-2], both.shape[-2] * both.shape[-1])


@dataclass(frozen=True)
class Templates:
    """A table of ECN settings. A setting is chosen by its number. Arrays have shape (actions,)."""

    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats

    def __len__(self) -> int:
        return len(self.pmax)

    def settings(self, queues: Ints, choice: Ints) -> Change:
        """Return the change that gives `queues` the templates `choice`, of the same shape."""
        columns = (self.kmin_bytes, self.kmax_bytes, self.pmax)
        return ECN.change(queues, *(column[choice] for column in columns))

    def changed(self, before: Ints, now: Ints) -> Action:
        """Return the change at queues whose template differs, both (queues,); () if none does."""
        queues = np.flatnonzero(now != before)
        return (self.settings(queues, now[queues]),) if len(queues) else ()

    def parts(self) -> Parts:
        """Return the table as combinations of its kmin, kmax and pmax."""
        kmin, kmax, pmax = (len(np.unique(column)) for column in vars(self).values())
        indices = [
            np.unique(column, return_inverse=True)[1][::pmax]
            for column in (self.kmin_bytes, self.kmax_bytes)
        ]
        return Parts((kmin, kmax, pmax), *indices)

    def nearest(self, kmin_bytes: float, kmax_bytes: float, pmax: float) -> int:
        """Return the number of the template nearest to a setting, in octaves and in pmax."""
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


# ACC's discretisation, which PET takes over (PET, section 4.2.2, equation 5): E(n) = alpha * 2^n
# KB, n = 0 .. 9, alpha 20 (section 5.2), and pmax in steps of 5 %.
ALPHA_KB = 20.0
LEVELS = 10
PMAX = tuple(round(0.05 * step, 2) for step in range(1, 21))


def acc_templates() -> Templates:
    """Return the 900 settings of ACC and PET: kmin < kmax of E(n), and pmax, which varies fastest.

    The part of ACC's paper that states them was not available. PET's says that it follows ACC.
    """
    edges = exponential_bytes(ALPHA_KB, LEVELS)
    return product(edges, edges, PMAX, equal=False)
