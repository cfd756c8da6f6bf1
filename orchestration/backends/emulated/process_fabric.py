"""Turns a `Testbed` and a schedule into the arrays of the packet engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from typing import Any

import numpy as np

from inventory.addressing import emulated_addresses
from orchestration.backends.common.linux import ecmp_seed
from orchestration.backends.emulated.fabric import marking_seed, pool_bytes, quantum_bytes
from orchestration.core.congestion import NicPolicy
from orchestration.core.parts import WATCHDOG_ACTIONS, SwitchSpec
from orchestration.core.records import Ints, Schedule
from orchestration.core.roce import CNP_INTERVAL, RoceSpec, udp_source
from orchestration.core.topology import Testbed
from orchestration.datapath.library import EngineLibrary
from orchestration.datapath.packet_engine import FabricArrays

_ALPHA_UNIT = 1 << 16
_NS_PER_US = 1000


def fabric_arrays(
    testbed: Testbed, seed: int, library: EngineLibrary, *, marks_departures: bool = False
) -> FabricArrays:
    """Return a testbed as arrays. `seed` is that of the paths of flows and of marks."""
    number = {device.name: index for index, device in enumerate(testbed.devices)}
    switch_number = {name: index for index, name in enumerate(testbed.switches)}
    devices = np.zeros(len(testbed.devices), dtype=library.dtype("cl_device"))
    for index, device in enumerate(testbed.devices):
        if device.kind == "switch":
            pool = pool_bytes(testbed, testbed.switch, device.name) if testbed.switch else 0
            seed_of_hash = ecmp_seed(seed, index)
            devices[index] = (1, seed_of_hash, pool, switch_number[device.name])
    addresses = {
        index: int(IPv4Address(word)) for index, word in emulated_addresses(testbed).items()
    }
    per_port = testbed.queues_per_port
    first_queue = {
        port.index: before * per_port for before, port in enumerate(testbed.switch_ports)
    }
    ports = np.zeros(len(testbed.ports), dtype=library.dtype("cl_port"))
    for port in testbed.ports:
        headroom = 0
        if testbed.switch and testbed.switch.lossless:
            of_port = port.rate_bps, port.delay_ns, testbed.frame_bytes
            headroom = testbed.switch.port_headroom_bytes(*of_port)
        ports[port.index] = (
            port.rate_bps,
            port.delay_ns,
            marking_seed(seed, port),
            number[port.device],
            port.peer,
            first_queue.get(port.index, 0),
            headroom,
            addresses.get(port.index, 0),
            0,
        )
    limits = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.uint32)
    settings = {
        "classes": per_port,
        "framing_bytes": testbed.framing_bytes,
        "marks_departures": int(marks_departures),
        "quantum_bytes": quantum_bytes(testbed),
        **(_buffer_settings(testbed.switch) if testbed.switch else {}),
    }
    return FabricArrays(settings, devices, ports, limits)


def _buffer_settings(spec: SwitchSpec) -> dict[str, Any]:
    return {
        "shared_buffer": 1,
        "detect_ns": spec.detect_ns if spec.lossless else 0,
        "restore_ns": spec.restore_ns,
        "xoff_bytes": spec.xoff_bytes,
        "xon_offset_bytes": spec.xon_offset_bytes,
        "quanta": spec.quanta,
        "lossless": sum(1 << klass for klass in spec.lossless),
        "action": WATCHDOG_ACTIONS.index(spec.action),
        "alpha": [round(alpha * _ALPHA_UNIT) for alpha in spec.alpha],
        "priority": list(spec.priorities),
    }


def nic_settings(spec: RoceSpec, policy: NicPolicy) -> Mapping[str, Any]:
    """Return the fields of struct cl_nics: what is the same for all NICs."""
    return {
        "cnp_interval_ns": spec.parameters[CNP_INTERVAL] * _NS_PER_US,
        "timeout_ns": spec.timeout_ns,
        "payload_bytes": spec.payload_bytes,
        "ack_every": spec.ack_every,
        "window_bytes": spec.window_bytes,
        "parameters": list(policy.numbers),
    }


def flow_array(
    testbed: Testbed,
    schedule: Schedule,
    classes: Sequence[int],
    library: EngineLibrary,
    *,
    ecn_capable: bool,
) -> tuple[np.ndarray, Ints]:
    """Return a schedule's flows, struct cl_flow, and the number of each in the schedule.

    They are ordered by their starts, and of equal starts as in the schedule. `classes` has the
    traffic class of each pattern. Flows of a host with several NICs take these in turn.
    """
    order = np.argsort(schedule.start_ns, kind="stable")
    flows = np.zeros(len(schedule), dtype=library.dtype("cl_flow"))
    flows["start_ns"] = schedule.start_ns[order]
    flows["bytes"] = schedule.size_bytes[order]
    nics = [[port.index for port in testbed.ports_of[host]] for host in testbed.hosts]
    counts = np.array([len(of) for of in nics])
    table = np.array([[of[i % len(of)] for i in range(counts.max())] for of in nics])
    for name, hosts in (("src_port", schedule.src[order]), ("dst_port", schedule.dst[order])):
        flows[name] = table[hosts, order % counts[hosts]]
    flows["udp_source"] = udp_source(order)
    flows["klass"] = np.array(classes, dtype=np.uint8)[schedule.klass[order]]
    flows["is_ecn_capable"] = ecn_capable
    return flows, order
