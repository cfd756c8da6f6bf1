"""`closloop import containerlab`: make a testbed out of a lab of containerlab.

A lab has no tiers, rates and buffers: tiers follow from groups, kinds or links, and the user gives
the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from inventory.ansible_schema import GROUPS
from inventory.files import check_new, load_testbed, write_new
from inventory.schema import MAX_MTU_BYTES, MIN_MTU_BYTES
from inventory.strictyaml import in_order
from inventory.yamltree import MAX_FAULTS, flow
from orchestration.cli.options import Json
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.errors import InputError, Problem
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Device, LinkSpec, Testbed, reachable
from orchestration.core.units import (
    format_duration,
    format_rate,
    format_size,
    parse_duration_ns,
    parse_rate_bps,
    parse_size_bytes,
)
from orchestration.exchange.containerlab.read import Cable, LabFile, read_lab
from orchestration.exchange.mapping import tiers
from orchestration.exchange.source import parse_quantity

# The MTU of a link that gives none (constants/containerlab.go, DefaultLinkMTU).
_DEFAULT_MTU_BYTES = 9500
_MAX_CHARS = 31
# Enough digits for any whole number of the base unit.
_DIGITS = 12
_HOSTS = "--hosts"


@dataclass(frozen=True)
class LinkDefaults:
    """The values of links and switches that a lab does not give; None if the user does not, either.

    `rate_bps` is for links to hosts and `uplink_rate_bps` for links between switches, where a link
    has no rate of its own.
    """

    rate_bps: int | None = None
    uplink_rate_bps: int | None = None
    delay_ns: int = 1000
    mtu_bytes: int | None = None
    buffer_bytes: int = 16 * 10**6


@dataclass(frozen=True)
class ImportedLab:
    """A lab as a testbed. `names` has each node's device, `notes` what was decided or left out."""

    testbed: Testbed
    names: Mapping[str, str]
    cables: Sequence[Cable]
    notes: tuple[str, ...]


def to_testbed(
    lab: LabFile, link_defaults: LinkDefaults, *, name: str = "", hosts: Collection[str] = ()
) -> ImportedLab:
    """Return the testbed of a lab's linked nodes; `name` is by default the lab's.

    `hosts` are names of nodes, or patterns such as `client*`. Without them, the tiers are those of
    the nodes' groups if every node has a group with an inventory's name. Otherwise the Linux nodes
    are hosts if the lab has other kinds too, and the nodes with one link if it has not. A switch's
    tier is its distance to the hosts. Raises InputError for a lab that is no Clos fabric.
    """
    ends = {end.node for cable in lab.cables for end in cable.ends}
    linked = [node for node in lab.nodes if node in ends]
    if not linked:
        what = "has no link between two nodes"
        if lab.left_out:
            what += f"; not counted: {', '.join(lab.left_out[:3])}"
        raise InputError.single(lab.document.name, what, "give a lab whose nodes are linked")
    tier, why = _tiers(lab, linked, hosts)
    names, problems = _names(lab, linked)
    problems += _shape_problems(lab, tier)
    problems += _value_problems(lab, tier, link_defaults)
    chosen = name or lab.name.lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,62}", chosen):
        what = f"{chosen!r} is not a name for a testbed"
        remedy = "give one with --name: lower-case letters, digits, '-', '_', '.'"
        problems.append(lab.document.problem(("name",), what, remedy))
    if problems:
        raise InputError(in_order(problems)[:MAX_FAULTS])
    mtu_bytes, about_mtu = _mtu(lab, link_defaults)
    ordered = sorted(linked, key=lambda node: tier[node] > 0)
    testbed = Testbed.build(
        chosen,
        [Device(names[n], "switch" if tier[n] else "host", tier[n]) for n in ordered],
        [
            LinkSpec(
                names[cable.ends[0].node],
                names[cable.ends[1].node],
                _rate_bps(cable, tier, link_defaults) or 0,
                cable.delay_ns or link_defaults.delay_ns,
            )
            for cable in lab.cables
        ],
        mtu_bytes=mtu_bytes,
        buffer_bytes=link_defaults.buffer_bytes,
        source=f"the containerlab file {Path(lab.document.name).name}",
    )
    unlinked = [node for node in lab.nodes if node not in tier]
    notes = [
        why,
        *about_mtu,
        *(f"left out: {text}" for text in lab.left_out),
        *(f"left out: node {node}, which has no link to another" for node in unlinked),
        *(f"node {node} is called {names[node]}" for node in linked if names[node] != node),
    ]
    return ImportedLab(testbed, names, lab.cables, tuple(notes))


