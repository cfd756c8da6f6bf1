"""Lets switches choose paths: begins it, turns `flowlet_timeout`, and reads the switches' counts.

The structs are those of `load_balancing.h`, `paths_proc.h` and `paths_proc.c`.
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
    """Return what begins load balancing: the settings, then every switch with its ports.

    `ifindexes` are those of `Testbed.ports`, `namespaces` the descriptors of the switches'.
    """
    spec = trial.load_balancing
    head = _SETTINGS.pack(
        spec.dre_time_ns >> DRE_SHIFT,
        spec.metric_age_ns,
        len(testbed.switches),
        ROUTES.index(spec.route_by),
        0 if spec.kind == "spray" else spec.entries,
        testbed.framing_bytes,
    )
    parts = [head]
    partners = partners_of(testbed)
    for number, (name, namespace) in enumerate(zip(testbed.switches, namespaces, strict=True)):
        tier, ports = testbed.device[name].tier, testbed.ports_of[name]
        partner = partners[name]
        parts.append(
            _SWITCH.pack(
                initial_random_state(trial.seed, number),
                spec.timeout_ns(tier),
                namespace,
                tier,
                1 + max((one for one in partner if one != NO_PARTNER), default=-1),
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
    """Pack a switch's ports. A port's tag is its place among those to a higher tier."""
    tag = 0
    for port in ports:
        peer = testbed.peer_device(port)
        up = peer.kind == "switch" and peer.tier > tier
        unit_bytes = max(1, port.rate_bps * spec.dre_time_ns // (8 * 10**9) >> DRE_SHIFT)
        fabric = peer.kind == "switch"
        yield _PORT.pack(unit_bytes, ifindexes[port.index], fabric, up, min(tag, 255), 0)
        tag += up


def partners_of(testbed: Testbed) -> dict[str, list[int]]:
    """Return each switch's CONGA partners by the second byte of hosts' addresses.

    A switch's partner for a destination is the switch of its own tier that the packet comes down
    to, if that is the same by all paths. Partners are numbered from 0 at each switch.
    """
    numbers, hops = attachments(testbed), next_hops(testbed)
    result = {}
    for name in testbed.switches:
        partner, known = [NO_PARTNER] * 256, dict[str, int]()
        for target, number in numbers.items():
            found = _same_tier(testbed, hops, name, target)
            if len(found) == 1:
                partner[number] = known.setdefault(found.pop(), len(known))
        result[name] = partner
    return result


def _same_tier(testbed: Testbed, hops: Any, name: str, target: str) -> set[str]:
    """Return the switches of the tier of `name` that paths to `target` come down to, if it goes up.

    A path goes up to some tier, then down: it is followed from every port that goes up.
    """
    tier, found = testbed.device[name].tier, set[str]()
    todo = {
        testbed.peer_device(port).name
        for port in hops[name].get(target, ())
        if testbed.peer_device(port).tier > tier
    }
    while todo:
        here = todo.pop()
        for port in hops[here].get(target, ()):
            peer = testbed.peer_device(port)
            if peer.tier == tier:
                found.add(peer.name)
            else:
                todo.add(peer.name)
    return found


class PathFile:
    """The switches of this guest that choose paths, in the order of `Testbed.switches`."""

    def __init__(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        ifindexes: Sequence[int],
        namespaces: Sequence[int],
    ) -> None:
        """Begin: what is forwarded from now on is balanced. The arguments are `settings_of`'s."""
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
        """Say when time 0 is, of CLOCK_MONOTONIC."""
        os.write(self._paths, _ORIGIN.pack(t0_ns))

    def links_down(self, links: Iterable[int]) -> None:
        """Say which links are down from now on; all others are up."""
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
        """Set timeouts of some switches, shape (switches, 1), and read them back."""
        wanted = np.zeros(len(switches), dtype=_TIMEOUT)
        wanted["number"], wanted["timeout_ns"] = switches, timeouts_ns.ravel()
        os.write(self._timeouts, wanted.tobytes())
        return self.timeouts_ns()[switches]

    def values(self, states: np.ndarray) -> dict[str, Ints]:
        """Return the signals of switches by key, from their states, dtype `PATHS_STATE`."""
        self._last = states
        return {key: states[name].astype(np.int64) for key, name in _SIGNALS.items()}

    def facts(self) -> dict[str, Any]:
        """Return facts and findings for the trial's record, of the last reading."""
        last = self._last
        overflows = dict(zip(self._testbed.switches, last["overflows"].tolist(), strict=True))
        return balancing_facts(int(last["flowlets"].sum()), int(last["reroutes"].sum()), overflows)
