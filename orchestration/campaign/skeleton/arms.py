"""The tuners of a first campaign, and how much traffic it sends for how long.

They are published settings, rules that learn nothing, a learned tuner and its placebo: the same
actions at random. A learned tuner is included if a packaged network was trained under the
campaign's transport, as its model card says.
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
    """A tuner as an item of the campaign's list `tuners` (`entry`), with its comment."""

    entry: str
    comment: str


@dataclass(frozen=True)
class Learned:
    """A learned tuner that a comparison may have; `placebo` is the entry of its placebo."""

    name: str
    comment: str
    placebo: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison that can be chosen, and the question that it answers.

    `transport` is the hosts' congestion control, or that of the baseline. RoCE NICs get a lossless
    fabric. `several_paths` says that the fabric must have several paths between hosts. The other
    fields are the answers to the other questions that suit it; `load` is less where links between
    switches could not carry it.
    """

    name: str
    title: str
    question: str
    transport: str
    several_paths: bool = False
    testbed: str = "graphcc"
    load: float = 0.6
    incast: bool = True
    incast_bytes: int = 128_000

    @property
    def lossless(self) -> bool:
        """Whether hosts have RoCE NICs, and so switches priority flow control."""
        return self.transport != DCTCP


@dataclass(frozen=True, kw_only=True)
class TunerComparison(Comparison):
    """A comparison of tuners, in the order of the file.

    `fixed` has published settings that never change, `rules` tuners that learn nothing; both are by
    tuner name.
    """

    baseline: str
    fixed: dict[str, Arm]
    rules: dict[str, Arm]
    learned: tuple[Learned, ...]


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

_ECN_TCP = TunerComparison(
    name="ecn-tcp",
    title="ECN thresholds under TCP (DCTCP)",
    question="Which ECN thresholds are best under TCP (DCTCP)?",
    transport=DCTCP,
    baseline="secn1",
    fixed=_THRESHOLDS,
    rules=_THRESHOLD_RULES,
    learned=_THRESHOLD_NETWORKS,
)
TUNER_COMPARISONS = (
    _ECN_TCP,
    replace(
        _ECN_TCP,
        name="ecn-roce",
        title="ECN thresholds under RoCE (DCQCN, lossless by PFC)",
        question="Which ECN thresholds are best for RoCE NICs under DCQCN, lossless by PFC?",
        transport=DCQCN,
        load=0.4,  # DCQCN's NICs do not keep up with more
    ),
    TunerComparison(
        name="flowlets",
        title="flowlet timeouts under TCP (DCTCP), where switches have several paths",
        question="Which flowlet timeout is best under TCP (DCTCP)?",
        transport=DCTCP,
        several_paths=True,
        testbed="drlet-k4",
        baseline="letflow",
        fixed={
            "letflow": Arm("letflow", "published: 200 us"),
            "ecmp": Arm(
                "{name: timeout, label: ecmp, timeout_ns: 1s}",
                "a flow keeps its path",
            ),
        },
        rules={"drw": Arm("drw", "a rule, by the load of a switch's links")},
        learned=(
            Learned("drlet", "one network for the fabric", "random-timeouts"),
            Learned("drlet-local", "a small network at each switch", "random-timeouts"),
        ),
    ),
)


@dataclass(frozen=True)
class ChosenArms:
    """The arms of a campaign, and those that were left out but would fit (`others`).

    `without` names the learned tuners that have no packaged network for this campaign.
    """

    arms: tuple[Arm, ...]
    others: tuple[Arm, ...] = ()
    without: tuple[str, ...] = field(default=())


def choose_arms(
    comparison: TunerComparison, testbed: Testbed, tuners: Sequence[str] = ()
) -> ChosenArms:
    """Return a comparison's arms on a testbed: the given `tuners`, by default a fair set.

    The fair set has all fixed settings and rules, and the first learned tuner. Every learned tuner
    comes with its placebo. Raises InputError for an unknown tuner, and for a learned one without a
    packaged network.
    """
    networks = {
        learned.name: names
        for learned in comparison.learned
        if (names := fitting_networks(learned.name, comparison.transport, testbed))
    }
    _check(comparison, networks, tuners)
    not_learned = {**comparison.fixed, **comparison.rules}
    default = [*not_learned, *list(networks)[:1]]
    chosen = list(dict.fromkeys(tuners)) or default
    arms: list[Arm] = []
    others: list[Arm] = []
    for name, arm in not_learned.items():
        (arms if name in chosen else others).append(arm)
    placebos: dict[str, str] = {}
    for learned in comparison.learned:
        if learned.name in networks:
            arm = Arm(_entry(learned.name, networks[learned.name]), f"learned: {learned.comment}")
            if learned.name in chosen:
                placebos.setdefault(learned.placebo, learned.name)
                arms.append(arm)
            else:
                others += [arm, Arm(learned.placebo, f"the placebo of {learned.name}")]
    arms += [Arm(entry, f"as often as {name}, at random") for entry, name in placebos.items()]
    entries = {arm.entry for arm in arms}
    without = [learned.name for learned in comparison.learned if learned.name not in networks]
    unused = tuple(arm for arm in others if arm.entry not in entries)
    return ChosenArms(tuple(arms), unused, tuple(without))


def _check(
    comparison: TunerComparison, networks: dict[str, tuple[str, ...]], tuners: Sequence[str]
) -> None:
    """Raise InputError for tuners that the comparison does not have, or has no network for."""
    not_learned = [*comparison.fixed, *comparison.rules]
    for name in tuners:
        if name in not_learned or name in networks:
            continue
        known = ", ".join([*not_learned, *networks])
        if any(learned.name == name for learned in comparison.learned):
            what = (
                f"no packaged network of {name} was trained under {comparison.transport} "
                "and fits this fabric"
            )
            remedy = f"use some of: {known}; or train one (closloop train {name} --help)"
        else:
            what = f"{comparison.name} has no tuner {name!r}"
            remedy = f"{suggest(name, [*not_learned, *networks])}use some of: {known}"
        raise InputError.single("--tuners", what, remedy)


def fitting_networks(tuner: str, transport: str, testbed: Testbed) -> tuple[str, ...]:
    """Return the names of a tuner's packaged networks for a transport and a fabric.

    They are the same training from several seeds.
    """
    names = []
    for name in pretrained():
        card = json.loads((PRETRAINED / f"{name}.json").read_text(encoding="utf-8"))
        if card.get("tuner") != tuner or card.get("request", {}).get("params"):
            continue
        if transport_of(str(card.get("scenario", ""))) != transport:
            continue
        if not registry.check(tuner, {CHECKPOINT_PARAM: name}, testbed):
            names.append(name)
    return tuple(names)


def transport_of(scenario: str) -> str:
    """Return the congestion control of a training scenario, the text of a campaign file.

    Returns "" if it has several or cannot be read.
    """
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
    """Return the item of the list `tuners`; several networks are in rotation over repeats."""
    names = networks[0] if len(networks) == 1 else f"[{', '.join(networks)}]"
    return f"{{name: {tuner}, checkpoint: {names}}}"


MS = 1_000_000
_MAX_LOAD = 0.9
# Utilisation of uplinks by random pairs of hosts; the rest is left for bursts.
_MAX_UPLINK_UTILISATION = 0.8
# The measured time is as long as a NIC takes for so many bits: 10 ms at 25 Gbit/s. In it, 24 hosts
# send some 300 flows of WebSearch at a load of 60 %.
_WINDOW_BITS = 250_000_000
_MIN_WINDOW_NS, _MAX_WINDOW_NS = 5 * MS, 25 * MS
_MIN_INCAST_BYTES = 8_000
_MAX_FAN_IN = 16
# The drain is this many times as long as the workload's largest flow takes on an idle path.
_DRAIN_IDEALS = 10
_MIN_DRAIN_NS = 200 * MS


@dataclass(frozen=True)
class Incast:
    """Incasts: how many hosts send to one, bytes of each flow, and the time between them in ns."""

    fan_in: int
    size_bytes: int
    period_ns: int


def uplink_ratio(testbed: Testbed) -> float:
    """Return the utilisation of the busiest leaf's uplinks at a load of 1.

    Pairs of hosts are random. Returns 0 for a fabric without uplinks.
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


