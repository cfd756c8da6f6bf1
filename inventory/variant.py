"""Testbeds of which some fields are replaced, by their names: `graphcc {buffer: 8MB}`.

Such a name has the name or path of another testbed, and the fields that replace its own, as a flow
mapping of YAML with sorted keys. It says all of the testbed, so that a trial can be known by it.
`inventory.files` loads it as a file with these fields and `like: graphcc`, except that a mapping
replaces only the fields that it has: `{uplink: {rate: 50Gbps}}` keeps the uplinks' delay. `none`
says a default of the file that is none: `{slow_links: none}` makes all links equal again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML

from inventory.yamltree import flow

# The field that names the other testbed.
LIKE = "like"
# The fields of a testbed's file that only describe it.
DESCRIPTIVE_FIELDS = ("name", "description", "source")
_MAX_CHARS = 63  # of a testbed's own name


def variant_name(fields: Mapping[str, Any]) -> str:
    """Return the name of the testbed that `{like: NAME, field: value, …}` describes."""
    own = {key: value for key, value in fields.items() if key != LIKE}
    return f"{fields[LIKE]} {flow(_sorted(own))}" if own else str(fields[LIKE])


def split_name(name: str) -> tuple[str, str]:
    """Return the name or path of the other testbed, and the fields as text, "" without any."""
    base, between, fields = name.partition(" {")
    return (base, f"{{{fields}") if between and name.endswith("}") else (name, "")


def is_path(name: str) -> bool:
    """Return whether a testbed's name, or what it is a variant of, is the path of a file."""
    base = split_name(name)[0]
    return "/" in base or base.endswith((".yml", ".yaml"))


def relative_to(folder: str, name: str) -> str:
    """Return a testbed's name with its path, if it is one, resolved against `folder`."""
    base, fields = split_name(name)
    moved = os.path.normpath(os.path.join(folder, base)) if is_path(base) else base
    return f"{moved} {fields}".rstrip()


def seen_from(folder: str, name: str) -> str:
    """Return a testbed's name with its path, if it is one, as a relative one from `folder`."""
    base, fields = split_name(name)
    seen = os.path.relpath(base, folder) if is_path(base) else base
    return f"{seen} {fields}".rstrip()


def short_name(name: str) -> str:
    """Return a testbed's name without the folder of its file."""
    base, fields = split_name(name)
    return f"{os.path.basename(base)} {fields}".rstrip()


def grouped(names: Iterable[str]) -> list[str]:
    """Return testbeds' names, sorted, with those of one base as `graphcc (4 variants)`."""
    by_base: dict[str, set[str]] = {}
    for name in sorted(names):
        by_base.setdefault(split_name(name)[0], set()).add(name)
    return [
        f"{base} ({len(found)} variants)" if len(found) > 1 else found.pop()
        for base, found in by_base.items()
    ]


def brief_name(name: str) -> str:
    """Return a testbed's name without what is inside its fields: `graphcc {switch: …}`."""
    own = fields_of(name)
    base = own.pop(LIKE)
    if not own:
        return str(base)
    shown = (
        f"{key}: {'…' if isinstance(one, Mapping | list) else one}" for key, one in own.items()
    )
    return f"{base} {{{', '.join(shown)}}}"


def fields_of(name: str) -> dict[str, Any]:
    """Return a testbed's name as data: what it is like, and the fields that it replaces."""
    base, fields = split_name(name)
    return {LIKE: base, **(YAML(typ="safe").load(fields) if fields else {})}


def own_name(base: str, fields: str) -> str:
    """Return what a variant is called where a name has few kinds of characters, as in files.

    `base` is the other testbed's own name: `graphcc-buffer-8mb`.
    """
    name = "-".join([base, *re.findall(r"[a-z0-9_.]+", fields.lower())])
    if len(name) <= _MAX_CHARS:
        return name
    digest = hashlib.sha256(fields.encode()).hexdigest()[:8]
    return f"{name[: _MAX_CHARS - 9]}-{digest}"


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value
