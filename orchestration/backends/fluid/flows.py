"""The flows of the fluid model: DCTCP's congestion windows, and what a flow table would count.

In a fluid model flows have no packets. Each has a rate in bytes per ns, and a queue marks a share
of what passes. The windows follow DCTCP (Alizadeh et al., SIGCOMM 2010; the fluid form is in their
"Analysis of DCTCP", SIGMETRICS 2011) with Linux' constants: the initial window is 10 segments,
alpha starts at 1, g is 1/16, and a window is never below 2 segments. What TCP does once per
round-trip time if it has seen a CE packet happens here in proportion to the probability of that.

The arrays of the model have a column for each active flow. A new flow takes over the column of a
flow that has ended.
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
    """The window in bytes, slow-start threshold and alpha of every column, shapes (columns,)."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment = float(segment_bytes)
        self._floor = MIN_WINDOW_SEGMENTS * self._segment
        self.window, self._threshold, self._alpha = np.zeros((3, 0))

    def grow(self, columns: int) -> None:
        """Add columns until there are so many."""
        more = columns - len(self.window)
        # The window of an unused column must not be a zero divisor.
        self.window = np.pad(self.window, (0, more), constant_values=self._segment)
        self._threshold = np.pad(self._threshold, (0, more))
        self._alpha = np.pad(self._alpha, (0, more))

    def open(self, column: int) -> None:
        """Start a new connection in this column."""
        self.window[column] = INITIAL_WINDOW_SEGMENTS * self._segment
        self._threshold[column] = np.inf
        self._alpha[column] = 1.0

    def acknowledge(self, acked: Floats, limited: NDArray[np.bool_], marked: Floats | None) -> None:
        """Process acknowledgements of `acked` bytes, of which a share `marked` had an ECN echo.

        `marked` is None if there was no echo at all. `limited` is true where the window limits the
        flow's rate: only then the window may grow. All arrays have shape (columns,).
        """
        window, segment = self.window, self._segment
        grown = np.where(window < self._threshold, acked, segment * acked / window)
        trips = np.minimum(acked / window, 1.0)
        if marked is None:
            self._alpha -= trips * ALPHA_GAIN * self._alpha
            self.window = window + grown * limited
            return
        alpha = self._alpha + trips * ALPHA_GAIN * (marked - self._alpha)
        # The probability of at least one CE packet in a window of independently marked packets.
        mark_probability = -np.expm1(window / segment * np.log1p(-np.minimum(marked, 1 - 1e-12)))
        cut = 0.5 * alpha * mark_probability * trips * window
        after = np.maximum(window + grown * limited * (1 - mark_probability) - cut, self._floor)
        self._threshold = np.where((mark_probability > 0.5) & (acked > 0), after, self._threshold)
        self._alpha = alpha
        self.window = after

    def halve(self, columns: NDArray[Any]) -> None:
        """Halve the windows of these columns: fast retransmit."""
        self.window[columns] = np.maximum(self.window[columns] / 2, self._floor)
        self._threshold[columns] = self.window[columns]

    def time_out(self, columns: NDArray[Any]) -> None:
        """Restart from one segment, after a retransmission timeout."""
        self._threshold[columns] = np.maximum(self.window[columns] / 2, self._floor)
        self.window[columns] = self._segment


# A fluid can trickle: fewer bytes than this between two readings count as no packet.
_MIN_BYTES = 1.0


class FlowWindow:
    """Counts the flows that have passed each queue within the last time slots, as a flow table.

    A slot ends after `readings_per_slot` readings, as in `collectors.readers.flows`.
    """

    def __init__(self, testbed: Testbed, schedule: Schedule, readings_per_slot: int) -> None:
        self._schedule = schedule
        self._queues, self._hosts = len(testbed.queues), len(testbed.hosts)
        # for the testbed's ports and the model's two more (see `Paths`): the queue there, or -1
        self._queue_of = np.full(len(testbed.ports) + 2, -1, dtype=np.int64)
        for number, queue in enumerate(testbed.queues):
            self._queue_of[queue.index] = number
        self._readings_per_slot = readings_per_slot
        self._readings = 0
        self._slots: deque[list[tuple[Ints, Floats]]] = deque([[]], maxlen=WINDOW_SLOTS)
        self._recorded = np.zeros((0, 0))

    def record(self, flow: Ints, path: Ints, passed: Floats) -> None:
        """Record the payload bytes that have passed each port of each flow's path so far.

        `path` and `passed` have shape (stages, columns), `flow` has shape (columns,). A column's
        count starts again at 0 when another flow takes it over.
        """
        before = np.zeros_like(passed)
        stages, columns = self._recorded.shape
        before[:stages, :columns] = self._recorded
        self._recorded = passed.copy()
        new = np.where(passed < before, passed, passed - before)
        queue = self._queue_of[path]
        stage, column = np.nonzero((new >= _MIN_BYTES) & (queue >= 0) & (flow >= 0))
        keys = flow[column] * self._queues + queue[stage, column]
        self._slots[-1].append((keys, passed[stage, column]))

    def read(self) -> FlowReading:
        """Count the flows of the last slots, and start the next slot if it is due."""
        records = [record for slot in self._slots for record in slot]
        empty = np.zeros(0, dtype=np.int64)
        keys, key_index = np.unique(
            np.concatenate([empty, *(keys for keys, _ in records)]), return_inverse=True
        )
        passed = np.zeros(len(keys))
        np.maximum.at(passed, key_index, np.concatenate([empty, *(sums for _, sums in records)]))
        flow, queue = np.divmod(keys, self._queues)
        self._readings += 1
        if self._readings % self._readings_per_slot == 0:
            self._slots.append([])
        return per_queue(
            queue,
            self._schedule.dst[flow],
            self._schedule.src[flow],
            np.rint(passed).astype(np.int64),
            self._queues,
            self._hosts,
        )
