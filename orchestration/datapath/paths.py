"""Load balancing in the guest's kernel: starts it, sets `flowlet_timeout`, and reads counters.

The layouts of structs are those in `load_balancing.h`, `paths_proc.h` and `paths_proc.c`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from inventory.addressing import attachments
from inventory.routing import next_hops
from orchestration.core.load_balancing import (
    DRE_SHIFT,
    ECMP,
    ROUTES,
    LoadBalancingSpec,
    balancing_facts,
    initial_random_state,
)
from orchestration.core.records import Ints
from orchestration.core.topology import Port, Testbed
from orchestration.core.trial import TrialSpec

PATHS = "/proc/closloop/paths"
TIMEOUTS = "/proc/closloop/timeouts"
LINKS_DOWN = "/proc/closloop/links_down"
NO_PARTNER = 0xFFFF
# struct cl_paths_settings, struct switch_settings and struct port_settings
_SETTINGS = struct.Struct("=QQIIII")
_SWITCH = struct.Struct("=QQiIII256H")
_PORT = struct.Struct("=QIBBBB")
_ORIGIN = struct.Struct("=Q")
_TIMEOUT = np.dtype([("timeout_ns", np.uint64), ("number", np.uint32), ("unused", np.uint32)])
# struct cl_paths_state
PATHS_STATE = np.dtype(
    [(name, np.uint64) for name in ("flowlets", "reroutes", "overflows", "entries")]
)
_SIGNALS = {
    "switch.flowlets": "flowlets",
    "switch.reroutes": "reroutes",
    "switch.flowlet_entries": "entries",
    "switch.flowlet_overflows": "overflows",
}


def settings_of(
    trial: TrialSpec, testbed: Testbed, ifindexes: Sequence[int], namespaces: Sequence[int]
) -> bytes:
    """Return the bytes that start load balancing: settings, then every switch with its ports.

    `ifindexes` has the interface index of each of `Testbed.ports`, `namespaces` a file descriptor
    of each switch's network namespace.
    """
    spec = trial.load_balancing
    settings = _SETTINGS.pack(
        spec.dre_time_ns >> DRE_SHIFT,
        spec.metric_age_ns,
        len(testbed.switches),
        ROUTES.index(spec.route_by),
        0 if spec.kind == "spray" else spec.entries,
        testbed.framing_bytes,
    )
    parts = [settings]
    partners = partners_of(testbed)
    for switch, (name, namespace) in enumerate(zip(testbed.switches, namespaces, strict=True)):
        tier, ports = testbed.device[name].tier, testbed.ports_of[name]
        partner = partners[name]
        parts.append(
            _SWITCH.pack(
                initial_random_state(trial.seed, switch),
                spec.timeout_ns(tier),
                namespace,
                tier,
                1 + max((number for number in partner if number != NO_PARTNER), default=-1),
                len(ports),
                *partner,
            )
        )
        parts += _ports(testbed, ports, tier, spec, ifindexes)
    return b"".join(parts)


def _ports(
    testbed: Testbed,
    ports: Iterable[Port],
    tier: int,
    spec: LoadBalancingSpec,
    ifindexes: Sequence[int],
) -> Iterable[bytes]:
    """Yield a switch's ports as bytes. CONGA's tag of a port is its index among the uplinks."""
    tag = 0
    for port in ports:
        peer = testbed.peer_device(port)
        to_switch = peer.kind == "switch"
        is_uplink = to_switch and peer.tier > tier
        unit_bytes = max(1, port.rate_bps * spec.dre_time_ns // (8 * 10**9) >> DRE_SHIFT)
        yield _PORT.pack(unit_bytes, ifindexes[port.index], to_switch, is_uplink, min(tag, 255), 0)
        tag += is_uplink


def partners_of(testbed: Testbed) -> dict[str, list[int]]:
    """Return each switch's CONGA partners by the second byte of hosts' addresses.

    A switch sends feedback about paths to its partners. Its partner for a destination is the switch
    of its own tier that packets to the destination come down to, if that is the same switch on all
    paths. Each switch numbers its partners from 0.
    """
    numbers, hops = attachments(testbed), next_hops(testbed)
    result = {}
    for name in testbed.switches:
        partner, known = [NO_PARTNER] * 256, dict[str, int]()
        for target, number in numbers.items():
            candidates = _same_tier(testbed, hops, name, target)
            if len(candidates) == 1:
                partner[number] = known.setdefault(candidates.pop(), len(known))
        result[name] = partner
    return result


def _same_tier(testbed: Testbed, hops: Any, name: str, target: str) -> set[str]:
    """Return the switches of the tier of `name` that its paths to `target` come down to.

    A path goes up to some tier and then down. The paths are followed from every uplink of `name`
    that leads to the target; without such uplinks the result is empty.
    """
    tier, switches = testbed.device[name].tier, set[str]()
    above = {
        testbed.peer_device(port).name
        for port in hops[name].get(target, ())
        if testbed.peer_device(port).tier > tier
    }
    while above:
        current = above.pop()
        for port in hops[current].get(target, ()):
            peer = testbed.peer_device(port)
            if peer.tier == tier:
                switches.add(peer.name)
            else:
                above.add(peer.name)
    return switches


class PathFile:
    """The switches of this guest that choose paths, in the order of `Testbed.switches`."""

    def __init__(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        ifindexes: Sequence[int],
        namespaces: Sequence[int],
    ) -> None:
        """Start load balancing of all packets from now on, with the arguments of `settings_of`."""
        self._testbed = testbed
        self.count = len(testbed.switches)
        self._ifindexes = ifindexes
        self._paths = os.open(PATHS, os.O_WRONLY)
        os.write(self._paths, settings_of(trial, testbed, ifindexes, namespaces))
        self._timeouts = os.open(TIMEOUTS, os.O_RDWR)
        self._links_down = os.open(LINKS_DOWN, os.O_WRONLY)
        self.is_by_flowlet = trial.load_balancing.kind == "flowlets"
        self._last: np.ndarray = np.zeros(self.count, dtype=PATHS_STATE)

    @staticmethod
    def is_used_in(trial: TrialSpec) -> bool:
        """Return whether switches choose paths in a trial."""
        return trial.load_balancing.kind != ECMP.kind

    def begin_at(self, t0_ns: int) -> None:
        """Set time 0 of the trial to `t0_ns` of CLOCK_MONOTONIC."""
        os.write(self._paths, _ORIGIN.pack(t0_ns))

    def links_down(self, links: Iterable[int]) -> None:
        """Set which links are down from now on; all others are up."""
        ends = [
            self._ifindexes[end]
            for link in links
            for end in (self._testbed.links[link].a, self._testbed.links[link].b)
        ]
        os.write(self._links_down, np.array([0, *ends], dtype=np.uint32).tobytes())

    def timeouts_ns(self) -> Ints:
        """Return the flowlet timeouts of all switches, shape (switches, 1)."""
        data = os.pread(self._timeouts, 8 * self.count, 0)
        return np.frombuffer(data, dtype=np.uint64).astype(np.int64).reshape(-1, 1)

    def exchange(self, switches: Ints, timeouts_ns: Ints) -> Ints:
        """Set timeouts of some switches, shape (switches, 1), and return those they then have."""
        settings = np.zeros(len(switches), dtype=_TIMEOUT)
        settings["number"], settings["timeout_ns"] = switches, timeouts_ns.ravel()
        os.write(self._timeouts, settings.tobytes())
        return self.timeouts_ns()[switches]

    def values(self, states: np.ndarray) -> dict[str, Ints]:
        """Return the signals of switches by key, from their states, dtype `PATHS_STATE`."""
        self._last = states
        return {key: states[name].astype(np.int64) for key, name in _SIGNALS.items()}

    def facts(self) -> dict[str, Any]:
        """Return facts and findings for the trial's record, by the last reading."""
        last = self._last
        overflows = dict(zip(self._testbed.switches, last["overflows"].tolist(), strict=True))
        return balancing_facts(int(last["flowlets"].sum()), int(last["reroutes"].sum()), overflows)
