"""DCTCP's congestion windows as a fluid, all flows at once.

The window law of DCTCP (Alizadeh et al., SIGCOMM 2010; its fluid form is in their "Analysis of
DCTCP", SIGMETRICS 2011) with Linux' constants: initial window 10 segments, alpha starts at 1, g is
1/16, never below 2 segments. Marks are fractions of a fluid. What TCP does once in a round trip "if
a mark was seen" happens here in proportion to the probability of a mark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Floats

INITIAL_WINDOW_SEGMENTS = 10
MIN_WINDOW_SEGMENTS = 2
ALPHA_GAIN = 1 / 16


class Windows:
    """Window, slow-start threshold and alpha of every flow, shapes (flows,)."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment = float(segment_bytes)
        self.window = np.zeros(0)
        self._threshold = np.zeros(0)
        self._alpha = np.zeros(0)

    def grow(self, flows: int) -> None:
        """Make room for more flows."""
        more = flows - len(self.window)
        # An unused place's window must not be a zero divisor.
        self.window = np.pad(self.window, (0, more), constant_values=self._segment)
        self._threshold = np.pad(self._threshold, (0, more))
        self._alpha = np.pad(self._alpha, (0, more))

    def open(self, flow: int) -> None:
        """Start a new connection at this place."""
        self.window[flow] = INITIAL_WINDOW_SEGMENTS * self._segment
        self._threshold[flow] = np.inf
        self._alpha[flow] = 1.0

    def acknowledge(self, acked: Floats, limited: NDArray[np.bool_], marked: Floats | None) -> None:
        """Process `acked` bytes, of which a share `marked` carried an echo (None: no echoes).

        `limited` says that the window is what holds the flow back, so it may grow.
        """
        window, segment = self.window, self._segment
        grown = np.where(window < self._threshold, acked, segment * acked / window)
        if marked is None:
            self._alpha -= np.minimum(acked / window, 1.0) * ALPHA_GAIN * self._alpha
            self.window = window + grown * limited
            return
        trips = np.minimum(acked / window, 1.0)
        alpha = self._alpha + trips * ALPHA_GAIN * (marked - self._alpha)
        # The probability of at least one mark in a window of independent packets.
        seen = -np.expm1(window / segment * np.log1p(-np.minimum(marked, 1 - 1e-12)))
        cut = 0.5 * alpha * seen * trips * window
        after = np.maximum(window + grown * limited * (1 - seen) - cut, self._floor)
        self._threshold = np.where((seen > 0.5) & (acked > 0), after, self._threshold)
        self._alpha = alpha
        self.window = after

    def lose(self, flows: NDArray[Any]) -> None:
        """Halve the windows of these flows: fast retransmit."""
        self.window[flows] = np.maximum(self.window[flows] / 2, self._floor)
        self._threshold[flows] = self.window[flows]

    def time_out(self, flows: NDArray[Any]) -> None:
        """Restart from one segment, after a retransmission timeout."""
        self._threshold[flows] = np.maximum(self.window[flows] / 2, self._floor)
        self.window[flows] = self._segment

    @property
    def _floor(self) -> float:
        return MIN_WINDOW_SEGMENTS * self._segment
