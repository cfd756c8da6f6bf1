"""The marking probability of Linux RED, and how far it is from the straight line of DCQCN.

DCQCN's paper has a marking probability that rises in a straight line from 0 at kmin to pmax at
kmax. Linux RED differs, because it spaces its marks (net/sched/sch_red.c, include/net/red.h).
Between kmin and kmax it draws a number qR after each mark, uniform on the integers 0 … D-1. It then
marks the first packet, counted from 1, for which (queue - kmin) x count >= qR. So while the queue
length is constant, the gap between two marks is uniform, and the share of marked packets is one
over the mean gap: 2p/(1+p) for p = (queue - kmin)/D.

The kernel gets a `max_P` of pmax/(2-pmax), so that the share at kmax is pmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestration.core.records import Floats, Ints


def red_max_p(pmax: float) -> int:
    """Return the 32-bit `max_P` to configure so that a share `pmax` is marked at kmax.

    2^32 itself would overflow; 0 would make the kernel fall back on another parameter.
    """
    return max(1, min(2**32 - 1, round(pmax / (2.0 - pmax) * 2**32)))


def red_max_ps(pmax: Floats) -> Ints:
    """Return `red_max_p` of each entry, in the shape of `pmax`."""
    max_p: Ints = np.rint(pmax / (2.0 - pmax) * 2**32).astype(np.int64)
    return np.clip(max_p, 1, 2**32 - 1)


def read_back_pmax(max_p: Floats) -> Floats:
    """Return the share marked at kmax for the `max_P` that a kernel reports."""
    probability = np.asarray(max_p, dtype=np.float64) / 2**32
    return np.asarray(2 * probability / (1 + probability))


def line_max_ps(pmax: Floats) -> Ints:
    """Return the `max_P` values of ports that mark by the straight line: `pmax` times 2^32."""
    max_p: Ints = np.rint(np.asarray(pmax) * 2**32).astype(np.int64)
    return max_p


def line_pmax(max_p: Floats) -> Floats:
    """Return the share marked at kmax for the `max_P` of ports that mark by the straight line."""
    return np.asarray(max_p, dtype=np.float64) / 2**32


@dataclass(frozen=True)
class MarkingProbability:
    """Linux RED with one setting; `pmax` is the share to be marked at kmax."""

    kmin_bytes: int
    kmax_bytes: int
    pmax: float

    @property
    def draw_range(self) -> int:
        """D, the number of values that qR can take, by the kernel's integer divisions."""
        delta = max(1, self.kmax_bytes - self.kmin_bytes)
        return int(2**32 // max(1, red_max_p(self.pmax) // delta))

    def line(self, qlen_bytes: Ints) -> Floats:
        """Return DCQCN's marking probability: 0 to kmin, up to pmax before kmax, 1 from kmax on."""
        queue = np.asarray(qlen_bytes, dtype=np.float64)
        delta = max(1, self.kmax_bytes - self.kmin_bytes)
        ramp = self.pmax * (queue - self.kmin_bytes) / delta
        return np.where(queue < self.kmin_bytes, 0.0, np.where(queue >= self.kmax_bytes, 1.0, ramp))

    def share(self, qlen_bytes: Ints) -> Floats:
        """Return the share of packets that RED marks while the queue stays at `qlen_bytes`."""
        shares = []
        for queue in np.atleast_1d(qlen_bytes).tolist():
            if queue < self.kmin_bytes:
                shares.append(0.0)
            elif queue >= self.kmax_bytes:
                shares.append(1.0)
            else:
                shares.append(1.0 / self.gap_moments(queue)[0])
        return np.array(shares)

    def gap_moments(self, qlen_bytes: int) -> tuple[float, float]:
        """Return mean and variance of the gap between marks, in packets, between kmin and kmax.

        The gap is max(1, ceil(qR/x)) with x = queue - kmin: P(gap > g) = 1 - (x g + 1)/D.
        """
        x, draws = qlen_bytes - self.kmin_bytes, self.draw_range
        if x <= 0:
            return float("inf"), float("inf")
        # sums over g = 1 ... last of P(gap > g) and of (2g + 1) P(gap > g), in closed form
        last = float((draws - 1) // x)
        ones, squares = last * (last + 1) / 2, last * (last + 1) * (2 * last + 1) / 6
        mean = 1 + last * (1 - 1 / draws) - x / draws * ones
        square = 1 + (1 - 1 / draws) * (2 * ones + last) - x / draws * (2 * squares + ones)
        return mean, square - mean**2

    def draw_gaps(self, qlen_bytes: int, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        """Draw gaps between marks, in packets, at a constant queue length between kmin and kmax."""
        x = qlen_bytes - self.kmin_bytes
        drawn = rng.integers(0, self.draw_range, size=shape)
        return np.maximum(1, -(-drawn // x))

    def marks_band(
        self, qlen_bytes: int, packets: int, confidence: float, rng: np.random.Generator
    ) -> tuple[int, int]:
        """Return the range that the number of marks lies in with probability `confidence`.

        The marks are those among `packets` packets at a constant queue length. The range is found
        by simulation, as quantiles of a renewal process observed from an arbitrary packet on.
        """
        if qlen_bytes <= self.kmin_bytes:
            return 0, 0
        if qlen_bytes >= self.kmax_bytes:
            return packets, packets
        mean, variance = self.gap_moments(qlen_bytes)
        draws = 2000
        maximum = int(packets / mean + 12 * np.sqrt(packets * variance / mean**3 + 1)) + 4
        gaps = self.draw_gaps(qlen_bytes, (draws, maximum + 200), rng)
        marked = np.cumsum(gaps, axis=1)  # the numbers of the packets that are marked
        begin = rng.integers(0, np.maximum(1, marked[:, 150:151]))
        counts = ((marked > begin) & (marked <= begin + packets)).sum(axis=1)
        tail = (1 - confidence) / 2
        low, high = np.quantile(counts, [tail, 1 - tail])
        return int(np.floor(low)), int(np.ceil(high))

    def worst_departure(self) -> float:
        """Return the largest distance from the straight line, as a share of pmax."""
        if self.pmax <= 0 or self.kmax_bytes <= self.kmin_bytes + 1:
            return 0.0
        steps = min(200, self.kmax_bytes - self.kmin_bytes)
        queue = np.linspace(self.kmin_bytes + 1, self.kmax_bytes - 1, steps).astype(np.int64)
        return float(np.abs(self.share(queue) - self.line(queue)).max() / self.pmax)
