"""Shortest-path ECMP routes over a testbed, and ideal flow completion times on idle paths.

All functions are pure. Backends install the routes of `next_hops`; analysis takes ideal times from
`ideal_times_ns`, which slowdown is relative to. Which congestion control each flow of a trial has
is also answered here, since it depends on the testbed's classes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from orchestration.core.capabilities import mode_of
from orchestration.core.congestion import NicPolicy
from orchestration.core.pattern import PatternSpec
from orchestration.core.records import Ints, Schedule
from orchestration.core.roce import BDP_WINDOW, HEADER_BYTES, RoceSpec
from orchestration.core.topology import Port, Testbed
from orchestration.core.trial import HostSpec, TrialSpec


def next_hops(
    testbed: Testbed, down_links: Collection[int] = ()
) -> dict[str, dict[str, tuple[Port, ...]]]:
    """Return the equal-cost ports of each device towards each switch that hosts attach to.

    `result[device][target]` are the ports of `device` on a shortest path to the switch `target`.
    Traffic to a host goes to the switches of its `attachment`. A host's entries are the NICs to
    send with, several if they are equally near. A device has no entry for itself or for a target
    that it cannot reach. Links in `down_links` (indices into `Testbed.links`) are not used. Hosts
    never forward.
    """
    down = frozenset(down_links)
    result: dict[str, dict[str, tuple[Port, ...]]] = {d.name: {} for d in testbed.devices}
    # Unlike a set, a dictionary has the same order in every process.
    for target in dict.fromkeys(a for h in testbed.hosts for a in attachment(testbed, h)):
        distance = _distances(testbed, target, down)
        for device in testbed.devices:
            here = distance.get(device.name)
            if not here:
                continue
            ports = tuple(
                port
                for port in testbed.ports_of[device.name]
                if port.link not in down
                and testbed.peer_device(port).kind == "switch"
                and distance.get(testbed.ports[port.peer].device, here) == here - 1
            )
            if ports:
                result[device.name][target] = ports
    return result


def attachment(testbed: Testbed, host: str) -> tuple[str, ...]:
    """Return the names of the switches that `host`'s NICs connect to, one for each NIC."""
    return tuple(testbed.ports[port.peer].device for port in testbed.ports_of[host])


def _distances(testbed: Testbed, target: str, down: frozenset[int]) -> dict[str, int]:
    """Return each device's distance to `target` in links, without paths through hosts."""
    distance = {target: 0}
    todo = deque([target])
    while todo:
        name = todo.popleft()
        if testbed.device[name].kind == "host":
            continue
        for port in testbed.ports_of[name]:
            other = testbed.ports[port.peer].device
            if port.link not in down and other not in distance:
                distance[other] = distance[name] + 1
                todo.append(other)
    return distance


@dataclass(frozen=True)
class Path:
    """A shortest path between hosts in an idle fabric.

    `hops` is its number of links, `one_way_ns` its propagation delay, and `rate_bps` the rate of
    its slowest link. `links` are indices into `Testbed.links`, starting at the source.
    """

    hops: int
    one_way_ns: int
    rate_bps: int
    links: tuple[int, ...]


# More links than any path has.
_FAR = 10_000


