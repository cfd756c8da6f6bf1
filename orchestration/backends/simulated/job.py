"""Encodes a trial as the arrays that the ns-3 program builds it from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from ipaddress import IPv4Address

import numpy as np

from inventory.addressing import attachments, emulated_addresses
from inventory.routing import base_rtt_ns, next_hops, window_bytes
from orchestration.backends.common.linux import TSQ_LIMIT_BYTES, bucket_bytes, switch_sysctls
from orchestration.backends.simulated.program import policy_names
from orchestration.core.congestion import roce_controls
from orchestration.core.errors import InputError, NotReadyError, TrialError
from orchestration.core.load_balancing import KINDS, ROUTES, LoadBalancingSpec
from orchestration.core.parts import WATCHDOG_ACTIONS
from orchestration.core.records import Ints, Schedule
from orchestration.core.roce import CNP_INTERVAL, DECISIONS, UDP_PORT, udp_source
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Port, Testbed
from orchestration.core.trial import TrialSpec
from traffic.drivers.connections import Endpoints, connected, services

# Numbered as in `ns3/traffic.h`.
CONGESTION_CONTROLS = {"dctcp": 0, "reno": 1, "cubic": 2}
# An address has one octet for the switch.
MAX_ATTACHMENTS = 250
# As on emulated hosts: the defaults of tcp_wmem and tcp_rmem.
SEND_BUFFER_BYTES, RECEIVE_BUFFER_BYTES = 8_388_608, 16_777_216
# The program takes alphas in units of 1/65536.
_ALPHA_UNIT = 1 << 16
_Hops = Mapping[str, Mapping[str, tuple[Port, ...]]]


def check_supported(testbed: Testbed) -> None:
    """Raise InputError or NotReadyError for a testbed that this backend cannot reproduce."""
    count = len(attachments(testbed))
    if count > MAX_ATTACHMENTS:
        raise InputError.single(
            testbed.name,
            f"{count} switches have hosts, more than {MAX_ATTACHMENTS}",
            "use a smaller testbed: addresses hold one octet for the switch",
        )
    for klass in testbed.classes:
        known = (*CONGESTION_CONTROLS, *roce_controls())
        if klass.congestion_control and klass.congestion_control not in known:
            raise NotReadyError(
                f"traffic class {klass.name!r} of testbed {testbed.name} has the congestion "
                f"control {klass.congestion_control!r}, which the simulated backend lacks",
                f"use the emulated backend, or one of {', '.join(CONGESTION_CONTROLS)}",
            )


def build_arrays(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, *, observes_flows: bool
) -> list[Ints]:
    """Return the arrays of a BUILD request, in the order in which the program reads them.

    `ns3/fabric.h` reads them for TCP, `ns3/roce_fabric.h` for RoCE. Raises TrialError for a
    congestion control that ns-3 lacks, and for more flows than a host has TCP ports.
    """
    scalars = [
        trial.seed & 0x7FFFFFFFFFFFFFFF,
        testbed.mtu_bytes,
        testbed.framing_bytes,
        bucket_bytes(testbed),
        trial.host.min_rto_ns,
        TSQ_LIMIT_BYTES,
        SEND_BUFFER_BYTES,
        RECEIVE_BUFFER_BYTES,
        int(observes_flows),
        int(trial.host.roce is not None),
        *_roce_scalars(trial, testbed),
    ]
    number = {device.name: i for i, device in enumerate(testbed.devices)}
    addresses = {port: int(IPv4Address(text)) for port, text in emulated_addresses(testbed).items()}
    return [
        _ints(scalars),
        _ints([int(device.kind == "switch") for device in testbed.devices]),
        _ints([hash_seed(trial.seed, number) for number in range(len(testbed.devices))]),
        *map(_ints, _path_rules(trial.load_balancing, testbed)),
        _ints([number[port.device] for port in testbed.ports]),
        _ints([port.peer for port in testbed.ports]),
        _ints([port.rate_bps for port in testbed.ports]),
        _ints([port.delay_ns for port in testbed.ports]),
        _ints([addresses.get(port.index, 0) for port in testbed.ports]),
        _ints([queue.index for queue in testbed.queues]),
        _ints([queue.buffer_bytes for queue in testbed.queues]),
        _ints(_quanta(testbed)),
        route_rows(testbed, ()),
        _ints(_partner_rows(trial.load_balancing, testbed)),
        *_flow_arrays(trial, testbed, schedule),
        *(_buffer_arrays(testbed) if trial.host.roce else ()),
    ]


def route_rows(testbed: Testbed, down_links: Collection[int]) -> Ints:
    """Return the next hops of every switch over the links that are up.

    For each switch and each switch with hosts (`target`, by its number among those) there are the
    switch's number, the target's number, the number of ports, and the ports.
    """
    number = {device.name: i for i, device in enumerate(testbed.devices)}
    hops = next_hops(testbed, down_links)
    rows: list[int] = []
    for name in testbed.switches:
        for target, target_number in attachments(testbed).items():
            ports = hops[name].get(target, ())
            rows += [number[name], target_number, len(ports), *(port.index for port in ports)]
    return _ints(rows)


def cut_ports(testbed: Testbed, down_links: Collection[int]) -> Ints:
    """Return the ports at both ends of these links."""
    links = [testbed.links[index] for index in sorted(down_links)]
    return _ints([end for link in links for end in (link.a, link.b)])


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def hash_seed(seed: int, number: int) -> int:
    """Return the seed of the ECMP hash of device `number`, the same as in the emulated fabric."""
    return int(switch_sysctls(seed, number)["net/ipv4/fib_multipath_hash_seed"])


def _quanta(testbed: Testbed) -> list[int]:
    """Return each class's quantum in bytes: the smallest is a frame, as in the emulated fabric."""
    weights = [klass.weight for klass in testbed.classes]
    frame_bytes = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    return [-(-frame_bytes // min(weights)) * weight for weight in weights]


def _roce_scalars(trial: TrialSpec, testbed: Testbed) -> list[int]:
    """Return the settings of RoCE NICs and of the switches' ports; none for TCP."""
    spec = trial.host.roce
    if spec is None:
        return []
    policy = spec.policy(partial(base_rtt_ns, testbed))
    return [
        int(trial.fabric.marks == "departures"),
        # a user's own policy replaces whichever is named here
        0 if spec.program else policy_names().index(spec.control),
        spec.payload_bytes,
        spec.ack_every,
        window_bytes(testbed, spec),
        spec.parameters[CNP_INTERVAL] * 1000,
        spec.timeout_ns,
        int(policy.answers_marks),
        int(spec.recovery == "selective-repeat"),
        spec.rtt_probe_interval_ns,
        spec.decision_latency_ns,
        DECISIONS.index(spec.decisions),
        *policy.numbers,
    ]


def _buffer_arrays(testbed: Testbed) -> list[Ints]:
    """Return the switches' shared buffers: by class, by device and by port; empty without them."""
    spec = testbed.switch
    if spec is None:
        return [_ints([])] * 6
    port_headroom = {
        port.index: spec.port_headroom_bytes(port.rate_bps, port.delay_ns, testbed.frame_bytes)
        for port in testbed.switch_ports
    }
    headroom = {
        name: len(spec.lossless) * sum(port_headroom[port.index] for port in testbed.ports_of[name])
        for name in testbed.switches
    }
    pools = {name: spec.buffer_bytes - reserved for name, reserved in headroom.items()}
    detect_ns = spec.detect_ns if spec.lossless else 0
    watchdog = [detect_ns, spec.restore_ns, WATCHDOG_ACTIONS.index(spec.action)]
    return [
        _ints([spec.xoff_bytes, spec.xon_offset_bytes, spec.quanta, *watchdog]),
        _ints([round(alpha * _ALPHA_UNIT) for alpha in spec.alpha]),
        _ints([int(klass in spec.lossless) for klass in range(len(spec.alpha))]),
        _ints(list(spec.priorities)),
        _ints([pools.get(device.name, 0) for device in testbed.devices]),
        _ints([port_headroom.get(port.index, 0) for port in testbed.ports]),
    ]


def _flow_arrays(trial: TrialSpec, testbed: Testbed, schedule: Schedule) -> list[Ints]:
    """Return the flows: starts, sizes, hosts, addresses and ports of both ends, and controls."""
    addresses = emulated_addresses(testbed)
    ends = Endpoints(
        [[addresses[port.index] for port in testbed.ports_of[name]] for name in testbed.hosts]
    )
    if trial.host.roce is not None:
        return _roce_flow_arrays(trial, testbed, schedule, ends)
    try:
        flows = connected(schedule, ends, services(testbed, trial.traffic))
    except OSError as error:
        raise TrialError(str(error), "make duration shorter, or the load lower") from error
    controls = [
        service.congestion_control or trial.host.congestion_control for service in flows.service
    ]
    for control in controls:
        if control not in CONGESTION_CONTROLS:
            raise TrialError(
                f"the simulated backend has no {control!r}",
                f"use the emulated backend, or one of {', '.join(CONGESTION_CONTROLS)}",
            )
    packed = {text: int(IPv4Address(text)) for text in addresses.values()}
    return [
        _ints(flows.start_ns),
        _ints(flows.size_bytes),
        _ints(flows.src),
        _ints(flows.dst),
        _ints([packed[address] for address, _ in flows.near]),
        _ints([port for _, port in flows.near]),
        _ints([packed[address] for address, _ in flows.far]),
        _ints([port for _, port in flows.far]),
        _ints([CONGESTION_CONTROLS[control] for control in controls]),
    ]


def _roce_flow_arrays(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: Endpoints
) -> list[Ints]:
    """Return the flows as RoCE queue pairs, with the same five-tuples as on the emulated NICs."""
    numbers = np.array(
        [testbed.class_index(spec.queue_class) if testbed.classes else 0 for spec in trial.traffic],
        dtype=np.int64,
    )
    packed = [[int(IPv4Address(text)) for text in own] for own in ends.addresses]
    flows = np.arange(len(schedule))
    near, far = (
        _ints([packed[host][flow % len(packed[host])] for flow, host in enumerate(column.tolist())])
        for column in (schedule.src, schedule.dst)
    )
    return [
        schedule.start_ns,
        schedule.size_bytes,
        schedule.src,
        schedule.dst,
        near,
        udp_source(flows),
        far,
        np.full(len(schedule), UDP_PORT),
        numbers[schedule.klass],
    ]


def _path_rules(spec: LoadBalancingSpec, testbed: Testbed) -> list[list[int]]:
    """Return how switches choose paths, and each device's flowlet timeout and tier.

    Kinds and routes are numbered as in `ns3/balancing.h`.
    """
    return [
        [
            KINDS.index(spec.kind),
            ROUTES.index(spec.route_by),
            spec.entries,
            spec.dre_time_ns,
            spec.metric_age_ns,
        ],
        [
            spec.timeout_ns(device.tier) if device.kind == "switch" else 0
            for device in testbed.devices
        ],
        [device.tier for device in testbed.devices],
    ]


def _partner_rows(spec: LoadBalancingSpec, testbed: Testbed) -> list[int]:
    """Return, for CONGA, with which switch each switch that chooses paths exchanges metrics.

    The rows are switch, target, partner. The partner is the next switch of the same tier on the
    path to the leaf with the number `target`: for a leaf that leaf itself, for an aggregation
    switch the one below the same core switches.
    """
    if spec.kind == "ecmp" or spec.route_by != "conga":
        return []
    hops = next_hops(testbed)
    number = {device.name: i for i, device in enumerate(testbed.devices)}
    rows = []
    for name in testbed.switches:
        for target, target_number in attachments(testbed).items():
            if len(hops[name].get(target, ())) > 1 and (
                partner := _partner(testbed, hops, name, target)
            ):
                rows += [number[name], target_number, number[partner]]
    return rows


def _partner(testbed: Testbed, hops: _Hops, name: str, target: str) -> str:
    """Return the next switch of the same tier on a switch's path to `target`, "" without one."""
    here, tier = name, testbed.device[name].tier
    while here != target:
        here = testbed.peer_device(hops[here][target][0]).name
        if testbed.device[here].tier == tier:
            return here
    return ""
