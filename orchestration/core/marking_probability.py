"""The marking law of Linux RED, and its distance from the straight line of DCQCN.

Linux RED spaces its marks (net/sched/sch_red.c, include/net/red.h). Between kmin and kmax, after a
mark it draws qR, uniform on the integers 0 … D-1. It then marks the first packet, counted from 1,
at which (queue - kmin) x count >= qR. So at a steady queue the gap between marks is uniform, and
the share marked is one over its mean: 2p/(1+p) for p = (queue - kmin)/D.

The kernel is configured with a `max_P` of pmax/(2-pmax), which makes that share pmax at kmax.
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
    """Return `red_max_p` of each entry."""
    wanted: Ints = np.rint(pmax / (2.0 - pmax) * 2**32).astype(np.int64)
    return np.clip(wanted, 1, 2**32 - 1)


def read_back_pmax(max_p: Floats) -> Floats:
    """Return the share marked at kmax for the `max_P` that a kernel reports."""
    probability = np.asarray(max_p, dtype=np.float64) / 2**32
    return np.asarray(2 * probability / (1 + probability))


def line_max_ps(pmax: Floats) -> Ints:
    """Return the numbers for a port that marks by the straight line: shares of 2^32."""
    wanted: Ints = np.rint(np.asarray(pmax) * 2**32).astype(np.int64)
    return wanted


def line_pmax(max_p: Floats) -> Floats:
    """Return the share marked at kmax for such a port's number."""
    return np.asarray(max_p, dtype=np.float64) / 2**32


@dataclass(frozen=True)
class MarkingProbability:
    """RED at one setting: kmin and kmax in bytes, pmax the wanted share at kmax."""

    kmin_bytes: int
    kmax_bytes: int
    pmax: float

    @property
    def draw_range(self) -> int:
        """D: how many values qR can take, with the kernel's integer divisions."""
        delta = max(1, self.kmax_bytes - self.kmin_bytes)
        return int(2**32 // max(1, red_max_p(self.pmax) // delta))

    def line(self, qlen_bytes: Ints) -> Floats:
        """The straight line of DCQCN: 0 below kmin, pmax at kmax, 1 from there on."""
        queue = np.asarray(qlen_bytes, dtype=np.float64)
        delta = max(1, self.kmax_bytes - self.kmin_bytes)
        ramp = self.pmax * (queue - self.kmin_bytes) / delta
        return np.where(queue < self.kmin_bytes, 0.0, np.where(queue >= self.kmax_bytes, 1.0, ramp))

    def share(self, qlen_bytes: Ints) -> Floats:
        """The share of packets that RED marks while the queue stays at `qlen_bytes`."""
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
        """Mean and variance of the packets from one mark to the next, on the ramp.

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
        """Draw gaps between marks at a steady queue on the ramp, shape `shape`."""
        x = qlen_bytes - self.kmin_bytes
        drawn = rng.integers(0, self.draw_range, size=shape)
        return np.maximum(1, -(-drawn // x))

    def marks_band(
        self, qlen_bytes: int, packets: int, confidence: float, rng: np.random.Generator
    ) -> tuple[int, int]:
        """Return the central band of the number of marks in `packets` at a steady queue.

        It is found by simulation. The distance to the first mark is that of a renewal process
        observed from an arbitrary packet.
        """
        if qlen_bytes <= self.kmin_bytes:
            return 0, 0
        if qlen_bytes >= self.kmax_bytes:
            return packets, packets
        mean, variance = self.gap_moments(qlen_bytes)
        draws = 2000
        maximum = int(packets / mean + 12 * np.sqrt(packets * variance / mean**3 + 1)) + 4
        gaps = self.draw_gaps(qlen_bytes, (draws, maximum + 200), rng)
        places = np.cumsum(gaps, axis=1)
        begin = rng.integers(0, np.maximum(1, places[:, 150:151]))
        counts = ((places > begin) & (places <= begin + packets)).sum(axis=1)
        tail = (1 - confidence) / 2
        low, high = np.quantile(counts, [tail, 1 - tail])
        return int(np.floor(low)), int(np.ceil(high))

    def worst_departure(self) -> float:
        """Largest distance of the law from the line on the ramp, as a share of pmax."""
        if self.pmax <= 0 or self.kmax_bytes <= self.kmin_bytes + 1:
            return 0.0
        steps = min(200, self.kmax_bytes - self.kmin_bytes)
        queue = np.linspace(self.kmin_bytes + 1, self.kmax_bytes - 1, steps).astype(np.int64)
        return float(np.abs(self.share(queue) - self.line(queue)).max() / self.pmax)
