"""The forwarding plane of a SONiC-like switch: what its ASIC does without being asked.

Routes by shortest path, each port at its line rate, one queue for each traffic class with RED that
never marks until a WRED profile says otherwise: the queues of an emulated or provisioned switch.
Runs in the switch's namespaces.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from inventory.addressing import attachments, nic_addresses, router_addresses
from inventory.routing import next_hops
from inventory.topology import ETHERNET_HEADER_BYTES, Port
from orchestration.backends.sysctls import switch_sysctls
from orchestration.device import qdiscs
from orchestration.virtual_rack.layout import Layout

_BUCKET_SPARE_BYTES = 100


def routes(layout: Layout, device: str) -> Iterator[str]:
    """Yield the switch's address and routes, as `ip -batch` reads them."""
    testbed = layout.testbed
    routers = router_addresses(testbed)
    yield f"address replace {routers[device]}/32 dev lo"
    addresses = nic_addresses(testbed)
    hops = next_hops(testbed)[device]
    for target, number in attachments(testbed).items():
        if ports := hops.get(target):
            via = (
                f"nexthop via {routers[testbed.peer_device(p).name]} dev {layout.interface(p)} "
                "onlink"
                for p in ports
            )
            yield f"route replace 10.{number}.0.0/16 {' '.join(via)}"
        elif target != device:
            yield f"route replace blackhole 10.{number}.0.0/16"
    for port in testbed.ports_of[device]:
        if port.peer in addresses:
            yield f"route replace {addresses[port.peer]}/32 dev {layout.interface(port)}"


def sysctls(layout: Layout, device: str, seed: int = 1) -> dict[str, str]:
    """Return the switch's kernel settings by their path under /proc/sys."""
    return switch_sysctls(seed, list(layout.address).index(device))


def queues(layout: Layout, port: Port, ifindex: int) -> Iterator[bytes]:
    """Yield the netlink requests that make a port's shaper and queues."""
    testbed = layout.testbed
    frame = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    bucket = frame + _BUCKET_SPARE_BYTES
    yield qdiscs.tbf(
        ifindex,
        qdiscs.TBF_HANDLE,
        qdiscs.TC_H_ROOT,
        port.rate_bps,
        bucket,
        testbed.framing_bytes,
    )
    if testbed.classes:
        weights = [klass.weight for klass in testbed.classes]
        yield qdiscs.ets(ifindex, qdiscs.ETS_HANDLE, qdiscs.TBF_HANDLE + 1, weights, frame)
    for queue in testbed.queues_at(port):
        above = qdiscs.leaf_parent(queue.klass, testbed.queues_per_port)
        never = limit = queue.buffer_bytes
        handle = qdiscs.leaf_handle(queue.klass)
        yield qdiscs.red(ifindex, handle, above, never, never, qdiscs.ALWAYS, limit)


def set_up(layout: Layout, device: str) -> None:
    """Write the kernel settings and make the queues; the routes are `routes`."""
    from orchestration.backends.emulated.namespaces import route_socket, send_requests

    for path, value in sysctls(layout, device).items():
        Path("/proc/sys", path).write_text(value)
    requests: list[bytes] = []
    for port in layout.testbed.ports_of[device]:
        requests += queues(layout, port, socket.if_nametoindex(layout.interface(port)))
    with route_socket() as netlink:
        send_requests(netlink, requests)
