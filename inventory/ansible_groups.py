"""Ansible's view of an inventory file: its groups, its hosts, and each host's merged variables.

Variables are merged as in Ansible: those of `all`, then of groups from the outermost inwards (at
equal depth by `ansible_group_priority`, then by name), then the host's own. The last one wins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from inventory.ansible_schema import DEVICE_NAMES, PASSWORDS, PREFIX, RACK_NAMES, REFUSED
from inventory.strictyaml import Document, Loc, suggest
from orchestration.core.errors import Problem
from orchestration.core.topology import reachable

ALL = "all"
_PARTS = ("vars", "hosts", "children")
_KNOWN = (*DEVICE_NAMES, *RACK_NAMES)
_READ = frozenset((*_KNOWN, *REFUSED, "ansible_group_priority", "<<"))
_REFERENCES = ("tag ", "alias ", "anchor ")
# Variables by name, with their path in the file.
Variables = dict[str, Loc]


@dataclass
class Group:
    """A group as the file writes it: its path in the file, variables, parents and own hosts."""

    name: str
    loc: Loc
    variables: Variables = field(default_factory=dict)
    parents: dict[str, None] = field(default_factory=dict)
    hosts: dict[str, Loc] = field(default_factory=dict)


class Groups:
    """Groups and hosts of an inventory file.

    `problems` are faults of the file's structure. `hosts` has the variables that are written at
    each host itself, in the file's order, and `locations` the path at which each is named first.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.groups: dict[str, Group] = {ALL: Group(ALL, ())}
        self.hosts: dict[str, Variables] = {}
        self.locations: dict[str, Loc] = {}
        for name, body in document.data.items():
            self._group(name, body, (name,), ALL if name != ALL else "")
        self.problems += self._loops()

    def hosts_of(self, name: str) -> dict[str, Loc]:
        """Return the hosts of a group and its subgroups, and where each is named first."""
        result: dict[str, Loc] = {}
        for group in self.groups.values():
            if group.name == name or name in self._ancestors(group.name):
                for host, loc in group.hosts.items():
                    result.setdefault(host, loc)
        return result

    def merged(self, host: str) -> Variables:
        """Return every variable of a host, each with the path of the value that wins."""
        member = {ALL: None}
        for group in self.groups.values():
            if host in group.hosts:
                member[group.name] = None
                member.update(self._ancestors(group.name))
        result: Variables = {}
        for name in sorted(member, key=self._rank):
            result.update(self.groups[name].variables)
        result.update(self.hosts[host])
        return result

    def every_variable(self) -> Iterator[tuple[str, Loc]]:
        """Yield every variable of the file and its path, overridden ones included."""
        for group in self.groups.values():
            yield from group.variables.items()
        for variables in self.hosts.values():
            yield from variables.items()

    def value(self, loc: Loc) -> Any:
        """Return the value at a path of the file."""
        here: Any = self.document.data
        for part in loc:
            here = here[part]
        return here

    def view(self, variables: Variables, fallback: Loc) -> Document:
        """Return variables as a separate document whose problems name the variables' lines.

        A problem that belongs to no variable names `fallback`.
        """
        lines: dict[Loc, int] = {(): self.document.lines[fallback]}
        for name, loc in variables.items():
            for path in self._paths_below.get(loc, ()):
                lines[(name, *path[len(loc) :])] = self.document.lines[path]
        data = {name: self.value(loc) for name, loc in variables.items()}
        return Document(self.document.name, data, lines)

    @cached_property
    def _paths_below(self) -> dict[Loc, list[Loc]]:
        """All paths of the file, by the variable that contains them."""
        result: dict[Loc, list[Loc]] = {loc: [] for _, loc in self.every_variable()}
        for path in self.document.lines:
            for length in range(1, len(path) + 1):
                if path[:length] in result:
                    result[path[:length]].append(path)
                    break
        return result

    def _group(self, name: str, body: Any, loc: Loc, parent: str) -> None:
        group = self.groups.setdefault(name, Group(name, loc))
        if parent and name != ALL:
            group.parents[parent] = None
        for part in self._mapping(body, loc, f"group {name!r}"):
            if part not in _PARTS:
                remedy = f"{suggest(part, _PARTS)}use {', '.join(_PARTS)}"
                what = f"group {name!r} has an unknown part {part!r}"
                self.problems.append(self.document.problem((*loc, part), what, remedy))
        parts = body if isinstance(body, dict) else {}
        inside = {
            part: self._mapping(parts.get(part), (*loc, part), f"'{part}'") for part in _PARTS
        }
        group.variables.update({name: (*loc, "vars", name) for name in inside["vars"]})
        for host, variables in inside["hosts"].items():
            at = (*loc, "hosts", host)
            group.hosts.setdefault(host, at)
            self.locations.setdefault(host, at)
            names = self._mapping(variables, at, f"host {host!r}")
            self.hosts.setdefault(host, {}).update({name: (*at, name) for name in names})
        for child, inner in inside["children"].items():
            self._group(child, inner, (*loc, "children", child), name)

    def _mapping(self, value: Any, loc: Loc, name: str) -> dict[str, Any]:
        """Return a mapping, or an empty one for no value; report anything else."""
        if isinstance(value, dict):
            return value
        if value is not None:
            remedy = "write `name:` lines below it, as in a standard Ansible YAML inventory"
            self.problems.append(self.document.problem(loc, f"{name} is not a mapping", remedy))
        return {}

    def _ancestors(self, name: str) -> dict[str, None]:
        parents = self.groups[name].parents
        return dict.fromkeys(
            ancestor
            for parent in parents
            for ancestor in reachable(parent, lambda name: self.groups[name].parents)
        )

    def _loops(self) -> Iterator[Problem]:
        for group in self.groups.values():
            if group.name in self._ancestors(group.name):
                what = f"group {group.name!r} is inside itself"
                yield self.document.problem(group.loc, what, "take it out of its own children")
                # Break the cycle: depths are computed later and must be finite.
                group.parents = {ALL: None}

    def _rank(self, name: str) -> tuple[int, int, str]:
        priority = self.groups[name].variables.get("ansible_group_priority")
        value = self.value(priority) if priority else 1
        return self._depth(name), value if isinstance(value, int) else 1, name

    def _depth(self, name: str) -> int:
        return max((self._depth(parent) + 1 for parent in self.groups[name].parents), default=0)


