"""Addresses, ports, traffic classes and results of flows that a testbed's sockets send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inventory.rack import Rack
from inventory.routing import own_control
from orchestration.agent.linux.qdiscs import CLASS_TOS
from orchestration.agent.senders.connections import Flows, Service
from orchestration.agent.senders.socket_driver import Board
from orchestration.core.records import FlowRecords, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import PatternSpec

LISTEN_PORT, FIRST_SOURCE_PORT = 5000, 6000
_SOURCE_PORT_LIMIT = 65_000


@dataclass(frozen=True)
class Endpoints:
    """The addresses of each host's NICs, with hosts in the schedule's order.

    Hosts listen for flows of class number n at `listen_port` + n.
    """

    addresses: Sequence[Sequence[str]]
    listen_port: int = LISTEN_PORT
    first_source_port: int = FIRST_SOURCE_PORT


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


def connected(schedule: Schedule, ends: Endpoints, services: Sequence[Service] = ()) -> Flows:
    """Return the flows of `schedule` with the ends of their connections.

    `services` has one entry for each of its patterns (`Schedule.klass`). If it is empty, sockets
    keep the hosts' defaults. Raises OSError if a host starts more flows than it has ports.
    """
    src, dst = schedule.src.tolist(), schedule.dst.tolist()
    if services:
        service = [services[pattern] for pattern in schedule.klass.tolist()]
    else:
        service = [Service()] * len(schedule)
    next_port: dict[int, int] = {}
    near, far = [], []
    for flow, (sender, receiver) in enumerate(zip(src, dst, strict=True)):
        port = next_port.get(sender, ends.first_source_port)
        next_port[sender] = port + 1
        if port > _SOURCE_PORT_LIMIT:
            most = _SOURCE_PORT_LIMIT + 1 - ends.first_source_port
            raise OSError(f"host {sender} starts more than {most} flows: shorten the trial")
        own, other = ends.addresses[sender], ends.addresses[receiver]
        near.append((own[flow % len(own)], port))
        far.append((other[flow % len(other)], ends.listen_port + service[flow].number))
    return Flows(
        schedule.start_ns.tolist(), schedule.size_bytes.tolist(), src, dst, near, far, service
    )


def flow_records(board: Board) -> FlowRecords:
    """Return a copy of the results on a driver's board."""
    names = ("sent_ns", "end_ns", "retransmits", "status")
    return FlowRecords(**{name: np.array(getattr(board, name), dtype=np.int64) for name in names})
