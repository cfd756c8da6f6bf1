"""Commands that set up a rack's cables and ports. All functions but `set_up_switch` are pure.

A cable is a pair of Linux veth interfaces. Its propagation delay is added where packets arrive: an
ingress filter redirects them to an `ifb` interface with a netem queue, here called a delay line.

A SONiC-like switch also gets what a switch's ASIC does by default. It routes by shortest path. Each
port has its line rate and a queue per traffic class, the same queues as on an emulated or
provisioned switch. Their RED marks nothing until a WRED profile is set.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from inventory.addressing import rack_addresses
from inventory.routing import next_hops
from orchestration.agent.linux import qdiscs
from orchestration.backends.common.linux import switch_queues, switch_sysctls
from orchestration.backends.emulated.system import run_batch
from orchestration.core.topology import Port
from orchestration.virtual_rack.layout import CONTROLLER_ADDRESS, Layout

# The name of the controller's end of a management cable; {} is the device's number.
_CONTROLLER_END = "rack{}"
# The name of the unused end of a cable, where an interface of the machine takes the port's place;
# {} is the link's number.
_STUB_END = "cut{}"


def mac_address(port: Port) -> str:
    """Return a locally administered MAC address, unique in the rack."""
    return "02:00:" + ":".join(f"{octet:02x}" for octet in port.index.to_bytes(4, "big"))


def links(layout: Layout, pids: Mapping[str, int]) -> Iterator[str]:
    """Yield the `ip -batch` lines that create all cables.

    `pids` are the process ids of the devices' first processes, by device.
    """
    testbed = layout.testbed

    def end(port: Port) -> str:
        return (
            f"name {layout.interface(port)} address {mac_address(port)} mtu {testbed.mtu_bytes} "
            f"netns {pids[port.device]}"
        )

    for number, link in enumerate(testbed.links):
        ends_in_rack = [
            port
            for port in map(testbed.ports.__getitem__, (link.a, link.b))
            if not layout.is_leased(port)
        ]
        if len(ends_in_rack) == 1:  # the other end is connected to nothing: no carrier
            yield f"link add name {_STUB_END.format(number)} type veth peer {end(ends_in_rack[0])}"
        elif ends_in_rack:
            yield f"link add {end(ends_in_rack[0])} type veth peer {end(ends_in_rack[1])}"
    for number, (device, address) in enumerate(layout.address.items()):
        near, far = _CONTROLLER_END.format(number), layout.management_interface(device)
        yield f"link add name {near} type veth peer name {far} netns {pids[device]}"
        yield f"link set {near} up"
        yield f"route add {address}/32 dev {near} src {CONTROLLER_ADDRESS}"


def management_port(layout: Layout, device: str) -> Iterator[str]:
    """Yield the `ip -batch` lines that connect or reconnect a device's management port."""
    interface, address = layout.management_interface(device), layout.address[device]
    yield f"address replace {address}/32 dev {interface}"
    yield f"link set {interface} up"
    yield f"route replace {CONTROLLER_ADDRESS}/32 dev {interface} src {address}"


def delay_lines(layout: Layout, device: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return a device's delay lines: name -> (delay in ns, ports whose packets it delays).

    Ports with the same delay share one.
    """
    ports: dict[int, list[str]] = {}
    for port in layout.testbed.ports_of[device]:
        if delay_ns := layout.delay_on_arrival_ns(port):
            ports.setdefault(delay_ns, []).append(layout.interface(port))
    return {f"ifb{n}": (ns, tuple(ports[ns])) for n, ns in enumerate(sorted(ports))}


def ports_up(layout: Layout, device: str) -> Iterator[str]:
    """Yield the `ip -batch` lines that create a device's delay lines and bring its ports up."""
    yield "link set lo up"
    for line in delay_lines(layout, device):
        yield f"link add {line} type ifb"
        yield f"link set {line} up"
    for port in layout.testbed.ports_of[device]:
        mtu = f"mtu {layout.testbed.mtu_bytes} " if layout.is_leased(port) else ""
        yield f"link set {layout.interface(port)} {mtu}up"


def delay_redirects(layout: Layout, device: str) -> Iterator[str]:
    """Yield the `tc -batch` lines that redirect arriving packets through the delay lines."""
    for line, (_, ports) in delay_lines(layout, device).items():
        for port in ports:
            yield f"qdisc add dev {port} clsact"
            yield (
                f"filter add dev {port} ingress matchall action mirred egress redirect dev {line}"
            )


def rdma(layout: Layout, device: str) -> Iterator[list[str]]:
    """Yield the commands that create a RoCE host's RDMA devices, one for each NIC."""
    ports = layout.testbed.ports_of[device]
    for name, port in zip(layout.rdma_devices(device), ports, strict=False):
        yield ["rdma", "link", "add", name, "type", "rxe", "netdev", layout.interface(port)]


def routes(layout: Layout, device: str) -> Iterator[str]:
    """Yield the `ip -batch` lines for a switch's address and routes, ECMP included."""
    testbed = layout.testbed
    addresses = rack_addresses(testbed)
    yield f"address replace {addresses.routers[device]}/32 dev lo"
    hops = next_hops(testbed)[device]
    for target, block in addresses.blocks.items():
        if ports := hops.get(target):
            via = (
                f"nexthop via {addresses.routers[testbed.peer_device(p).name]} "
                f"dev {layout.interface(p)} onlink"
                for p in ports
            )
            yield f"route replace {block} {' '.join(via)}"
        elif target != device:
            yield f"route replace blackhole {block}"
    for port in testbed.ports_of[device]:
        if port.peer in addresses.nics:
            yield f"route replace {addresses.nics[port.peer]}/32 dev {layout.interface(port)}"


def queues(layout: Layout, port: Port, ifindex: int) -> Iterator[bytes]:
    """Yield the netlink requests that create a port's shaper and queues."""
    yield from qdiscs.stack(ifindex, switch_queues(layout.testbed, port))


def set_up_switch(layout: Layout, device: str) -> None:
    """Write sysctls, create queues and add routes. It must be called in the switch's namespaces."""
    from orchestration.backends.emulated.namespaces import route_socket, send_requests

    for path, value in switch_sysctls(1, list(layout.address).index(device)).items():
        Path("/proc/sys", path).write_text(value)
    requests: list[bytes] = []
    for port in layout.testbed.ports_of[device]:
        requests += queues(layout, port, socket.if_nametoindex(layout.interface(port)))
    with route_socket() as netlink:
        send_requests(netlink, requests)
    run_batch("ip", routes(layout, device))
