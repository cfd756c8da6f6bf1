"""Addresses, traffic classes and results of flows that a testbed's sockets send."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inventory.rack import Rack
from inventory.routing import own_control
from orchestration.agent.linux.qdiscs import CLASS_TOS
from orchestration.agent.senders.flows import Service
from orchestration.agent.senders.sockets import Board
from orchestration.core.records import FlowRecords
from orchestration.core.topology import Testbed
from orchestration.core.trial import PatternSpec


def host_addresses(rack: Rack) -> list[tuple[str, ...]]:
    """Return the addresses of each host's NICs, in the order of `Testbed.hosts`."""
    addresses, ports_of = rack.addresses.nics, rack.testbed.ports_of
    return [tuple(addresses[port.index] for port in ports_of[host]) for host in rack.testbed.hosts]


def services(testbed: Testbed, traffic: Sequence[PatternSpec]) -> list[Service]:
    """Return how each pattern's flows are sent; empty if nothing sets them apart.

    Those with a congestion control other than their class's have numbers above the classes', since
    a listening socket has one. Raises ValueError for a class that the testbed does not have.
    """
    if not testbed.classes and not any(spec.congestion_control for spec in traffic):
        return []
    classes = [klass.congestion_control for klass in testbed.classes] or [""]
    numbers = {(number, own): number for number, own in enumerate(classes)}
    found = []
    for spec in traffic:
        klass, control = testbed.class_index(spec.queue_class), own_control(testbed, spec)
        number = numbers.setdefault((klass, control), len(numbers))
        found.append(Service(number, CLASS_TOS[klass], control))
    return found


def flow_records(board: Board) -> FlowRecords:
    """Return a copy of the results on a driver's board."""
    names = ("sent_ns", "end_ns", "retransmits", "status")
    return FlowRecords(**{name: np.array(getattr(board, name), dtype=np.int64) for name in names})
