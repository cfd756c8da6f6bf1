"""Flows of the fluid: DCTCP's congestion windows, all at once, and what a flow table would count.

The window law of DCTCP (Alizadeh et al., SIGCOMM 2010; its fluid form is in their "Analysis of
DCTCP", SIGMETRICS 2011) with Linux' constants: initial window 10 segments, alpha starts at 1, g is
1/16, never below 2 segments. Marks are fractions of a fluid. What TCP does once in a round trip "if
a mark was seen" happens here in proportion to the probability of a mark.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors.readers.flows import FlowReading, per_queue
from orchestration.agent.linux_switch.flow_layout import WINDOW_SLOTS
from orchestration.core.records import Floats, Ints, Schedule
from orchestration.core.topology import Testbed

INITIAL_WINDOW_SEGMENTS = 10
MIN_WINDOW_SEGMENTS = 2
ALPHA_GAIN = 1 / 16


class Windows:
    """Window, slow-start threshold and alpha of every flow, shapes (flows,)."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment = float(segment_bytes)
        self._floor = MIN_WINDOW_SEGMENTS * self._segment
        self.window, self._threshold, self._alpha = np.zeros((3, 0))

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
        trips = np.minimum(acked / window, 1.0)
        if marked is None:
            self._alpha -= trips * ALPHA_GAIN * self._alpha
            self.window = window + grown * limited
            return
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


# A fluid can trickle: fewer bytes than this in a reading count as no packet.
_MIN_BYTES = 1.0


class FlowWindow:
    """Records what passes the queues, and counts flows over the last slots.

    A slot ends after `readings_per_slot` readings, as in `collectors.readers.flows`.
    """

    def __init__(self, testbed: Testbed, schedule: Schedule, readings_per_slot: int) -> None:
        self._schedule = schedule
        self._queues, self._hosts = len(testbed.queues), len(testbed.hosts)
        # the testbed's ports, and the model's two without queues (see `Paths`)
        self._queue_of = np.full(len(testbed.ports) + 2, -1, dtype=np.int64)
        for number, queue in enumerate(testbed.queues):
            self._queue_of[queue.index] = number
        self._readings_per_slot = readings_per_slot
        self._readings = 0
        self._slots: deque[list[tuple[Ints, Floats]]] = deque([[]], maxlen=WINDOW_SLOTS)
        self._noted = np.zeros((0, 0))

    def note(self, flow: Ints, path: Ints, passed: Floats) -> None:
        """Record the payload bytes passed so far; `path` and `passed` have shape (stages, places).

        `flow` has shape (places,). A place's count starts again at 0 when another flow takes it
        over.
        """
        noted = np.zeros_like(passed)
        stages, places = self._noted.shape
        noted[:stages, :places] = self._noted
        self._noted = passed.copy()
        new = np.where(passed < noted, passed, passed - noted)
        queue = self._queue_of[path]
        stage, place = np.nonzero((new >= _MIN_BYTES) & (queue >= 0) & (flow >= 0))
        keys = flow[place] * self._queues + queue[stage, place]
        self._slots[-1].append((keys, passed[stage, place]))

    def read(self) -> FlowReading:
        """Count the flows of the last slots, and start the next slot if it is due."""
        notes = [note for slot in self._slots for note in slot]
        empty = np.zeros(0, dtype=np.int64)
        keys, at = np.unique(
            np.concatenate([empty, *(note[0] for note in notes)]), return_inverse=True
        )
        seen = np.zeros(len(keys))
        np.maximum.at(seen, at, np.concatenate([empty, *(note[1] for note in notes)]))
        flow, queue = np.divmod(keys, self._queues)
        self._readings += 1
        if self._readings % self._readings_per_slot == 0:
            self._slots.append([])
        return per_queue(
            queue,
            self._schedule.dst[flow],
            self._schedule.src[flow],
            np.rint(seen).astype(np.int64),
            self._queues,
            self._hosts,
        )
