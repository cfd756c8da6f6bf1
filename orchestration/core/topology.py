"""Testbed: a fabric as pure data (see `parts`), with queries.

A testbed is a Clos fabric: hosts at the bottom, switches in tiers above. It is the same object for
every backend. `Testbed.queues` defines the order of queues in all arrays of the project
(observations, actions, tables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from orchestration.core.parts import Device, Link, LinkSpec, Port, Queue, SwitchSpec, TrafficClass

__all__ = ["Device", "Link", "LinkSpec", "Port", "Queue", "Testbed", "TrafficClass"]

# Ethernet preamble 8, frame check 4, inter-frame gap 12. Linux byte counters do not include them.
ETHERNET_FRAMING_BYTES = 24
ETHERNET_HEADER_BYTES = 14
# IPv4 20, TCP 20, TCP timestamps 12 (the Linux default).
TCP_IP_HEADER_BYTES = 52


def reachable(start: str, neighbours: Callable[[str], Iterable[str]]) -> dict[str, None]:
    """Return the names that can be reached from `start`, itself included, depth first."""
    reached: dict[str, None] = {}
    stack = [start]
    while stack:
        name = stack.pop()
        if name not in reached:
            reached[name] = None
            stack += neighbours(name)
    return reached


@dataclass(frozen=True)
class Testbed:
    """Devices, links and ports of one fabric. Build one with `Testbed.build`.

    `source` says where its rates and sizes come from, such as a paper. With `classes`, every switch
    port has one queue per class, and divides its rate among the non-empty queues by weight. With
    `switch`, the ports of a switch share its buffer.
    """

    __test__ = False  # pytest collects classes named Test*

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    ports: tuple[Port, ...]
    mtu_bytes: int
    framing_bytes: int = ETHERNET_FRAMING_BYTES
    description: str = ""
    source: str = ""
    classes: tuple[TrafficClass, ...] = ()
    switch: SwitchSpec | None = None

    @classmethod
    def build(
        cls,
        name: str,
        devices: Iterable[Device],
        links: Iterable[LinkSpec],
        *,
        mtu_bytes: int,
        buffer_bytes: int,
        framing_bytes: int = ETHERNET_FRAMING_BYTES,
        description: str = "",
        source: str = "",
        classes: Iterable[TrafficClass] = (),
        switch: SwitchSpec | None = None,
    ) -> Testbed:
        """Number the ports of `links` in order and return the testbed.

        `buffer_bytes` is the buffer of one switch port. Raises ValueError for a link to a device
        that does not exist.
        """
        by_name = {device.name: device for device in devices}
        cables, ports = _with_ports(links, by_name, buffer_bytes)
        return cls(
            name=name,
            devices=tuple(by_name.values()),
            links=tuple(cables),
            ports=tuple(ports),
            mtu_bytes=mtu_bytes,
            framing_bytes=framing_bytes,
            description=description,
            source=source,
            classes=tuple(classes),
            switch=switch,
        )

    @cached_property
    def device(self) -> dict[str, Device]:
        """Devices by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts; a host's index here is its number in a schedule."""
        return tuple(device.name for device in self.devices if device.kind == "host")

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Names of the switches."""
        return tuple(device.name for device in self.devices if device.kind == "switch")

    @cached_property
    def edges(self) -> tuple[str, ...]:
        """Names of the switches that hosts are connected to, in the order of `switches`."""
        nics = (port for host in self.hosts for port in self.ports_of[host])
        connected = {self.ports[nic.peer].device for nic in nics}
        return tuple(name for name in self.switches if name in connected)

    @cached_property
    def ports_of(self) -> dict[str, tuple[Port, ...]]:
        """Ports by device, in the order of their names."""
        result: dict[str, list[Port]] = {device.name: [] for device in self.devices}
        for port in self.ports:
            result[port.device].append(port)
        return {name: tuple(ports) for name, ports in result.items()}

    @cached_property
    def switch_ports(self) -> tuple[Port, ...]:
        """Every switch port, switch by switch."""
        return tuple(port for name in self.switches for port in self.ports_of[name])

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """All queues, port by port as in `switch_ports`, and class by class at each port.

        This is the order of all per-queue arrays.
        """
        return tuple(queue for port in self.switch_ports for queue in self.queues_at(port))

    @property
    def queues_per_port(self) -> int:
        """Number of queues of a switch port."""
        return max(1, len(self.classes))

    def queues_at(self, port: Port) -> tuple[Queue, ...]:
        """Return the queues of a switch port: one per class, or one without classes.

        Each class may use a share of the port's buffer by its weight, so that all classes together
        use no more than that buffer (decision 7). If the switch has a shared buffer, each class may
        use all of it.
        """
        if not self.classes:
            return (Queue(port, buffer_bytes=port.buffer_bytes),)
        total = sum(klass.weight for klass in self.classes)
        return tuple(
            Queue(
                port,
                number,
                klass.name,
                port.buffer_bytes if self.switch else port.buffer_bytes * klass.weight // total,
            )
            for number, klass in enumerate(self.classes)
        )

    @cached_property
    def lossless_queues(self) -> tuple[Queue, ...]:
        """The queues of lossless classes, in the order of `queues`."""
        lossless = self.switch.lossless if self.switch else ()
        return tuple(queue for queue in self.queues if queue.klass in lossless)

    def class_index(self, name: str) -> int:
        """Return the index of a class in `classes`; 0, the first, for "".

        Raises ValueError for a name that the testbed does not have.
        """
        if not name:
            return 0
        names = [klass.name for klass in self.classes]
        if name not in names:
            raise ValueError(f"testbed {self.name} has no traffic class {name!r}")
        return names.index(name)

    @cached_property
    def links_by_name(self) -> dict[str, tuple[int, ...]]:
        """Indices of links by the names of their two devices, `leaf1-spine2`, in either order.

        Parallel links share a name.
        """
        result: dict[str, tuple[int, ...]] = {}
        for link in self.links:
            a, b = self.ports[link.a].device, self.ports[link.b].device
            for name in (f"{a}-{b}", f"{b}-{a}"):
                result[name] = (*result.get(name, ()), link.index)
        return result

    def peer_device(self, port: Port | Queue) -> Device:
        """Return the device at the other end of the link of a port, or of a queue's port."""
        return self.device[self.ports[port.peer].device]

    def host_rate_bps(self, host: str) -> int:
        """Return the line rate of a host in bit/s, summed over its NICs."""
        return sum(port.rate_bps for port in self.ports_of[host])

    @cached_property
    def nic_rates_bps(self) -> tuple[int, ...]:
        """The distinct line rates of the hosts' NICs in bit/s, in the order of hosts."""
        nics = (port for host in self.hosts for port in self.ports_of[host])
        return tuple(dict.fromkeys(port.rate_bps for port in nics))

    @property
    def frame_bytes(self) -> int:
        """The bytes that a full packet takes on the wire, with header and framing."""
        return self.mtu_bytes + ETHERNET_HEADER_BYTES + self.framing_bytes

    @cached_property
    def mss_bytes(self) -> int:
        """Payload bytes of a full TCP segment."""
        return self.mtu_bytes - TCP_IP_HEADER_BYTES

    def wire_bytes(self, payload_bytes: int) -> int:
        """Return the bytes that `payload_bytes` of one TCP flow take on a link, with framing."""
        packets = max(1, -(-payload_bytes // self.mss_bytes))
        overhead = TCP_IP_HEADER_BYTES + ETHERNET_HEADER_BYTES + self.framing_bytes
        return payload_bytes + packets * overhead


def _with_ports(
    specs: Iterable[LinkSpec], devices: Mapping[str, Device], buffer_bytes: int
) -> tuple[list[Link], list[Port]]:
    """Return links, and their ports in order: the ports of link n have the indices 2n and 2n + 1.

    Raises ValueError for a link to a device that does not exist.
    """
    port_count = dict.fromkeys(devices, 0)
    ports: list[Port] = []
    links: list[Link] = []
    for spec in specs:
        end_a, end_b = len(ports), len(ports) + 1
        for device_name, index, peer in ((spec.a, end_a, end_b), (spec.b, end_b, end_a)):
            if device_name not in devices:
                raise ValueError(f"link {spec.a} - {spec.b}: no device {device_name!r}")
            ports.append(
                Port(
                    index=index,
                    device=device_name,
                    name=f"eth{port_count[device_name]}",
                    peer=peer,
                    link=len(links),
                    rate_bps=spec.rate_bps,
                    delay_ns=spec.delay_ns,
                    buffer_bytes=buffer_bytes if devices[device_name].kind == "switch" else 0,
                )
            )
            port_count[device_name] += 1
        links.append(Link(len(links), end_a, end_b, spec.rate_bps, spec.delay_ns))
    return links, ports
