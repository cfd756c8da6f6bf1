"""A schedule's flows as TCP connections: their addresses, ports and socket settings.

The controller sends each host its part of them as JSON.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Service:
    """The socket settings of one traffic class's flows; `number` is the class's.

    `tos` is the type-of-service byte of the IPv4 header; TCP controls its two ECN bits. If
    `congestion_control` is "", the host's default is used.
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
class Flows:
    """The flows of a schedule and their connections; each list has an entry per flow.

    `src` and `dst` are numbers of hosts. `near` has the sender's address and port, `far` the
    receiver's address and listening port.
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

    def touching(self, host: int) -> list[int]:
        """Return the numbers of the flows that a host sends or receives."""
        return [flow for flow in range(len(self)) if host in (self.src[flow], self.dst[flow])]

    def to_json(
        self, flows: Sequence[int], names: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return some of the flows, by number, as JSON-ready data.

        `names` has, by congestion control, the name that a host's kernel has for it, if it differs.
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
        """Rebuild flows from `to_json`'s data. Raises KeyError or TypeError for other data."""
        near, far = ([(str(ip), int(port)) for ip, port in data[name]] for name in ("near", "far"))
        service = [Service(*item) for item in data["service"]]
        start_ns, size_bytes, src, dst = (
            list(data[name]) for name in ("start_ns", "size_bytes", "src", "dst")
        )
        return cls(start_ns, size_bytes, src, dst, near, far, service)
