"""A schedule's flows as connections: their endpoints and socket settings.

Standard library only, and Python 3.9: a rack's hosts receive their flows as JSON.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...core.records import Schedule

LISTEN_PORT, FIRST_SOURCE_PORT = 5000, 6000
_SOURCE_PORT_LIMIT = 65_000


@dataclass(frozen=True)
class Service:
    """How flows of one traffic class are sent: the class's number, type of service, TCP.

    `tos` is the byte of the IPv4 header; TCP controls its two ECN bits. If `congestion_control` is
    "", the host's default is used.
    """

    number: int = 0
    tos: int = 0
    congestion_control: str = ""

    def apply(self, made: socket.socket) -> None:
        """Configure a socket that is not connected yet, or a listening socket."""
        if self.tos:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self.tos)
        if self.congestion_control:
            name = self.congestion_control.encode()
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


@dataclass(frozen=True)
class Endpoints:
    """The addresses of each host's NICs, with hosts in the schedule's order.

    Hosts listen for flows of class number n at `listen_port` + n.
    """

    addresses: Sequence[Sequence[str]]
    listen_port: int = LISTEN_PORT
    first_source_port: int = FIRST_SOURCE_PORT


@dataclass(frozen=True)
class Flows:
    """The flows of a schedule with the ends of their connections; each list has an entry per flow.

    `near` is the sender's address and port, `far` the receiver's address and listening port.
    """

    start_ns: list[int]
    size_bytes: list[int]
    src: list[int]
    dst: list[int]
    near: list[tuple[str, int]]
    far: list[tuple[str, int]]
    service: list[Service]

    def __len__(self) -> int:
        return len(self.start_ns)

    @classmethod
    def of(cls, schedule: Schedule, ends: Endpoints, services: Sequence[Service] = ()) -> Flows:
        """Return the flows of `schedule`.

        `services` has one entry for each of its patterns (`Schedule.klass`). If it is empty,
        sockets keep the hosts' defaults. Raises OSError if a host starts more flows than it has
        ports.
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
        return cls(
            schedule.start_ns.tolist(), schedule.size_bytes.tolist(), src, dst, near, far, service
        )

    def touching(self, host: int) -> list[int]:
        """Return the numbers of the flows that a host sends or receives."""
        return [flow for flow in range(len(self)) if host in (self.src[flow], self.dst[flow])]

    def to_json(
        self, flows: Sequence[int], names: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return some of the flows, by number, as JSON-ready data.

        `names` has what a host's kernel calls a congestion control, where that differs.
        """
        names = names or {}
        data: dict[str, Any] = {
            name: [getattr(self, name)[flow] for flow in flows]
            for name in ("start_ns", "size_bytes", "src", "dst", "near", "far")
        }
        data["service"] = [
            [item.number, item.tos, names.get(item.congestion_control, item.congestion_control)]
            for item in (self.service[flow] for flow in flows)
        ]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Flows:
        """Rebuild flows from `to_json`'s data. Raises KeyError or TypeError on foreign data."""
        near, far = ([(str(ip), int(port)) for ip, port in data[name]] for name in ("near", "far"))
        service = [Service(*item) for item in data["service"]]
        start_ns, size_bytes, src, dst = (
            list(data[name]) for name in ("start_ns", "size_bytes", "src", "dst")
        )
        return cls(start_ns, size_bytes, src, dst, near, far, service)
