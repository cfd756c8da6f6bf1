"""Read the nodes and links of a containerlab topology file, as containerlab itself reads them.

From the sources of containerlab 0.79 (commit 39ff2b7): links/link.go and link_brief.go (the two
forms of a link), types/topology.go (`GetNodeKind`, `GetNodeGroup`), core/clab.go (nodes that are
not listed). Fields that are not about nodes and links are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from inventory.strictyaml import Document, Loc, in_order, read, suggest
from inventory.yamltree import MAX_FAULTS
from orchestration.core.errors import InputError, Problem
from orchestration.core.problems import of_value
from orchestration.core.units import UnitError, parse_duration_ns, parse_rate_bps
from orchestration.exchange.containerlab.lab import DELAY, RATE

# Types of links between two nodes, and of links that leave the lab or end nowhere.
_BETWEEN = ("veth", "veth-stitch")
_OUTWARD = ("mgmt-net", "host", "macvlan", "vxlan", "vxlan-stitch", "dummy")
# What an end of a link may name although it is not a node.
_SPECIAL = ("macvlan", "mgmt-net", "host")
# Kinds of nodes that are no devices: they join any number of links, or are the machine itself.
_NO_DEVICE = ("bridge", "ovs-bridge", "host")
# With more nodes than any lab has, no similar name is searched for, because that takes long.
_MANY_NODES = 1000
# One end, `node:interface`; an interface may be called ethernet-1/1 or 1/1/c1/1.
_END = re.compile(r"([^\s:]+):(\S+)")


class _Part(BaseModel):
    """A part of the file with the fields that are read; its other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Node(_Part):
    kind: str = ""
    group: str = ""


class _Link(_Part):
    type: str = ""
    endpoints: tuple[Any, ...] = ()
    endpoint: Any = None
    mtu: int | None = None
    vars: dict[str, Any] | None = None


class _Topology(_Part):
    defaults: _Node | None = None
    kinds: dict[str, _Node | None] | None = None
    groups: dict[str, _Node | None] | None = None
    nodes: dict[str, _Node | None]
    links: tuple[_Link, ...] = ()


class _File(_Part):
    name: str
    topology: _Topology


@dataclass(frozen=True)
class Node:
    """A node with its kind and group, which may be inherited."""

    name: str
    kind: str
    group: str
    loc: Loc


@dataclass(frozen=True)
class End:
    """One end of a cable: a node's name and its interface's."""

    node: str
    interface: str

    def __str__(self) -> str:
        return f"{self.node}:{self.interface}"


@dataclass(frozen=True)
class Cable:
    """A link between two nodes. What the file does not give is None."""

    ends: tuple[End, End]
    mtu_bytes: int | None
    rate_bps: int | None
    delay_ns: int | None
    loc: Loc


@dataclass(frozen=True)
class LabFile:
    """A topology file's nodes and cables. `left_out` names the links that do not join two nodes."""

    document: Document
    name: str
    nodes: Mapping[str, Node]
    cables: tuple[Cable, ...]
    left_out: tuple[str, ...]


def read_lab(path: Path) -> LabFile:
    """Read a topology file. Raises InputError with all problems and their lines."""
    document = read(path)
    checked, problems = document.check(_File)
    if checked is None or problems:
        raise InputError(in_order(problems))
    nodes = _nodes(checked.topology)
    links = _Links(document, nodes)
    for number, link in enumerate(checked.topology.links):
        links.add(link, ("topology", "links", number))
        if len(links.problems) >= MAX_FAULTS:
            break
    if problems := [*_name_problems(document, checked.name, nodes), *links.problems]:
        raise InputError(in_order(problems)[:MAX_FAULTS])
    return LabFile(document, checked.name, nodes, tuple(links.cables), tuple(links.left_out))


def _nodes(topology: _Topology) -> dict[str, Node]:
    """Return the nodes, whose kinds and groups are inherited in containerlab's order."""
    defaults = topology.defaults or _Node()
    kinds, groups = topology.kinds or {}, topology.groups or {}

    def kind_of(group: str) -> str:
        return (groups.get(group) or _Node()).kind

    result = {}
    for name, node in topology.nodes.items():
        own = node or _Node()
        kind = own.kind or kind_of(own.group) or kind_of(defaults.group) or defaults.kind
        group = own.group or (kinds.get(kind) or _Node()).group or defaults.group
        result[name] = Node(name, kind, group, ("topology", "nodes", name))
    return result


def _name_problems(document: Document, name: str, nodes: Mapping[str, Node]) -> Iterator[Problem]:
    """Yield problems of names and kinds: variables in them, and missing kinds."""
    texts: list[tuple[Loc, str]] = [(("name",), name)]
    texts += [(n.loc, text) for n in nodes.values() for text in (n.name, n.kind, n.group)]
    yield from (_variable(document, loc, text) for loc, text in texts if "$" in text)
    for node in nodes.values():
        if not node.kind:
            what = f"node {node.name!r} has no kind, and none to inherit"
            yield document.problem(node.loc, what, "add one, like kind: linux")


def _variable(document: Document, loc: Loc, text: str) -> Problem:
    what = f"{text!r} has a variable, whose value only containerlab's environment has"
    return document.problem(loc, what, "write its value")