def write_testbed(path: Path, lab: ImportedLab) -> None:
    """Write the testbed as a new file, from which `load_testbed` reads the same testbed.

    Raises InputError if the file exists, or cannot be written.
    """
    write_new(path, testbed_text(lab))
    try:
        load_testbed(str(path.absolute()))
    except InputError:
        path.unlink()
        raise


def testbed_text(lab: ImportedLab) -> str:
    """Return the testbed file; a comment on each link has the lab's names of its ends."""
    testbed = lab.testbed
    buffer_bytes = next(port.buffer_bytes for port in testbed.switch_ports)
    lines = [
        "# Written by `closloop import containerlab`. Comments have the lab's names of link ends.",
        "kind: custom",
        f"name: {flow(testbed.name)}",
        f"source: {flow(testbed.source)}",
        f"mtu: {testbed.mtu_bytes}B",
        f"buffer: {format_size(buffer_bytes, _DIGITS)}",
        f"hosts: {flow(testbed.hosts)}",
        "switches:",
        *(
            f"  - {flow({'name': name, 'tier': testbed.device[name].tier})}"
            for name in testbed.switches
        ),
        "links:",
    ]
    for link, cable in zip(testbed.links, lab.cables, strict=True):
        a, b = (testbed.ports[end].device for end in (link.a, link.b))
        fields = {
            "a": a,
            "b": b,
            "rate": format_rate(link.rate_bps, _DIGITS),
            "delay": format_duration(link.delay_ns, _DIGITS),
        }
        lines.append(f"  - {flow(fields)}  # {' - '.join(map(str, cable.ends))}")
    return "\n".join(lines) + "\n"


def _tiers(
    lab: LabFile, linked: Sequence[str], patterns: Collection[str]
) -> tuple[dict[str, int], str]:
    """Return the tier of each linked node, and the rule. Raises InputError for unknown hosts."""
    groups = [lab.nodes[node].group for node in linked]
    if not patterns and all(group in GROUPS for group in groups):
        tier = {node: GROUPS.index(group) for node, group in zip(linked, groups, strict=True)}
        return tier, "tiers are those of the nodes' groups"
    if patterns:
        hosts = _matching(linked, patterns)
        why = f"hosts are those that {_HOSTS} names"
    elif len({lab.nodes[node].kind == "linux" for node in linked}) > 1:
        hosts = [node for node in linked if lab.nodes[node].kind == "linux"]
        why = f"hosts are the nodes of kind linux; {_HOSTS} chooses others"
    else:
        count = Counter(end.node for cable in lab.cables for end in cable.ends)
        hosts = [node for node in linked if count[node] == 1]
        why = f"hosts are the nodes with one link; {_HOSTS} chooses others"
    number = {node: n for n, node in enumerate(linked)}
    ends = [(number[cable.ends[0].node], number[cable.ends[1].node]) for cable in lab.cables]
    by_number = tiers(len(linked), [number[node] for node in hosts], ends)
    return dict(zip(linked, by_number, strict=True)), why


