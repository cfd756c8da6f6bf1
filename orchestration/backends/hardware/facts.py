"""Facts about a rack for a trial's record and stamp: kernels, clocks, latencies, signal sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inventory.rack import Rack
from orchestration.backends.hardware.rig import HardwareRig
from orchestration.backends.hardware.switches import Switch
from orchestration.device.client import Clock, Fleet


def expected_settings(switches: Sequence[Switch]) -> dict[str, Any]:
    """Return, by device, the thresholds expected in switches that cannot read them back."""
    expected = {switch.device: switch.expected() for switch in switches}
    return {device: dict(values) for device, values in expected.items() if values is not None}


def rack_facts(
    rack: Rack,
    fleet: Fleet,
    clocks: Mapping[str, Clock],
    rig: HardwareRig,
    switches: Sequence[Switch],
) -> dict[str, Any]:
    """Return facts about a trial's devices and readings, for its record."""
    interfaces = {
        device: list(access.interfaces) for device, access in rack.access.items() if access.is_linux
    }
    requests = {device: {"interfaces": names} for device, names in interfaces.items()}
    offloads = fleet.ask("offloads.read", requests)
    return {
        "clock": "real",
        "rack": rack.name,
        "kernel": {device: agent.about.get("kernel") for device, agent in fleet.agents.items()},
        "offloads_on": [f"{device} {name}" for device, names in offloads.items() for name in names],
        "offloads_checked": sum(len(names) for names in interfaces.values()),
        "end_ns": rig.now_ns() // rack.scale,
        **({"scale": rack.scale} if rack.scale > 1 else {}),
        "clock_error_ns": {device: clock.error_ns for device, clock in clocks.items()},
        "read_latency_us": _distribution_us(rig.read_latency_ns),
        "set_latency_us": _distribution_us(rig.set_latency_ns),
        "sources": {switch.device: dict(switch.sources()) for switch in switches},
    }


def _distribution_us(latencies_ns: Sequence[int]) -> dict[str, float]:
    """Return the distribution of latencies: the count, and quantiles in microseconds."""
    if not latencies_ns:
        return {"count": 0}
    us = np.array(latencies_ns) / 1e3
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    values = {name: round(float(np.quantile(us, q)), 1) for name, q in quantiles.items()}
    return {"count": len(us), **values}


def source_findings(switches: Sequence[Switch], sample_period_ns: int) -> list[dict[str, str]]:
    """Return findings on signals that a switch lacks, or updates more rarely than it is sampled."""
    devices: dict[str, list[str]] = {}
    for switch in switches:
        for text in switch.shortcomings(sample_period_ns):
            devices.setdefault(text, []).append(switch.device)
    return [
        {"code": "sources", "severity": "warning", "text": f"{', '.join(names)}: {text}"}
        for text, names in devices.items()
    ]
