"""What a first campaign compares, and how much it sends for how long.

Compared are published settings, rules, a learned tuner and its placebo.

A learned tuner is among them where a packaged network was trained under the campaign's transport.
Which network that is, its card says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from orchestration.core.errors import InputError, suggest
from orchestration.core.topology import Testbed
from orchestration.core.trial import CHECKPOINT_PARAM
from traffic.workloads import load_workload
from tuners import registry
from tuners.learning.checkpoint import PRETRAINED, pretrained

DCTCP, DCQCN = "dctcp", "dcqcn"
_DEFAULT_CONTROL = "dctcp"


@dataclass(frozen=True)
class Arm:
    """A tuner with its comment; `entry` is what stands in the file's list of tuners."""

    entry: str
    comment: str


@dataclass(frozen=True)
class Learned:
    """A learned tuner that a comparison may have, and the entry of its placebo."""

    name: str
    comment: str
    placebo: str


@dataclass(frozen=True)
class Comparison:
    """What can be compared: the transport, and arms in the order of the file.

    `fixed` are published settings that never change, of which the first is the `baseline`.
    """

    name: str
    title: str
    transport: str
    baseline: str
    fixed: dict[str, Arm]
    rules: dict[str, Arm]
    learned: tuple[Learned, ...]
    several_paths: bool = False


_THRESHOLDS = {
    "secn1": Arm("secn1", "published: DCQCN's 5 to 200 KB, 1 %"),
    "secn2": Arm("secn2", "published: HPCC's 100 to 400 KB, 20 %"),
}
_THRESHOLD_RULES = {
    "amt": Arm("amt", "a rule, by how busy a link is"),
    "qaecn": Arm("qaecn", "a rule, by a queue's own length"),
}


def _of(name: str) -> str:
    return f"{{name: random, label: placebo-{name}, of: {name}}}"


_THRESHOLD_NETWORKS = (
    Learned("acc", "a network at each queue", _of("acc")),
    Learned("pet", "it sees incasts and sizes too", _of("pet")),
    Learned("graphcc", "ports exchange messages", _of("graphcc")),
)

_ECN_TCP = Comparison(
    "ecn-tcp",
    "ECN thresholds under TCP (DCTCP)",
    DCTCP,
    "secn1",
    _THRESHOLDS,
    _THRESHOLD_RULES,
    _THRESHOLD_NETWORKS,
)
_ROCE = "ECN thresholds under RoCE (DCQCN, lossless by PFC)"
COMPARISONS = {
    one.name: one
    for one in (
        _ECN_TCP,
        replace(_ECN_TCP, name="ecn-roce", title=_ROCE, transport=DCQCN),
        Comparison(
            "flowlets",
            "flowlet timeouts under TCP (DCTCP), where switches have several paths",
            DCTCP,
            "letflow",
            {
                "letflow": Arm("letflow", "published: 200 us"),
                "ecmp": Arm(
                    "{name: timeout, label: ecmp, timeout_ns: 1s}",
                    "a flow keeps its path",
                ),
            },
            {"drw": Arm("drw", "a rule, by the load of a switch's links")},
            (
                Learned("drlet", "one network for the fabric", "random-timeouts"),
                Learned("drlet-local", "a small network at each switch", "random-timeouts"),
            ),
            several_paths=True,
        ),
    )
}


@dataclass(frozen=True)
class ChosenArms:
    """The arms of a campaign, and those that were left out but would fit.

    `without` names the learned tuners that have no packaged network for it.
    """

    arms: tuple[Arm, ...]
    others: tuple[Arm, ...] = ()
    without: tuple[str, ...] = field(default=())


