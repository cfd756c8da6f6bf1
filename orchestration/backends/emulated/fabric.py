"""Turns a `Testbed` into the netlink requests that build it as network namespaces. Pure.

Every device is a namespace, every link a veth pair. Addresses are those of `inventory.addressing`.
Routers need no addresses: every link end has a permanent neighbour entry for the gateway, with the
MAC of the other end.

    host NIC             tbf (line rate) > fq (round robin between flows)
    switch port, up      netem (delay) > tbf (line rate) > red
    switch port, down    tbf (line rate) > red
    port to a host       netem (delay) > tbf (line rate) > red

With traffic classes, `ets` (deficit weighted round robin) is between tbf and one red per class.

Propagation delay: a path up and down a Clos fabric crosses a cable of each tier twice, once up and
once down. Both delays are spent at once, before the queue of the one port that every such path
passes: the port to the host for the hosts' cables, the upward port for cables between switches. So
each path has exactly its configured delay, with one timer per packet and tier instead of two. The
host's NIC has no delay: netem would orphan the packets (`skb_orphan`), and TCP would no longer
notice when the NIC's queue is full.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from inventory.addressing import attachments, emulated_addresses
from inventory.routing import next_hops, nic_policy
from orchestration.agent.linux import qdiscs
from orchestration.backends.common.faults import fault_plan
from orchestration.backends.common.linux import (
    has_link_delays,
    host_queues,
    host_sysctls,
    switch_queues,
    switch_sysctls,
)
from orchestration.backends.emulated import link_requests
from orchestration.backends.emulated.job import (
    FIRST_NAMESPACE_FD,
    FabricPlan,
    NamespacePlan,
    Step,
    ifindex,
)
from orchestration.core.errors import InputError
from orchestration.core.parts import SwitchSpec
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Port, Testbed
from orchestration.core.trial import LINUX, FabricSpec, HostSpec, TrialSpec
from orchestration.datapath import flows as own_nics
from orchestration.datapath import ports as own_ports

MAX_ATTACHMENTS = 250
_FIRST_NIC_TABLE = 101


def mac(port: Port) -> str:
    """Return a locally administered MAC address, unique in the whole fabric."""
    return "02:00:" + ":".join(f"{octet:02x}" for octet in port.index.to_bytes(4, "big"))


def delay_before_queue_ns(testbed: Testbed, port: Port) -> int:
    """Return the propagation delay before a switch port's queue: see the module's docstring."""
    here, there = testbed.device[port.device], testbed.peer_device(port)
    if here.kind == "host" or (there.kind == "switch" and there.tier < here.tier):
        return 0
    return 2 * port.delay_ns


def check_supported(testbed: Testbed) -> None:
    """Raise InputError for a testbed that this backend cannot reproduce exactly."""
    refuse = partial(InputError.single, testbed.name)
    delays: dict[tuple[int, int], set[int]] = {}
    for link in testbed.links:
        a, b = (testbed.device[testbed.ports[end].device].tier for end in (link.a, link.b))
        delays.setdefault((min(a, b), max(a, b)), set()).add(link.delay_ns)
        if a == b:
            raise refuse(
                f"link {link.index} joins two devices of tier {a}",
                "the emulated backend needs a fabric whose links join different tiers",
            )
    for (low, high), values in delays.items():
        if len(values) > 1:
            raise refuse(
                f"links between tier {low} and {high} have different delays: {sorted(values)} ns",
                "the emulated backend needs one propagation delay per tier",
            )
    if len(attachments(testbed)) > MAX_ATTACHMENTS:
        raise refuse(
            f"more than {MAX_ATTACHMENTS} switches with hosts",
            "use a smaller testbed: addresses hold one octet for the switch",
        )


def plan_fabric(
    testbed: Testbed,
    host: HostSpec,
    seed: int,
    fabric: FabricSpec = LINUX,
    lacks: Collection[str] = (),
    late_ns: int = 0,
) -> FabricPlan:
    """Return the plan of a fabric. `seed` salts the switches' ECMP hashes: same seed, same paths.

    RED marks nothing at first, unless a buffer is full; the tuner's first action sets the
    thresholds. Parts that the kernel `lacks` are replaced or left out. The buckets of shapers are
    large enough to catch up when they wake up to `late_ns` late (`common.linux`, `host_kernel`).
    """
    check_supported(testbed)
    addresses = emulated_addresses(testbed)
    routes = plan_routes(testbed, ())
    number = {device.name: i for i, device in enumerate(testbed.devices)}
    first_queue = {
        queue.port.index: index for index, queue in enumerate(testbed.queues) if not queue.klass
    }

    def host_port(port: Port) -> list[bytes]:
        requests = [link_requests.address(ifindex(port), addresses[port.index])]
        if host.roce is not None:
            return [*requests, _own_nic(testbed, port, addresses[port.index])]
        if fabric.kind == "linux":
            queues = host_queues(testbed, port, lacks, late_ns)
            return [*requests, *qdiscs.stack(ifindex(port), queues)]
        rates = {"rate_bps": port.rate_bps, "framing_bytes": testbed.framing_bytes}
        return [*requests, own_ports.host_request(ifindex(port), **rates)]

    def switch_port(port: Port) -> list[bytes]:
        if fabric.kind == "linux":
            return _switch_port(testbed, port, lacks, late_ns)
        crossings = 2 if host.roce is None else 1
        queue = first_queue[port.index]
        return [_own_port(testbed, port, queue, seed, fabric.marks, crossings)]

    namespaces = []
    for device in testbed.devices:
        ports = testbed.ports_of[device.name]
        is_host = device.kind == "host"
        requests = []
        for port in ports:
            requests.append(link_requests.neighbour(ifindex(port), mac(testbed.ports[port.peer])))
            requests += host_port(port) if is_host else switch_port(port)
        requests += _host_routes(ports, addresses) if is_host else ()
        requests += routes.get(device.name, ())
        namespaces.append(
            NamespacePlan(
                device.name,
                host_sysctls(host, lacks) if is_host else switch_sysctls(seed, number[device.name]),
                tuple(map(link_requests.link_up, (1, *map(ifindex, ports)))),
                tuple(requests),
                tuple(port.name for port in ports),
            )
        )
    return FabricPlan(
        namespaces=tuple(namespaces),
        links=tuple(_veth(testbed, number, link.a, link.b) for link in testbed.links),
        host_addresses={
            name: tuple(addresses[port.index] for port in testbed.ports_of[name])
            for name in testbed.hosts
        },
        queue_locations=tuple((number[q.device], ifindex(q.port)) for q in testbed.queues),
        facts={
            "sysctls": {"host": host_sysctls(host, lacks), "switch": switch_sysctls(seed, 0)},
            "qdiscs": {
                "host": _describe_host_queues(host, fabric, lacks),
                **_describe_switch_queues(testbed, fabric, lacks),
            },
        },
        policy=nic_policy(testbed, host),
    )


def _describe_host_queues(host: HostSpec, fabric: FabricSpec, lacks: Collection[str]) -> str:
    if host.roce is not None:
        return own_nics.KIND
    if fabric.kind != "linux":
        return own_ports.HOST_KIND
    return "tbf > bfifo" if "fq" in lacks else "tbf > fq"


def _describe_switch_queues(
    testbed: Testbed, fabric: FabricSpec, lacks: Collection[str]
) -> dict[str, str]:
    if fabric.kind != "linux":
        text = f"{own_ports.KIND}, marks {fabric.marks}"
        return dict.fromkeys(("switch_up", "switch_down", "switch_to_host"), text)
    leaf = "ets > red per class" if testbed.classes else "red"
    if "red" in lacks:
        leaf = "bfifo, marked by a BPF program"
    delay = "netem > " if has_link_delays(lacks) else ""
    return {
        "switch_up": f"{delay}tbf > {leaf}",
        "switch_down": f"tbf > {leaf}",
        "switch_to_host": f"{delay}tbf > {leaf}",
    }


def plan_routes(testbed: Testbed, down_links: Collection[int]) -> dict[str, tuple[bytes, ...]]:
    """Return the requests for each switch's routes over the links that are up.

    A request replaces the switch's former route to the same destination.
    """
    numbers = attachments(testbed)
    addresses = emulated_addresses(testbed)
    hops = next_hops(testbed, down_links)
    result: dict[str, tuple[bytes, ...]] = {}
    route = partial(link_requests.route, replace=True)
    for name in testbed.switches:
        requests = []
        for target, number in numbers.items():
            ports = hops[name].get(target)
            if ports:
                requests.append(route(f"10.{number}.0.0", 16, [*map(ifindex, ports)]))
            elif target != name:
                requests.append(link_requests.unreachable(f"10.{number}.0.0", 16))
        for port in testbed.ports_of[name]:
            if port.peer in addresses:
                requests.append(route(addresses[port.peer], 32, [ifindex(port)]))
        result[name] = tuple(requests)
    return result


def _host_routes(ports: tuple[Port, ...], addresses: dict[int, str]) -> list[bytes]:
    """Route through the first NIC by default; with several NICs, by source address."""
    default = partial(link_requests.route, "0.0.0.0", 0, replace=False)
    requests = [default([ifindex(ports[0])])]
    if len(ports) > 1:
        for table, port in enumerate(ports, start=_FIRST_NIC_TABLE):
            requests.append(default([ifindex(port)], table=table))
            requests.append(link_requests.rule(addresses[port.index], table))
    return requests


def _switch_port(testbed: Testbed, port: Port, lacks: Collection[str], late_ns: int) -> list[bytes]:
    index, parent, requests = ifindex(port), qdiscs.TC_H_ROOT, []
    delay_ns = delay_before_queue_ns(testbed, port)
    if delay_ns and has_link_delays(lacks):
        requests.append(qdiscs.netem(index, qdiscs.NETEM_HANDLE, parent, delay_ns))
        parent = qdiscs.NETEM_HANDLE + 1
    queues = switch_queues(testbed, port, lacks=lacks, late_ns=late_ns)
    return [*requests, *qdiscs.stack(index, queues, parent)]


def _own_nic(testbed: Testbed, port: Port, address: str) -> bytes:
    return own_nics.nic_request(
        ifindex(port),
        address,
        rate_bps=port.rate_bps,
        delay_ns=port.delay_ns,
        framing_bytes=testbed.framing_bytes,
    )


def marking_seed(seed: int, port: Port) -> int:
    """Return the seed of the stream from which a port's marks are drawn."""
    return (seed * 0x2545F4914F6CDD1D + port.index * 0x9E3779B97F4A7C15) % 2**64


