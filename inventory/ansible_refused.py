"""What an inventory is refused for before its variables are read: YAML, names, passwords, places.

Variables that are neither ours nor Ansible's for logging in may be anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from inventory.ansible_groups import ALL, Groups
from inventory.ansible_schema import DEVICE_NAMES, PASSWORDS, PREFIX, RACK_NAMES, REFUSED
from inventory.strictyaml import suggest
from orchestration.model.errors import Problem

_KNOWN = (*DEVICE_NAMES, *RACK_NAMES)
_OURS = frozenset((*_KNOWN, *REFUSED, "ansible_group_priority", "<<"))
_REFERENCES = ("tag ", "alias ", "anchor ")


def refusals(groups: Groups, path: Path) -> list[Problem]:
    """Return everything that the file, or a folder beside it, is refused for."""
    return [
        *groups.problems,
        *_yaml_faults(groups),
        *_variable_problems(groups),
        *_folder_problems(path),
    ]


def _is_ours(variable: str) -> bool:
    return variable in _OURS or variable.startswith(PREFIX)


def _yaml_faults(groups: Groups) -> Iterator[Problem]:
    """Yield what is no plain YAML, but for tags and references in foreign variables."""
    document = groups.document
    variables = {loc: name for name, loc in groups.every_variable()}
    only_foreign: dict[int, bool] = {}
    for path, line in document.lines.items():
        prefixes = (path[:length] for length in range(1, len(path) + 1))
        name = next((variables[prefix] for prefix in prefixes if prefix in variables), None)
        foreign = name is not None and not _is_ours(name)
        only_foreign[line] = foreign and only_foreign.get(line, True)
    lines = sorted(only_foreign)
    for fault in document.faults:
        line = int(fault.where.rpartition(":")[2])
        starts = lines[max(0, bisect_right(lines, line) - 1)]
        if not (fault.what.startswith(_REFERENCES) and only_foreign[starts]):
            yield fault


def _variable_problems(groups: Groups) -> Iterator[Problem]:
    """Yield variables that have no place in the file: unknown ones of ours, passwords, others."""
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
            yield document.problem(loc, f"{name} is of the whole rack", remedy)
        elif name == "closloop_links" and loc[-2] == "vars":
            remedy = "write each device's own below its name"
            yield document.problem(loc, f"{name} is of one device, not of a group", remedy)


def _folder_problems(path: Path) -> Iterator[Problem]:
    """Yield files beside the inventory that Ansible would take variables of ours from."""
    for folder in ("group_vars", "host_vars"):
        for file in sorted((path.parent / folder).rglob("*")):
            if not file.is_file():
                continue
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                name = line.partition(":")[0].strip(" '\"")
                if _is_ours(name) or name in PASSWORDS:
                    what = f"{name} is in a folder that closloop does not read"
                    yield Problem(f"{file}:{number}", what, f"move it to {path.name}")
