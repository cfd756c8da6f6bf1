"""A rack's cables, as commands for iproute2: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inventory.topology import Port
from orchestration.virtual_rack.layout import CONTROLLER_ADDRESS, Layout

# What a management port is called at the controller's end: by the device's number.
_CONTROLLER_END = "rack{}"
# Out of the way: a cable holds what is on it.
NETEM_LIMIT = 10_000_000


def mac(port: Port) -> str:
    """A locally administered MAC address, unique in the whole rack."""
    return "02:00:" + ":".join(f"{octet:02x}" for octet in port.index.to_bytes(4, "big"))


def links(layout: Layout, pids: Mapping[str, int]) -> Iterator[str]:
    """Yield the `ip -batch` lines that lay all cables; `pids` are the devices' first processes."""
    testbed = layout.testbed

    def end(port: Port) -> str:
        return (
            f"name {layout.interface(port)} address {mac(port)} mtu {testbed.mtu_bytes} "
            f"netns {pids[port.device]}"
        )

    for link in testbed.links:
        a, b = testbed.ports[link.a], testbed.ports[link.b]
        yield f"link add {end(a)} type veth peer {end(b)}"
    for number, (device, address) in enumerate(layout.address.items()):
        near, far = _CONTROLLER_END.format(number), layout.management_interface(device)
        yield f"link add name {near} type veth peer name {far} netns {pids[device]}"
        yield f"link set {near} up"
        yield f"route add {address}/32 dev {near} src {CONTROLLER_ADDRESS}"


def management(layout: Layout, device: str) -> Iterator[str]:
    """Yield the lines that connect a device's management port, or do so again."""
    interface, address = layout.management_interface(device), layout.address[device]
    yield f"address replace {address}/32 dev {interface}"
    yield f"link set {interface} up"
    yield f"route replace {CONTROLLER_ADDRESS}/32 dev {interface} src {address}"


def delays(layout: Layout, device: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return the delay lines of a device: interface, delay in ns, ports whose arrivals pass it."""
    ports: dict[int, list[str]] = {}
    for port in layout.testbed.ports_of[device]:
        if delay_ns := layout.delay_on_arrival_ns(port):
            ports.setdefault(delay_ns, []).append(layout.interface(port))
    return {f"ifb{n}": (ns, tuple(ports[ns])) for n, ns in enumerate(sorted(ports))}


def ports_up(layout: Layout, device: str) -> Iterator[str]:
    """Yield the `ip -batch` lines that bring a device's ports up, and its delay lines."""
    yield "link set lo up"
    for line in delays(layout, device):
        yield f"link add {line} type ifb"
        yield f"link set {line} up"
    for port in layout.testbed.ports_of[device]:
        yield f"link set {layout.interface(port)} up"


def arrivals(layout: Layout, device: str) -> Iterator[str]:
    """Yield the `tc -batch` lines that lead what arrives through the delay lines."""
    for line, (_, ports) in delays(layout, device).items():
        for port in ports:
            yield f"qdisc add dev {port} clsact"
            yield (
                f"filter add dev {port} ingress matchall action mirred egress redirect dev {line}"
            )


def rdma(layout: Layout, device: str) -> Iterator[list[str]]:
    """Yield the command that makes a RoCE host's RDMA device, on its first NIC."""
    if device in layout.roce:
        name, port = layout.rdma_device(device), layout.testbed.ports_of[device][0]
        yield ["rdma", "link", "add", name, "type", "rxe", "netdev", layout.interface(port)]
