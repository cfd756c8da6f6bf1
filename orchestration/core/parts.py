"""The parts of a testbed as pure data: devices, ports and their queues, links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["host", "switch"]


@dataclass(frozen=True)
class Device:
    """A host (tier 0) or a switch (tier 1 = leaf or edge, counted upwards)."""

    name: str
    kind: DeviceKind
    tier: int


@dataclass(frozen=True)
class Port:
    """One end of a link. `buffer_bytes` is 0 on a host: its queue belongs to the host's stack."""

    index: int
    device: str
    name: str
    peer: int
    link: int
    rate_bps: int
    delay_ns: int
    buffer_bytes: int

    @property
    def label(self) -> str:
        """The port's full name, `leaf1:eth3`."""
        return f"{self.device}:{self.name}"


@dataclass(frozen=True)
class TrafficClass:
    """A traffic class: it has its own queue at every port, served by `weight`.

    Its flows use `congestion_control`; "" means that of the campaign's `host`.
    """

    name: str
    weight: int
    congestion_control: str = ""


@dataclass(frozen=True)
class Queue:
    """The queue of one traffic class at one switch port, with the properties of its port.

    `klass` indexes `Testbed.classes`. `class_name` is "" on a testbed without classes, where a port
    has one queue. `buffer_bytes` is what this queue alone may hold.
    """

    port: Port
    klass: int = 0
    class_name: str = ""
    buffer_bytes: int = 0

    @property
    def label(self) -> str:
        """The queue's full name: `leaf1:eth3/tcp`, or its port's name without classes."""
        return f"{self.port.label}/{self.class_name}" if self.class_name else self.port.label

    @property
    def index(self) -> int:
        """The index of its port in `Testbed.ports`."""
        return self.port.index

    @property
    def device(self) -> str:
        """The switch that it is in."""
        return self.port.device

    @property
    def name(self) -> str:
        """The name of its port, `eth3`."""
        return self.port.name

    @property
    def peer(self) -> int:
        """The port at the other end of the link."""
        return self.port.peer

    @property
    def link(self) -> int:
        """The index of the link that it sends on."""
        return self.port.link

    @property
    def rate_bps(self) -> int:
        """The port's rate in bit/s: that of the queue while the port's other queues are empty."""
        return self.port.rate_bps

    @property
    def delay_ns(self) -> int:
        """Propagation delay of the link in ns."""
        return self.port.delay_ns


@dataclass(frozen=True)
class Link:
    """A cable between two ports (indices into `Testbed.ports`)."""

    index: int
    a: int
    b: int
    rate_bps: int
    delay_ns: int


@dataclass(frozen=True)
class LinkSpec:
    """A cable as a generator returns it, before ports are numbered."""

    a: str
    b: str
    rate_bps: int
    delay_ns: int
