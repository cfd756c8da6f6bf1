"""The two ends of each flow that hosts send: addresses, ports, traffic classes and RDMA GIDs.

A GID identifies an address on an RDMA device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inventory.rack import Rack
from inventory.routing import pattern_control
from orchestration.agent.linux.qdiscs import CLASS_TOS
from orchestration.agent.senders.connections import Flows, Service
from orchestration.agent.senders.socket_driver import Board
from orchestration.core.pattern import PatternSpec
from orchestration.core.records import FlowRecords, Schedule
from orchestration.core.topology import Testbed
from orchestration.device.client import Fleet
from orchestration.device.errors import DeviceError, unreadable
from traffic.drivers.programs import Options, ProgramDriver

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
    """Return how each pattern's flows are sent; empty if all are sent in the same way.

    A listening socket has one congestion control. So flows with another congestion control than
    that of their class have a service number of their own, above the numbers of the classes. Raises
    ValueError for a class that the testbed does not have.
    """
    if not testbed.classes and not any(spec.congestion_control for spec in traffic):
        return []
    classes = [klass.congestion_control for klass in testbed.classes] or [""]
    numbers = {(number, control): number for number, control in enumerate(classes)}
    result = []
    for spec in traffic:
        klass, control = testbed.class_index(spec.queue_class), pattern_control(testbed, spec)
        number = numbers.setdefault((klass, control), len(numbers))
        result.append(Service(number, CLASS_TOS[klass], control))
    return result


def connected(schedule: Schedule, ends: Endpoints, services: Sequence[Service] = ()) -> Flows:
    """Return the flows of `schedule` with the addresses and ports of their connections.

    `services` has one entry for each pattern of the schedule (`Schedule.klass`). If it is empty,
    sockets keep the hosts' defaults. Raises OSError if a host starts more flows than it has ports.
    """
    src, dst = schedule.src.tolist(), schedule.dst.tolist()
    if services:
        service = [services[pattern] for pattern in schedule.klass.tolist()]
    else:
        service = [Service()] * len(schedule)
    next_port: dict[int, int] = {}
    sources, destinations = [], []
    for flow, (sender, receiver) in enumerate(zip(src, dst, strict=True)):
        port = next_port.get(sender, ends.first_source_port)
        next_port[sender] = port + 1
        if port > _SOURCE_PORT_LIMIT:
            maximum = _SOURCE_PORT_LIMIT + 1 - ends.first_source_port
            raise OSError(f"host {sender} starts more than {maximum} flows: shorten the trial")
        of_sender, of_receiver = ends.addresses[sender], ends.addresses[receiver]
        sources.append((of_sender[flow % len(of_sender)], port))
        listen_port = ends.listen_port + service[flow].number
        destinations.append((of_receiver[flow % len(of_receiver)], listen_port))
    start_ns, size_bytes = schedule.start_ns.tolist(), schedule.size_bytes.tolist()
    return Flows(start_ns, size_bytes, src, dst, sources, destinations, service)


def flow_records(board: Board) -> FlowRecords:
    """Return a copy of the results on a driver's board."""
    names = ("sent_ns", "end_ns", "retransmits", "status")
    return FlowRecords(**{name: np.array(getattr(board, name), dtype=np.int64) for name in names})


# The service of the agent that reports GIDs (`orchestration.agent.host.rdma`).
SERVICE = "nic"


class Gid(NamedTuple):
    """The GID of RoCE v2 for an IPv4 address: the RDMA device, its port, and the GID's index."""

    device: str
    port: int
    gid_index: int
    address: str


Gids = Mapping[str, list[Gid]]


def gids_of(fleet: Fleet, hosts: Iterable[str]) -> dict[str, list[Gid]]:
    """Return each host's GIDs of RoCE v2. Raises DeviceError."""
    gids = {}
    for host, rows in fleet.ask("nic.gids", {host: {} for host in hosts}).items():
        try:
            gids[host] = [Gid(str(d), int(port), int(n), str(a)) for d, port, n, a in rows]
        except (TypeError, ValueError) as error:
            raise unreadable(host, "its GIDs", error) from error
    return gids


def gid_of(host: str, gids: Iterable[Gid], address: str, device: str) -> Gid:
    """Return the GID of an address, on `device` unless that is "". Raises DeviceError."""
    of_host = list(gids)
    for gid in of_host:
        if gid.address == address and device in ("", gid.device):
            return gid
    others = ", ".join(f"{gid.address} at {gid.device}" for gid in of_host) or "none"
    what = f"RDMA device {device} has no" if device else "no RDMA device has a"
    raise DeviceError(
        host,
        f"{what} RoCE v2 GID for the address {address} (found: {others})",
        "run `closloop provision`, which sets the addresses of NICs; for a host with several NICs, "
        "name an rdma_device at each link in the inventory",
    )


def rdma_end(
    rack: Rack, host: str, number: int, driver: ProgramDriver, options: Options, gids: Gids
) -> Gid:
    """Return the GID by which flow `number` leaves or reaches a host. Raises DeviceError.

    Its fields are empty or -1 where programs choose themselves.
    """
    ports = rack.testbed.ports_of[host]
    port = ports[number % len(ports)]
    device = rack.access[host].rdma_device(rack.interface(port))
    gid_index = int(options.get("gid_index", -1))
    if not driver.rdma or gid_index >= 0:
        return Gid(device, 1, gid_index, "")
    device = str(options.get("device", "")) or device
    return gid_of(host, gids.get(host, ()), rack.addresses.nics[port.index], device)