def inventory_problems(groups: Groups, path: Path) -> list[Problem]:
    """Return every problem of the inventory file and of the variable folders beside it."""
    problems = (_yaml_faults(groups), _variable_problems(groups), _folder_problems(path))
    return [*groups.problems, *chain.from_iterable(problems)]


def _is_read(variable: str) -> bool:
    return variable in _READ or variable.startswith(PREFIX)


def _yaml_faults(groups: Groups) -> Iterator[Problem]:
    """Yield what is not plain YAML, except tags and references in variables that are not read."""
    document = groups.document
    variables = {loc: name for name, loc in groups.every_variable()}
    only_foreign: dict[int, bool] = {}
    for path, line in document.lines.items():
        prefixes = (path[:length] for length in range(1, len(path) + 1))
        name = next((variables[prefix] for prefix in prefixes if prefix in variables), None)
        foreign = name is not None and not _is_read(name)
        only_foreign[line] = foreign and only_foreign.get(line, True)
    lines = sorted(only_foreign)
    for fault in document.faults:
        line = int(fault.where.rpartition(":")[2])
        starts = lines[max(0, bisect_right(lines, line) - 1)]
        if not (fault.what.startswith(_REFERENCES) and only_foreign[starts]):
            yield fault


def _variable_problems(groups: Groups) -> Iterator[Problem]:
    """Yield variables that the file must not have, such as unknown `closloop_*` and passwords."""
    document = groups.document
    ours = tuple(name for name in _KNOWN if name.startswith(PREFIX))
    for name, loc in groups.every_variable():
        if name in PASSWORDS:
            remedy = (
                "remove it, and change the password if others could read it; log in with a key, "
                "or be asked with --ask-pass and --ask-become-pass (vaults are not read)"
            )
            yield document.problem(loc, f"{name} is a password in a file", remedy)
        elif name in REFUSED:
            yield document.problem(loc, f"closloop does not read {name}", REFUSED[name])
        elif name == "<<":
            yield document.problem(loc, "merge keys are not accepted", "write the variables out")
        elif name.startswith(PREFIX) and name not in _KNOWN:
            remedy = f"{suggest(name, ours)}use one of {', '.join(ours)}"
            yield document.problem(loc, f"unknown variable {name!r}", remedy)
        elif name in RACK_NAMES and loc[:-1] != (ALL, "vars"):
            remedy = "move it to `vars` of group `all`"
            yield document.problem(loc, f"{name} applies to the whole rack", remedy)
        elif name == "closloop_links" and loc[-2] == "vars":
            remedy = "write each device's links below the device's name"
            yield document.problem(loc, f"{name} belongs to one device, not to a group", remedy)


def _folder_problems(path: Path) -> Iterator[Problem]:
    """Yield files beside the inventory from which Ansible alone would read such variables."""
    for folder in ("group_vars", "host_vars"):
        for file in sorted((path.parent / folder).rglob("*")):
            if not file.is_file():
                continue
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                name = line.partition(":")[0].strip(" '\"")
                if _is_read(name) or name in PASSWORDS:
                    what = f"{name} is in a folder that closloop does not read"
                    yield Problem(f"{file}:{number}", what, f"move it to {path.name}")
