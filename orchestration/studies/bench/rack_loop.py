"""Measures reading, setting and leases over SSH; runs as the controller of a real-time rack.

Prints one line of JSON. Started by `orchestration.studies.bench.rack.ssh_loop`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from uuid import uuid4

import numpy as np

from inventory.ansible import load_rack
from orchestration.backends.hardware.backend import make_switch
from orchestration.backends.hardware.switches import Switch
from orchestration.backends.ticker import Ticker
from orchestration.device.client import open_agents
from orchestration.device.fleet import Fleet

_PERIOD_NS = 10_000_000


def main() -> None:
    """INVENTORY READINGS CHANGES"""
    rack = load_rack(Path(sys.argv[1]))
    readings, changes = int(sys.argv[2]), int(sys.argv[3])
    switches = [make_switch(rack, name) for name in rack.testbed.switches]
    accesses = [rack.access[switch.device] for switch in switches]
    services = {switch.device: (*switch.services, "lease") for switch in switches}
    agents, problems = open_agents(accesses, rack.known_hosts_file, services)
    with Fleet(agents) as fleet:
        if problems:
            raise problems[0]
        for switch in switches:
            op, arguments = switch.open_request()
            switch.reading(fleet.agents[switch.device].call(op, **arguments))
        found = {
            "switches": len(switches),
            "queues": len(rack.testbed.queues),
            **_read(fleet, switches, readings),
            "set_us": _set(fleet, switches[0], changes),
            "lease_us": _lease(fleet, changes),
        }
    print(json.dumps(found), flush=True)


def _read(fleet: Fleet, switches: list[Switch], readings: int) -> dict[str, object]:
    """Read all switches every 10 ms; a period without a reading in its first half is missed."""
    ticker = Ticker()
    start_ns = time.monotonic_ns() + _PERIOD_NS
    rounds, missed = [], 0
    for number in range(readings):
        due_ns = start_ns + number * _PERIOD_NS
        ticker.sleep_until(due_ns)
        begin_ns = time.monotonic_ns()
        missed += begin_ns - due_ns > _PERIOD_NS // 2
        posted = []
        for switch in switches:
            op, arguments = switch.read_request()
            posted.append(fleet.agents[switch.device].post(op, **arguments))
        for switch, request in zip(switches, posted, strict=True):
            switch.reading(fleet.agents[switch.device].result(request))
        rounds.append((time.monotonic_ns() - begin_ns) / 1e3)
    return {"missed": missed, "readings": readings, "read_us": rounds}


def _set(fleet: Fleet, switch: Switch, changes: int) -> list[float]:
    """Set one queue's thresholds repeatedly; return the time to each read-back."""
    agent = fleet.agents[switch.device]
    took = []
    for number in range(changes):
        kmin, kmax = np.array([5_000 + number]), np.array([200_000 + number])
        begin_ns = time.monotonic_ns()
        op, arguments = switch.set_request(np.array([0]), kmin, kmax, np.array([0.01]))
        reading = switch.reading(agent.call(op, **arguments))
        took.append((time.monotonic_ns() - begin_ns) / 1e3)
        if (int(reading.kmin_bytes[0]), int(reading.kmax_bytes[0])) != (kmin[0], kmax[0]):
            raise ValueError(f"asked for {kmin[0]} and {kmax[0]}, read back {reading}")
    return took


def _lease(fleet: Fleet, times: int) -> list[float]:
    """Take, renew and drop the lease of one device after the other; return the time of each."""
    agents = list(fleet.agents.values())
    took = []
    for number in range(times):
        agent = agents[number % len(agents)]
        taking = {"nonce": uuid4().hex, "ttl_s": 60}
        begin_ns = time.monotonic_ns()
        agent.call("lease.take", holder="closloop bench", **taking)
        agent.call("lease.renew", **taking)
        agent.call("lease.drop", **taking)
        took.append((time.monotonic_ns() - begin_ns) / 1e3)
    return took


if __name__ == "__main__":
    main()
