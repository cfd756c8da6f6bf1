"""What a first campaign compares: published settings, rules, a learned tuner and its placebo.

A learned tuner is among them where a packaged network was trained under the campaign's transport.
Which network that is, its card says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from orchestration.core.errors import InputError, suggest
from orchestration.core.topology import Testbed
from orchestration.core.trial import CHECKPOINT_PARAM
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
class Chosen:
    """The arms of a campaign, and those that were left out but would fit.

    `without` names the learned tuners that have no packaged network for it.
    """

    arms: tuple[Arm, ...]
    others: tuple[Arm, ...] = ()
    without: tuple[str, ...] = field(default=())


def choose(comparison: Comparison, testbed: Testbed, wanted: Sequence[str] = ()) -> Chosen:
    """Return a comparison's arms on a testbed: the `wanted` ones, by default a fair set.

    That has everything but further learned tuners. Each learned one has its placebo beside it.
    Raises InputError for an unknown tuner, and for a learned one without a packaged network.
    """
    networks = {
        one.name: found
        for one in comparison.learned
        if (found := fitting(one.name, comparison.transport, testbed))
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
    return Chosen(tuple(taken), unused, tuple(without))


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


def fitting(tuner: str, transport: str, testbed: Testbed) -> tuple[str, ...]:
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