class _Links:
    """Collects cables, links that are left out, and problems."""

    def __init__(self, document: Document, nodes: Mapping[str, Node]) -> None:
        self._document = document
        self._nodes = nodes
        self._lines: dict[End, str] = {}
        self.cables: list[Cable] = []
        self.left_out: list[str] = []
        self.problems: list[Problem] = []

    def _problem(self, loc: Loc, what: str, remedy: str) -> None:
        self.problems.append(self._document.problem(loc, what, remedy))

    def add(self, link: _Link, loc: Loc) -> None:
        kind = link.type.strip().lower()
        if kind in _OUTWARD:
            self._leave_out(loc, f"of type {kind}")
            return
        if kind and kind not in (*_BETWEEN, "brief"):
            known = (*_BETWEEN, *_OUTWARD)
            remedy = f"{suggest(kind, known)}containerlab knows {', '.join(known)}"
            self._problem((*loc, "type"), f"no type of link is called {link.type!r}", remedy)
            return
        if len(link.endpoints) != 2:
            what = f"a link has two endpoints, not {len(link.endpoints)}"
            self._problem((*loc, "endpoints"), what, 'write endpoints: ["a:eth1", "b:eth1"]')
            return
        brief = kind in ("", "brief")
        read_end = self._brief_end if brief else self._full_end
        ends = [
            read_end(end, (*loc, "endpoints", number)) for number, end in enumerate(link.endpoints)
        ]
        if ends[0] is None or ends[1] is None:
            return
        special = [end.node for end in ends if end and self._is_special(end.node, brief)]
        if special:
            self._leave_out(loc, f"to {special[0]}")
        elif self._are_known((ends[0], ends[1]), loc):
            self._add_cable((ends[0], ends[1]), link, loc)

    def _is_special(self, name: str, brief: bool) -> bool:
        """Return whether an end is no node; in the brief form, even if a node has that name."""
        if brief:
            return name.strip().lower() in _SPECIAL
        return name in _SPECIAL and name not in self._nodes

    def _leave_out(self, loc: Loc, why: str) -> None:
        self.left_out.append(f"the link in line {_line(self._document, loc)}, {why}")

    def _brief_end(self, end: object, loc: Loc) -> End | None:
        match = _END.fullmatch(end) if isinstance(end, str) else None
        if match is None:
            what = f"an end of a link is {end!r}, not `node:interface`"
            if isinstance(end, dict):
                what = "an end of a link is a mapping, which only links with a type have"
            self._problem(loc, what, 'write "leaf1:eth1", or add type: veth to the link')
            return None
        return self._checked(End(match[1], match[2]), loc)

    def _full_end(self, end: object, loc: Loc) -> End | None:
        words = [end.get(key) for key in ("node", "interface")] if isinstance(end, dict) else []
        if not words or not all(isinstance(w, str) and re.fullmatch(r"\S+", w) for w in words):
            what = "an end of a link with a type has a node and an interface"
            self._problem(loc, what, "write {node: leaf1, interface: eth1}")
            return None
        return self._checked(End(str(words[0]), str(words[1])), loc)

    def _checked(self, end: End, loc: Loc) -> End | None:
        if "$" not in str(end):
            return end
        self.problems.append(_variable(self._document, loc, str(end)))
        return None

    def _are_known(self, ends: tuple[End, End], loc: Loc) -> bool:
        """Return whether a link joins two devices of the lab; if not, report or leave it out."""
        unknown = [number for number, end in enumerate(ends) if end.node not in self._nodes]
        for number in unknown:
            name = ends[number].node
            similar = suggest(name, self._nodes) if len(self._nodes) <= _MANY_NODES else ""
            remedy = f"{similar}list it under nodes"
            self._problem((*loc, "endpoints", number), f"no node {name!r}", remedy)
        if unknown:
            return False
        for end in ends:
            kind = self._nodes[end.node].kind
            if kind in _NO_DEVICE:
                self._leave_out(loc, f"to {end.node}, of kind {kind}")
                return False
        if ends[0].node == ends[1].node:
            what = f"a link from {ends[0].node} to itself"
            self._problem(loc, what, "link two nodes")
            return False
        return True

    def _add_cable(self, ends: tuple[End, End], link: _Link, loc: Loc) -> None:
        for number, end in enumerate(ends):
            if end in self._lines:
                what = f"{end} is in another link already, in line {self._lines[end]}"
                self._problem((*loc, "endpoints", number), what, "give each link its interface")
            self._lines.setdefault(end, _line(self._document, loc))
        variables = link.vars or {}
        rate_bps, delay_ns = (
            self._quantity(variables, key, (*loc, "vars", key), parse)
            for key, parse in ((RATE, parse_rate_bps), (DELAY, parse_duration_ns))
        )
        self.cables.append(Cable(ends, link.mtu, rate_bps, delay_ns, loc))

    def _quantity(self, variables: Mapping[str, Any], key: str, loc: Loc, parse: Any) -> int | None:
        if key not in variables:
            return None
        try:
            value: int = parse(variables[key])
        except UnitError as error:
            self.problems.append(self._document.at(loc, of_value(error, key)))
            return None
        if value < 1:
            self._problem(loc, f"{key} is 0", "use more than 0, or remove it")
        return value


def _line(document: Document, loc: Loc) -> str:
    return document.where(loc).rpartition(":")[2]