def choose_arms(comparison: Comparison, testbed: Testbed, wanted: Sequence[str] = ()) -> ChosenArms:
    """Return a comparison's arms on a testbed: the `wanted` ones, by default a fair set.

    That has everything but further learned tuners. Each learned one has its placebo beside it.
    Raises InputError for an unknown tuner, and for a learned one without a packaged network.
    """
    networks = {
        one.name: found
        for one in comparison.learned
        if (found := fitting_networks(one.name, comparison.transport, testbed))
    }
    _check(comparison, networks, wanted)
    plain = {**comparison.fixed, **comparison.rules}
    default = [*plain, *list(networks)[:1]]
    names = list(dict.fromkeys(wanted)) or default
    taken: list[Arm] = []
    others: list[Arm] = []
    for name, arm in plain.items():
        (taken if name in names else others).append(arm)
    placebos: dict[str, str] = {}
    for one in comparison.learned:
        if one.name in networks:
            arm = Arm(_entry(one.name, networks[one.name]), f"learned: {one.comment}")
            if one.name in names:
                placebos.setdefault(one.placebo, one.name)
                taken.append(arm)
            else:
                others += [arm, Arm(one.placebo, f"the placebo of {one.name}")]
    taken += [Arm(entry, f"as often as {name}, at random") for entry, name in placebos.items()]
    entries = {arm.entry for arm in taken}
    without = [one.name for one in comparison.learned if one.name not in networks]
    unused = tuple(arm for arm in others if arm.entry not in entries)
    return ChosenArms(tuple(taken), unused, tuple(without))


def _check(
    comparison: Comparison, networks: dict[str, tuple[str, ...]], wanted: Sequence[str]
) -> None:
    plain = [*comparison.fixed, *comparison.rules]
    for name in wanted:
        if name in plain or name in networks:
            continue
        known = ", ".join([*plain, *networks])
        if any(one.name == name for one in comparison.learned):
            what = (
                f"no packaged network of {name} was trained under {comparison.transport} "
                "and fits this fabric"
            )
            remedy = f"use some of: {known}; or train one (closloop train {name} --help)"
        else:
            what = f"{comparison.name} has no tuner {name!r}"
            remedy = f"{suggest(name, [*plain, *networks])}use some of: {known}"
        raise InputError.single("--tuners", what, remedy)


def fitting_networks(tuner: str, transport: str, testbed: Testbed) -> tuple[str, ...]:
    """Return the packaged networks of a tuner for a transport and a fabric.

    They are trainings of one tuner from several seeds.
    """
    found = []
    for name in pretrained():
        card = json.loads((PRETRAINED / f"{name}.json").read_text(encoding="utf-8"))
        if card.get("tuner") != tuner or card.get("request", {}).get("params"):
            continue
        if transport_of(str(card.get("scenario", ""))) != transport:
            continue
        if not registry.check(tuner, {CHECKPOINT_PARAM: name}, testbed):
            found.append(name)
    return tuple(found)


def transport_of(scenario: str) -> str:
    """Return the congestion control of a scenario, a campaign's text; "" if it has several."""
    try:
        data = YAML(typ="safe").load(scenario)
    except YAMLError:
        return ""
    if not isinstance(data, dict):
        return ""
    host = data.get("host", {})
    control = host.get("congestion_control", _DEFAULT_CONTROL) if isinstance(host, dict) else ""
    return control if isinstance(control, str) and not control.startswith("$") else ""


def _entry(tuner: str, networks: tuple[str, ...]) -> str:
    """Return the tuner as the file's list has it; several networks take turns over repeats."""
    names = networks[0] if len(networks) == 1 else f"[{', '.join(networks)}]"
    return f"{{name: {tuner}, checkpoint: {names}}}"


MS = 1_000_000
_MAX_LOAD = 0.9
# Of the links upwards, by random pairs of hosts: what is left is for bursts.
_MAX_UPLINKS = 0.8
_USUAL_LOAD = 0.6
# 10 ms at 25 Gbit/s, which has some 300 flows of WebSearch on 24 hosts at 60 %.
_WINDOW_BITS = 250_000_000
_MIN_WINDOW_NS, _MAX_WINDOW_NS = 5 * MS, 25 * MS
_INCAST_BYTES, _MIN_INCAST_BYTES = 128_000, 8_000
_MAX_FAN_IN = 16
# The largest flow of a workload may take this many times its time alone before a trial ends.
_DRAIN_IDEALS = 10
_MIN_DRAIN_NS = 200 * MS