def _matching(linked: Sequence[str], patterns: Collection[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(node, pattern) for node in linked):
            what = f"no linked node is called {pattern!r}"
            raise InputError.single(_HOSTS, what, f"nodes are {', '.join(linked[:8])}")
    return [node for node in linked if any(fnmatchcase(node, p) for p in patterns)]


def _names(lab: LabFile, linked: Sequence[str]) -> tuple[dict[str, str], list[Problem]]:
    """Return each node's name as a device, and the problems of names that cannot be one."""
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    problems = []
    for node in linked:
        name = re.sub(r"[^a-z0-9_]", "_", node.lower())
        name = name if name[0].isalpha() else f"n{name}"
        loc = lab.nodes[node].loc
        if len(name) > _MAX_CHARS:
            what = f"node {node!r} has more than the {_MAX_CHARS} characters of a device's name"
            problems.append(lab.document.problem(loc, what, "give it a shorter name"))
        elif name in taken:
            what = f"nodes {taken[name]!r} and {node!r} would both be device {name!r}"
            problems.append(lab.document.problem(loc, what, "rename one of the two"))
        names[node] = name
        taken.setdefault(name, node)
    return names, problems


def _shape_problems(lab: LabFile, tier: Mapping[str, int]) -> Iterator[Problem]:
    """Yield the problems that keep a lab from being a Clos fabric of hosts below switches."""
    document = lab.document
    hosts = [node for node, number in tier.items() if number == 0]
    remedy = f"say which nodes are hosts, with {_HOSTS} 'client*'"
    if len(hosts) < 2 or len(hosts) == len(tier):
        what = f"{len(hosts)} of {len(tier)} linked nodes are hosts: a testbed has two or more"
        yield document.problem(("topology", "nodes"), f"{what}, and a switch", remedy)
        return
    if max(tier.values()) >= len(GROUPS):
        what = f"switches are in {max(tier.values())} tiers: a testbed has {len(GROUPS) - 1}"
        yield document.problem(("topology", "nodes"), what, remedy)
    near: dict[str, list[str]] = {node: [] for node in tier}
    for cable in lab.cables:
        a, b = (end.node for end in cable.ends)
        near[a].append(b)
        near[b].append(a)
        if tier[a] == tier[b]:
            both, correction = "hosts", remedy
            if tier[a]:
                both, correction = f"in tier {tier[a]}", "correct the group of one"
            what = f"{a} and {b} are linked, and both are {both}: links join two tiers"
            yield document.problem(cable.loc, what, f"{correction}, or remove the link")
    start = next(node for node, number in tier.items() if number)
    reached = reachable(start, lambda node: near[node] if tier[node] else ())
    for node in tier:
        if node not in reached:
            what = f"{node} is not connected to {start} (hosts do not forward)"
            yield document.problem(lab.nodes[node].loc, what, "add the missing links")


def _rate_bps(cable: Cable, tier: Mapping[str, int], link_defaults: LinkDefaults) -> int | None:
    if cable.rate_bps is not None:
        return cable.rate_bps
    to_host = any(tier[end.node] == 0 for end in cable.ends)
    return (
        link_defaults.rate_bps
        if to_host
        else link_defaults.uplink_rate_bps or link_defaults.rate_bps
    )


def _value_problems(
    lab: LabFile, tier: Mapping[str, int], link_defaults: LinkDefaults
) -> Iterator[Problem]:
    for cable in lab.cables:
        if _rate_bps(cable, tier, link_defaults) is None:
            what = f"the link {cable.ends[0]} - {cable.ends[1]} has no rate: a lab has none"
            remedy = "give one with --rate 25Gbps, and --uplink-rate for links between switches"
            yield lab.document.problem(cable.loc, what, remedy)
            break
    for cable in lab.cables:
        own = cable.mtu_bytes
        if link_defaults.mtu_bytes is None and own is not None and own < MIN_MTU_BYTES:
            what = f"an MTU of {own}B: testbeds have {MIN_MTU_BYTES}B or more"
            yield lab.document.problem((*cable.loc, "mtu"), what, "raise it, or give --mtu")
    mtu_bytes = link_defaults.mtu_bytes
    if mtu_bytes is not None and not MIN_MTU_BYTES <= mtu_bytes <= MAX_MTU_BYTES:
        what = f"an MTU of {mtu_bytes}B is out of range"
        yield Problem("--mtu", what, f"use {MIN_MTU_BYTES}B to {MAX_MTU_BYTES}B")
    minimum = 2 * ((mtu_bytes or MAX_MTU_BYTES) + ETHERNET_HEADER_BYTES)
    if link_defaults.buffer_bytes < minimum:
        what = (
            f"a buffer of {format_size(link_defaults.buffer_bytes)} may hold less than two packets"
        )
        yield Problem("--buffer", what, f"use {minimum}B or more")


def _mtu(lab: LabFile, link_defaults: LinkDefaults) -> tuple[int, list[str]]:
    """Return the fabric's MTU in bytes, which is the smallest of its links', and notes on it."""
    if link_defaults.mtu_bytes is not None:
        return link_defaults.mtu_bytes, []
    of_links = {cable.mtu_bytes or _DEFAULT_MTU_BYTES for cable in lab.cables}
    mtu_bytes = min(*of_links, MAX_MTU_BYTES)
    if of_links == {mtu_bytes}:
        return mtu_bytes, []
    sizes = ", ".join(f"{size}B" for size in sorted(of_links))
    return mtu_bytes, [f"the MTU is {mtu_bytes}B: links have {sizes}; --mtu sets another"]


@dataclass(frozen=True)
class _LinkDefaultOptions:
    """Options: the values of links and switches that a lab does not give."""

    rate: Annotated[str, "The rate of links to hosts, like 25Gbps."] = ""
    uplink_rate: Annotated[str, "The rate of links between switches (default: --rate)."] = ""
    delay: Annotated[str, "The propagation delay of each link."] = "1us"
    mtu: Annotated[str, "The fabric's MTU (default: the smallest of the links')."] = ""
    buffer: Annotated[str, "The buffer of each switch port."] = "16MB"

    def link_defaults(self) -> LinkDefaults:
        return LinkDefaults(
            rate_bps=parse_quantity("--rate", self.rate, parse_rate_bps, 1),
            uplink_rate_bps=parse_quantity("--uplink-rate", self.uplink_rate, parse_rate_bps, 1),
            delay_ns=parse_quantity("--delay", self.delay, parse_duration_ns, 1)
            or LinkDefaults.delay_ns,
            mtu_bytes=parse_quantity("--mtu", self.mtu, parse_size_bytes, 1),
            buffer_bytes=parse_quantity("--buffer", self.buffer, parse_size_bytes, 1)
            or LinkDefaults.buffer_bytes,
        )


def import_lab(
    file: Annotated[Path, "A topology file, *.clab.yml."],
    *,
    out: Annotated[Path, "--out", "-o", "The testbed file to write."],
    name: Annotated[str, "The testbed's name (default: the lab's)."] = "",
    hosts: Annotated[
        str, "The nodes that are hosts, separated by commas; client* stands for several."
    ] = "",
    link_options: _LinkDefaultOptions,
    as_json: Json = False,
) -> None:
    """Make a testbed file out of a lab of containerlab: its nodes, and the links between them.

    A lab has no rates: --rate gives them. Links to bridges, to the machine itself and out of the
    lab are left out; notes name them.

    Example: closloop import containerlab clos02.clab.yml --rate 25Gbps --uplink-rate 100Gbps
    -o clos02.yml
    """
    check_new(out)
    link_defaults = link_options.link_defaults()
    patterns = tuple(word.strip() for word in hosts.split(",") if word.strip())
    with waiting("reading"):
        imported = to_testbed(read_lab(file), link_defaults, name=name, hosts=patterns)
        write_testbed(out, imported)
    if as_json:
        data = {
            "path": str(out),
            "testbed": imported.testbed.name,
            "tiers": {device.name: device.tier for device in imported.testbed.devices},
            "links": len(imported.testbed.links),
            "mtu_bytes": imported.testbed.mtu_bytes,
            "notes": imported.notes,
        }
        print_json(data)
        return
    testbed = imported.testbed
    typer.echo(
        f"{out}: {len(testbed.hosts)} hosts, {len(testbed.switches)} switches, "
        f"{len(testbed.links)} links"
    )
    for note in imported.notes:
        typer.echo(f"  note: {note}")
    # a path without a folder could be taken for the name of a testbed
    shown = out if out.parent.parts else f"./{out}"
    typer.echo(f"next: closloop inventory show {shown}")