def usual_load(testbed: Testbed, load: float = 0.6) -> float:
    """Return `load`, or less where links between switches could not carry it, in steps of 0.05."""
    ratio = uplink_ratio(testbed)
    maximum = _MAX_UPLINK_UTILISATION / ratio if ratio else 1.0
    return load if maximum >= load else max(0.05, math.floor(maximum * 20) / 20)


def checked_load(load: float, testbed: Testbed) -> float:
    """Return the load; raise InputError if hosts or links between switches cannot carry it."""
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
    """Return how long to measure in ns: `_WINDOW_BITS` at the slowest NIC's rate, within bounds."""
    exact = _WINDOW_BITS * 10**9 // nic_bps(testbed)
    return max(_MIN_WINDOW_NS, min(_MAX_WINDOW_NS, _up(exact, MS)))


def drain_ns(testbed: Testbed, workload: str) -> int:
    """Return the drain in ns: how long flows may take after the last has started.

    An unfinished flow makes a trial invalid. A long drain costs nothing otherwise, because a trial
    ends when all flows have ended.
    """
    largest_bytes = load_workload(workload).points[-1][0]
    alone_ns = largest_bytes * 8 * 10**9 // nic_bps(testbed)
    return max(_MIN_DRAIN_NS, _up(_DRAIN_IDEALS * alone_ns, 100 * MS))


def incast(testbed: Testbed, size_bytes: int = 128_000) -> Incast:
    """Return incasts that fill at most half of a port's buffer, and a third of its line's time.

    Each of their flows has at most `size_bytes`.
    """
    fan_in = max(2, min(_MAX_FAN_IN, 2 * len(testbed.hosts) // 3))
    room_bytes = min(port.buffer_bytes for port in testbed.switch_ports) // 2
    while size_bytes * fan_in > room_bytes and size_bytes > _MIN_INCAST_BYTES:
        size_bytes //= 2
    lasts_ns = fan_in * size_bytes * 8 * 10**9 // nic_bps(testbed)
    return Incast(fan_in, size_bytes, max(MS, _up(3 * lasts_ns, MS)))


def nic_bps(testbed: Testbed) -> int:
    """Return the rate of the slowest NIC in bit/s."""
    return min(port.rate_bps for host in testbed.hosts for port in testbed.ports_of[host])


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
