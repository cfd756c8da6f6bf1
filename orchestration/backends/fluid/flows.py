"""The flows that each queue of the fluid fabric has seen lately: an unlimited flow table."""

from __future__ import annotations

from collections import deque

import numpy as np

from collectors.readers.flow_layout import WINDOW_SLOTS
from collectors.readers.flows import FlowReading, per_queue
from inventory.topology import Testbed
from orchestration.model.records import Floats, Ints, Schedule

# A fluid can trickle: fewer bytes than this in a reading count as no packet.
_LEAST_BYTES = 1.0


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
        stage, place = np.nonzero((new >= _LEAST_BYTES) & (queue >= 0) & (flow >= 0))
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
