"""Addresses, traffic classes and results of flows that a testbed's sockets send."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inventory.rack import Rack
from inventory.topology import Testbed
from orchestration.device.qdiscs import CLASS_TOS
from orchestration.model.records import FlowRecords
from orchestration.model.trial import PatternSpec
from traffic.drivers.flows import Service
from traffic.drivers.sockets import Board


def host_addresses(rack: Rack) -> list[tuple[str, ...]]:
    """Return the addresses of each host's NICs, in the order of `Testbed.hosts`."""
    addresses, ports_of = rack.addresses.nics, rack.testbed.ports_of
    return [tuple(addresses[port.index] for port in ports_of[host]) for host in rack.testbed.hosts]


def services(testbed: Testbed, traffic: Sequence[PatternSpec]) -> list[Service]:
    """Return how each pattern's flows are sent; empty if the testbed has no classes.

    Raises ValueError for a class that the testbed does not have.
    """
    if not testbed.classes:
        return []
    numbers = [testbed.class_index(spec.queue_class) for spec in traffic]
    return [
        Service(number, CLASS_TOS[number], testbed.classes[number].congestion_control)
        for number in numbers
    ]


def flow_records(board: Board) -> FlowRecords:
    """Return a copy of the results on a driver's board."""
    names = ("sent_ns", "end_ns", "retransmits", "status")
    return FlowRecords(**{name: np.array(getattr(board, name), dtype=np.int64) for name in names})