def quantum_bytes(testbed: Testbed) -> list[int]:
    """Return what each class may send in a round, scaled as in `qdiscs.ets`.

    The smallest is at least a full frame.
    """
    frame_bytes = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    weights = [klass.weight for klass in testbed.classes] or [1]
    scale = -(-frame_bytes // min(weights))
    return [scale * weight for weight in weights]


def pool_bytes(testbed: Testbed, spec: SwitchSpec, switch: str) -> int:
    """Return what the ports of a switch share: its buffer without the headroom of all of them."""
    ports = [(port.rate_bps, port.delay_ns) for port in testbed.ports_of[switch]]
    return spec.buffer_bytes - spec.reserved_bytes(ports, testbed.frame_bytes)


def _own_port(
    testbed: Testbed, port: Port, first_queue: int, seed: int, marks: str, host_cable_crossings: int
) -> bytes:
    """Return the request for a port of closloop's data path.

    The delay of its cable is behind its queue, on every cable. The NIC of a TCP host has no delay,
    so a port to such a host delays packets for both directions: `host_cable_crossings` is then 2.
    """
    quanta = quantum_bytes(testbed)
    queues = [
        own_ports.QueueOptions(queue.buffer_bytes, quantum)
        for queue, quantum in zip(testbed.queues_at(port), quanta, strict=True)
    ]
    to_host = testbed.peer_device(port).kind == "host"
    buffer = None
    if testbed.switch:
        buffer = own_ports.BufferOptions(
            testbed.switch,
            testbed.switches.index(port.device),
            pool_bytes(testbed, testbed.switch, port.device),
            testbed.switch.port_headroom_bytes(port.rate_bps, port.delay_ns, testbed.frame_bytes),
        )
    return own_ports.port_request(
        ifindex(port),
        queues,
        rate_bps=port.rate_bps,
        delay_ns=port.delay_ns * (host_cable_crossings if to_host else 1),
        framing_bytes=testbed.framing_bytes,
        first_queue=first_queue,
        seed=marking_seed(seed, port),
        marks_departures=marks == "departures",
        buffer=buffer,
    )


def _veth(testbed: Testbed, number: dict[str, int], a: int, b: int) -> bytes:
    def end(port: Port) -> link_requests.End:
        fd = FIRST_NAMESPACE_FD + number[port.device]
        return link_requests.End(ifindex(port), port.name, mac(port), fd, testbed.mtu_bytes)

    return link_requests.veth(end(testbed.ports[a]), end(testbed.ports[b]))


def fault_steps(trial: TrialSpec, testbed: Testbed, plan: FabricPlan) -> tuple[Step, ...]:
    """Return the trial's faults as requests. A cut cable drops what arrives at both its ends."""
    number = {namespace.name: index for index, namespace in enumerate(plan.namespaces)}
    steps = []
    cut: frozenset[int] = frozenset()
    with_clsact: set[int] = set()
    for fault in fault_plan(trial, testbed):
        requests: dict[int, list[bytes]] = {}
        if fault.kind == "routes":
            for name, routes in plan_routes(testbed, fault.down).items():
                requests[number[name]] = list(routes)
        else:
            for index in sorted(cut ^ fault.down):
                link = testbed.links[index]
                for end in (link.a, link.b):
                    port = testbed.ports[end]
                    batch = requests.setdefault(number[port.device], [])
                    if end not in with_clsact:
                        with_clsact.add(end)
                        batch.append(qdiscs.clsact(ifindex(port)))
                    change = qdiscs.drop_arrivals if index in fault.down else qdiscs.accept_arrivals
                    batch.append(change(ifindex(port)))
            cut = fault.down
        batches = tuple((number, tuple(batch)) for number, batch in requests.items() if batch)
        down = tuple(sorted(fault.down)) if fault.kind == "links" else None
        steps.append(Step(fault.t_ns, fault.kind, fault.detail, batches, down))
    return tuple(steps)
