"""Decodes the ns-3 program's readings of queues, hosts, pairs and flows: rows of 64-bit words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collectors.readers.flows import FlowReading, per_queue
from inventory.addressing import attachments
from orchestration.agent.linux_switch.flow_layout import WINDOW_SLOTS
from orchestration.core import signals
from orchestration.core.knobs import ECN
from orchestration.core.records import Floats, Ints
from orchestration.core.topology import Testbed

_QUEUE_COUNTERS, _HOST_COUNTERS, _TABLE_COLUMNS = 8, 5, 4
# Columns of a queue's counters: its signals, then its thresholds.
SIGNALS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
_KMIN, _KMAX, _MAX_P = range(len(SIGNALS), _QUEUE_COUNTERS)
# For each signal of hosts, its column among a host's counters.
HOST_COLUMNS = {
    "host.retransmits": 0,
    "host.timeouts": 1,
    "host.out_of_order": 2,
    "host.tx_bytes": 3,
    "host.received_packets": 4,
    # TCP counts segments, each of which is a packet here
    "host.out_of_order_packets": 2,
}
# The columns of a queue's thresholds, in the order in which the program takes them.
THRESHOLDS = slice(_KMIN, _MAX_P + 1)

_BUFFER_SIGNALS = tuple(
    signal for signal in signals.recorded("switch") if signal.key not in signals.BALANCING_KEYS
)


def queues_and_hosts(words: Ints, testbed: Testbed) -> tuple[Ints, Ints]:
    """Return the queues' counters, shape (queues, 8), and the hosts', shape (hosts, 5)."""
    cut = _QUEUE_COUNTERS * len(testbed.queues)
    return words[:cut].reshape(-1, _QUEUE_COUNTERS), words[cut:].reshape(-1, _HOST_COUNTERS)


def nics(words: Ints) -> dict[str, Ints]:
    """Return the signals of hosts' RoCE NICs by key, arrays (hosts,)."""
    return dict(zip(signals.NIC_KEYS, words.reshape(-1, len(signals.NIC_KEYS)).T, strict=True))


def pair_bytes(words: Ints, testbed: Testbed) -> Ints:
    """Return the bytes by ordered pair of edge switches, as `signals.targets` orders them.

    The program sends a full matrix, also with the pairs of a switch with itself. Its rows and
    columns are in the order of the edge switches' numbers in hosts' addresses.
    """
    numbers = attachments(testbed)
    order = [numbers[name] for name in testbed.edges]
    matrix = words.reshape(len(order), len(order))[np.ix_(order, order)]
    return matrix[~np.eye(len(order), dtype=bool)]


def buffers(words: Ints, testbed: Testbed) -> tuple[dict[str, Ints], dict[str, int]]:
    """Return the signals of lossless classes and of switches by key, and the lossless drops.

    The drops are packets of lossless classes that found no headroom, by switch; switches without
    such drops are left out.
    """
    priority = signals.recorded("priority")
    cut = len(priority) * len(testbed.lossless_queues)
    of_classes = words[:cut].reshape(-1, len(priority)).T
    *of_switches, drops = words[cut:].reshape(len(testbed.switches), -1).T
    values = {signal.key: row for signal, row in zip(_BUFFER_SIGNALS, of_switches, strict=True)}
    if cut:
        rows = zip(priority, of_classes, strict=True)
        values = {**{signal.key: row for signal, row in rows}, **values}
    lossless = zip(testbed.switches, drops.tolist(), strict=True)
    return values, {name: count for name, count in lossless if count}


def thresholds(known: Ints, pmax_of: Callable[[Floats], Floats]) -> dict[str, Any]:
    """Return the thresholds of queues from their counters, by column of the knob ECN.

    `pmax_of` converts the ports' `max_P` values to marking probabilities at kmax.
    """
    max_p = known[:, _MAX_P].astype(np.float64)
    return ECN.named(known[:, _KMIN], known[:, _KMAX], pmax_of(max_p))


class FlowWindow:
    """Reads the program's flow tables, slot by slot (see `collectors.readers.flows`)."""

    def __init__(
        self, ask: Callable[[int, int], Ints], testbed: Testbed, readings_per_slot: int
    ) -> None:
        """`ask(before, slot)` returns the rows of all slots since `before`, and begins `slot`."""
        self._ask = ask
        self._queues, self._hosts = len(testbed.queues), len(testbed.hosts)
        self._readings_per_slot = readings_per_slot
        self._readings = self._slot = 0

    def read(self) -> FlowReading:
        """Count the flows of the last slots, and begin the next slot if it is due."""
        before = self._slot - WINDOW_SLOTS
        self._readings += 1
        if self._readings % self._readings_per_slot == 0:
            self._slot += 1
        words = self._ask(before, self._slot)
        queue, receiver, sender, seen = words.reshape(-1, _TABLE_COLUMNS).T
        return per_queue(queue, receiver, sender, seen, self._queues, self._hosts)
