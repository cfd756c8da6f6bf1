"""Drivers' results as the arrays of a trial's flows table."""

from __future__ import annotations

import numpy as np

from orchestration.model.records import FlowRecords, Ints
from traffic.drivers.sockets import Board


def flow_records(board: Board) -> FlowRecords:
    """Return a copy of what a driver has written on its board."""

    def column(words: memoryview) -> Ints:
        return np.array(words, dtype=np.int64)

    return FlowRecords(
        sent_ns=column(board.sent_ns),
        end_ns=column(board.end_ns),
        retransmits=column(board.retransmits),
        status=column(board.status),
    )
