"""Bounds that scale with the port's rate, for tuners with one marking threshold per queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.knobs import ECN
from orchestration.core.records import Change, Floats, Ints
from tuners.base import negative
from tuners.ecn.static import REFERENCE_RATE_BPS

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


class Bounds:
    """Lowest and highest threshold of every queue; `scale` is its rate over 25 Gbit/s.

    No bound is below two full packets, where DCTCP would stop sending, or above the buffer.
    """

    def __init__(self, testbed: Testbed, least_bytes: int, most_bytes: int) -> None:
        rates = np.array([queue.rate_bps for queue in testbed.queues], dtype=np.float64)
        buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.float64)
        self.scale: Floats = rates / REFERENCE_RATE_BPS
        floor = np.minimum(2.0 * testbed.mtu_bytes, buffers)
        self.least: Floats = np.clip(least_bytes * self.scale, floor, buffers)
        self.most: Floats = np.clip(most_bytes * self.scale, floor, buffers)

    def clip(self, threshold_bytes: Floats) -> Floats:
        """Bring a threshold of every queue within its bounds."""
        clipped: Floats = np.clip(threshold_bytes, self.least, self.most)
        return clipped


def wrong_limits(least_bytes: int, most_bytes: int) -> Iterator[str]:
    """Yield what is wrong with the lowest and highest threshold, each as `what: remedy`."""
    yield from negative(least_bytes=least_bytes, most_bytes=most_bytes)
    if least_bytes > most_bytes:
        yield (f"least_bytes {least_bytes} is above most_bytes {most_bytes}: swap or correct them")


def marking_at(queues: Ints, threshold_bytes: Ints) -> Change:
    """Return the change that makes `queues` mark exactly the packets above their threshold."""
    return ECN.change(queues, threshold_bytes, threshold_bytes.copy(), 1.0)