@dataclass(frozen=True)
class Incast:
    """Incasts: how many hosts send to one, bytes of each flow, and the time between them in ns."""

    fan_in: int
    size_bytes: int
    period_ns: int


def uplink_ratio(testbed: Testbed) -> float:
    """Return how busy the links upwards of the busiest leaf are at a load of 1.

    Pairs of hosts are random; 0 where there are no links upwards.
    """
    hosts, busiest = len(testbed.hosts), 0.0
    for name in testbed.switches:
        tier = testbed.device[name].tier
        peers = [(testbed.peer_device(port), port.rate_bps) for port in testbed.ports_of[name]]
        below = {peer.name for peer, _ in peers if peer.kind == "host"}
        down = sum(rate for peer, rate in peers if peer.kind == "host")
        up = sum(rate for peer, rate in peers if peer.tier > tier)
        if below and up:
            busiest = max(busiest, down / up * (hosts - len(below)) / (hosts - 1))
    return busiest


def usual_load(testbed: Testbed) -> float:
    """Return 0.6, or less where links between switches could not carry it, in steps of 0.05."""
    ratio = uplink_ratio(testbed)
    maximum = _MAX_UPLINKS / ratio if ratio else 1.0
    return _USUAL_LOAD if maximum >= _USUAL_LOAD else max(0.05, math.floor(maximum * 20) / 20)


def checked_load(load: float, testbed: Testbed) -> float:
    """Return the load. Raises InputError where hosts or links between switches cannot carry it."""
    ratio = uplink_ratio(testbed)
    maximum = min(_MAX_LOAD, 1 / ratio if ratio else 1.0)
    if not 0 < load <= maximum:
        why = "its links between switches carry" if maximum < _MAX_LOAD else "hosts can send"
        raise InputError.single(
            "--load",
            f"{load:g} is more than {testbed.name} takes: {why} a load of {maximum:.2g}"
            if load > 0
            else f"{load:g} is no load",
            "use a share of the hosts' line rate, above 0 and up to "
            f"{math.floor(maximum * 100) / 100} (usual: {usual_load(testbed):g})",
        )
    return load


def window_ns(testbed: Testbed) -> int:
    """Return how long to measure: as many bits a NIC everywhere, within bounds."""
    exact = _WINDOW_BITS * 10**9 // _nic_bps(testbed)
    return max(_MIN_WINDOW_NS, min(_MAX_WINDOW_NS, _up(exact, MS)))


def drain_ns(testbed: Testbed, workload: str) -> int:
    """Return how long flows may take after arrivals end: an unfinished flow makes a trial invalid.

    A trial ends when all have, so a long drain costs nothing otherwise.
    """
    largest_bytes = load_workload(workload).points[-1][0]
    alone_ns = largest_bytes * 8 * 10**9 // _nic_bps(testbed)
    return max(_MIN_DRAIN_NS, _up(_DRAIN_IDEALS * alone_ns, 100 * MS))


def incast(testbed: Testbed) -> Incast:
    """Return incasts that fill at most half of a port's buffer and take a third of the time."""
    fan_in = max(2, min(_MAX_FAN_IN, 2 * len(testbed.hosts) // 3))
    room_bytes = min(port.buffer_bytes for port in testbed.switch_ports) // 2
    size_bytes = _INCAST_BYTES
    while size_bytes * fan_in > room_bytes and size_bytes > _MIN_INCAST_BYTES:
        size_bytes //= 2
    lasts_ns = fan_in * size_bytes * 8 * 10**9 // _nic_bps(testbed)
    return Incast(fan_in, size_bytes, max(MS, _up(3 * lasts_ns, MS)))


def _nic_bps(testbed: Testbed) -> int:
    return min(port.rate_bps for host in testbed.hosts for port in testbed.ports_of[host])


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