class PathTable:
    """Base RTT and ideal completion time between hosts of an idle fabric.

    All shortest paths between two hosts are assumed to have the same delay, as in a Clos fabric.
    The first of those whose slowest link is fastest is used.
    """

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._paths: dict[tuple[str, str], Path] = {}
        self._distances: dict[str, dict[str, int]] = {}
        self._widest_choice: dict[tuple[str, str], tuple[float, Port | None]] = {}

    def path(self, src: str, dst: str) -> Path:
        """Return the path between the NICs of `src` and `dst` that are nearest to each other.

        Raises ValueError if there is no path, or if `src` is `dst`.
        """
        key = (src, dst)
        if key not in self._paths:
            self._paths[key] = self._shortest(src, dst)
        return self._paths[key]

    def hops(self, src: Ints, dst: Ints) -> Ints:
        """Return the number of links between hosts, given by their numbers, shapes (pairs,).

        Raises ValueError as `path` does.
        """
        hosts, switches = self._testbed.hosts, self._switch_of
        targets, distance = self._switch_distances
        begin, end = switches[src], switches[dst]
        between = distance[begin, np.searchsorted(targets, end)]
        known = (begin >= 0) & (end >= 0) & (between < _FAR)
        lengths = between.astype(np.int64) + 2
        for pair in np.flatnonzero(~known).tolist():
            lengths[pair] = self.path(hosts[src[pair]], hosts[dst[pair]]).hops
        return lengths

    @cached_property
    def _switch_of(self) -> Ints:
        """The number of the switch that each host has its only NIC to, (hosts,); -1 if it has not.

        There are as many links between hosts at two switches, whichever hosts they are.
        """
        number = {name: index for index, name in enumerate(self._testbed.switches)}
        near = [attachment(self._testbed, host) for host in self._testbed.hosts]
        return np.array([number.get(names[0], -1) if len(names) == 1 else -1 for names in near])

    @cached_property
    def _switch_distances(self) -> tuple[Ints, NDArray[np.int16]]:
        """The switches of `_switch_of`, and all switches' distances to them in links.

        Shapes are (targets,) and (switches, targets). The distance is `_FAR` without a path.
        """
        targets = np.unique(self._switch_of)
        names = self._testbed.switches
        number = {name: index for index, name in enumerate(names)}
        near = [[number[there] for _, there in self._between_switches[name]] for name in names]
        # a switch with fewer neighbours than others has itself for the rest
        degree = max(map(len, near), default=0)
        padded = np.array(
            [[*of, *[index] * (degree - len(of))] for index, of in enumerate(near)], dtype=int
        ).reshape(len(names), degree)
        distance = np.full((len(names), len(targets)), _FAR, dtype=np.int16)
        distance[targets, np.arange(len(targets))] = 0
        while True:
            before = distance.copy()
            for neighbour in padded.T:
                np.minimum(distance, before[neighbour] + 1, out=distance)
            if np.array_equal(distance, before):
                return targets, distance

    def base_rtt_ns(self, src: str, dst: str) -> int:
        """Return the round-trip propagation delay in ns, with empty queues."""
        return 2 * self.path(src, dst).one_way_ns

    def ideal_fct_ns(self, src: str, dst: str, size_bytes: int) -> int:
        """Return the completion time in ns of a TCP flow that is alone on its path.

        It is base RTT + (wire bytes after the first packet) / rate of the slowest link: the sender
        gets the last acknowledgement one RTT after the last packet left. The serialisation of the
        first packet is part of the path's latency, as for a ping.
        """
        path = self.path(src, dst)
        total = self._testbed.wire_bytes(size_bytes)
        first = self._testbed.wire_bytes(min(size_bytes, self._testbed.mss_bytes))
        return 2 * path.one_way_ns + -(-(total - first) * 8 * 10**9 // path.rate_bps)

    def _shortest(self, src: str, dst: str) -> Path:
        if src == dst:
            raise ValueError(f"{src} has no path to itself")
        best: Path | None = None
        for out in self._testbed.ports_of[src]:
            for into in self._testbed.ports_of[dst]:
                target = self._testbed.ports[into.peer].device
                ports = [out]
                here = self._testbed.ports[out.peer].device
                while here not in (target, dst):
                    _, choice = self._widest_port(here, target)
                    if choice is None:
                        break
                    ports.append(choice)
                    here = self._testbed.ports[choice.peer].device
                else:
                    if here != dst:
                        ports.append(self._testbed.ports[into.peer])
                    path = Path(
                        hops=len(ports),
                        one_way_ns=sum(port.delay_ns for port in ports),
                        rate_bps=min(port.rate_bps for port in ports),
                        links=tuple(port.link for port in ports),
                    )
                    if best is None or path.one_way_ns < best.one_way_ns:
                        best = path
        if best is None:
            raise ValueError(f"no path from {src} to {dst} on testbed {self._testbed.name}")
        return best

    def _widest_port(self, here: str, target: str) -> tuple[float, Port | None]:
        """Return the bottleneck rate and the first port of the path with the fastest bottleneck.

        Of equal ports, it is the first. The port is None if the target cannot be reached.
        """
        if here == target:
            return inf, None
        if (here, target) not in self._widest_choice:
            best: tuple[float, Port | None] = (0.0, None)
            for port in self._next_hops(here, target):
                there, _ = self._widest_port(self._testbed.ports[port.peer].device, target)
                if min(port.rate_bps, there) > best[0]:
                    best = (min(port.rate_bps, there), port)
            self._widest_choice[here, target] = best
        return self._widest_choice[here, target]

    def _next_hops(self, here: str, target: str) -> list[Port]:
        """Return the ports of a switch on shortest paths to the switch `target`.

        They are those of `next_hops`, but only what is asked for is worked out.
        """
        if target not in self._distances:
            self._distances[target] = self._distances_to(target)
        distance = self._distances[target]
        nearer = distance.get(here, 0) - 1
        return [
            port for port, there in self._between_switches[here] if distance.get(there) == nearer
        ]

    def _distances_to(self, target: str) -> dict[str, int]:
        """Return each switch's distance to the switch `target` in links."""
        distance = {target: 0}
        todo = deque([target])
        while todo:
            name = todo.popleft()
            for _, other in self._between_switches[name]:
                if other not in distance:
                    distance[other] = distance[name] + 1
                    todo.append(other)
        return distance

    @cached_property
    def _between_switches(self) -> dict[str, list[tuple[Port, str]]]:
        """Each switch's ports towards other switches, with these switches' names."""
        testbed, switches = self._testbed, set(self._testbed.switches)
        peers = {
            name: [(port, testbed.ports[port.peer].device) for port in testbed.ports_of[name]]
            for name in testbed.switches
        }
        return {
            name: [(port, there) for port, there in ports if there in switches]
            for name, ports in peers.items()
        }


def pattern_control(testbed: Testbed, spec: PatternSpec) -> str:
    """Return a traffic pattern's own congestion control, or else that of its traffic class.

    It is "" if neither has one: the trial's hosts then decide.
    """
    if spec.congestion_control or not testbed.classes:
        return spec.congestion_control
    return testbed.classes[testbed.class_index(spec.queue_class)].congestion_control


def flow_controls(testbed: Testbed, trial: TrialSpec) -> tuple[str, ...]:
    """Return the congestion control of each of a trial's traffic patterns."""
    return tuple(trial.host.control_of(pattern_control(testbed, spec)) for spec in trial.traffic)


def ignores_marks(testbed: Testbed, trial: TrialSpec) -> bool:
    """Return whether certainly no flow of a trial slows down on ECN marks (CE packets)."""
    return not any(map(mode_of(trial).may_answer_marks, flow_controls(testbed, trial)))


def nic_policy(testbed: Testbed, host: HostSpec) -> NicPolicy | None:
    """Return the settings of the RoCE NICs' congestion control, None for hosts without RoCE."""
    return None if host.roce is None else host.roce.policy(lambda: base_rtt_ns(testbed))


def roce_flows(testbed: Testbed, trial: TrialSpec, schedule: Schedule) -> NDArray[np.bool_]:
    """Return which flows are sent by RoCE NICs and not by TCP, shape (flows,)."""
    roce = trial.host.roce
    own = roce.control if roce is not None else None
    patterns = [control == own for control in flow_controls(testbed, trial)]
    return np.array(patterns, dtype=bool)[schedule.klass]


def ideal_times_ns(testbed: Testbed, schedule: Schedule, trial: TrialSpec | None = None) -> Ints:
    """Return each flow's completion time in ns when it is alone on its path, shape (flows,).

    A flow is sent by TCP, or by a RoCE NIC if `trial` says so.
    """
    paths, hosts = PathTable(testbed), testbed.hosts
    columns = (schedule.src, schedule.dst, schedule.size_bytes)
    roce = trial.host.roce if trial is not None else None
    by_roce = np.zeros(len(schedule), dtype=bool)
    if trial is not None and roce is not None:
        by_roce = roce_flows(testbed, trial, schedule)
    times = [
        _ideal_roce_ns(paths.path(hosts[src], hosts[dst]), size, roce, testbed.framing_bytes)
        if roce is not None and is_roce
        else paths.ideal_fct_ns(hosts[src], hosts[dst], size)
        for is_roce, src, dst, size in zip(
            by_roce.tolist(), *(column.tolist() for column in columns), strict=True
        )
    ]
    return np.array(times, dtype=np.int64)


def _ideal_roce_ns(path: Path, size_bytes: int, roce: RoceSpec, framing_bytes: int) -> int:
    """Return a RoCE flow's ideal completion time in ns.

    The packets before the last one are sent at line rate; the last one and its acknowledgement
    take a base RTT.
    """
    full_bytes = roce.payload_bytes + HEADER_BYTES + roce.telemetry_bytes + framing_bytes
    before = (roce.packets(size_bytes) - 1) * full_bytes
    return 2 * path.one_way_ns - (-before * 8 * 10**9 // path.rate_bps)


def _paths(testbed: Testbed) -> Iterator[Path]:
    """Yield the paths between hosts; one host represents all at the same switches."""
    hosts = {attachment(testbed, host): host for host in reversed(testbed.hosts)}.values()
    pairs = [(a, b) for a in hosts for b in hosts if a != b] or [
        (testbed.hosts[0], testbed.hosts[1])
    ]
    return itertools.starmap(PathTable(testbed).path, pairs)


def base_rtt_ns(testbed: Testbed) -> int:
    """Return the base RTT of the longest path, in ns."""
    return 2 * max(path.one_way_ns for path in _paths(testbed))


def window_bytes(testbed: Testbed, roce: RoceSpec) -> int:
    """Return how many payload bytes a RoCE flow may have in flight; 0 means no limit.

    `BDP_WINDOW` stands for the largest bandwidth-delay product of a path, in whole packets.
    """
    if roce.window_bytes != BDP_WINDOW:
        return roce.window_bytes
    full_bytes = roce.payload_bytes + HEADER_BYTES + roce.telemetry_bytes
    max_bits = max(path.rate_bps * 2 * path.one_way_ns for path in _paths(testbed))
    packets = -(-max_bits // (8 * 10**9 * (full_bytes + testbed.framing_bytes)))
    return packets * roce.payload_bytes
