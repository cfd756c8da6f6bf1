"""A switch's own YANG models: which tables of CONFIG_DB it has, and what their leaves take.

SONiC keeps its models below `MODELS` (sonic-buildimage, src/sonic-yang-models): a container a
table, in it a list whose key is the rows', in that a leaf a field. They are read as RFC 7950 has
them (section 6): statements, each a keyword, an argument, and statements in braces or a semicolon.
Of a type only what is written at the leaf is known; typedefs of other modules are not followed.

Standard library only: agents and Ansible modules use it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

MODELS = "/usr/local/yang-models"
_MOST_BYTES = 1 << 20
# Built-in integer types (RFC 7950, section 9.2).
_BOUNDS = {
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
}
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<mark>[{};]|\+(?=[\s"']))"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<word>[^\s{};"']+)""",
    re.DOTALL,
)


@dataclass
class Statement:
    """One statement: `leaf name { type string; }` has the keyword leaf and the argument name."""

    keyword: str
    argument: str
    parts: list[Statement] = field(default_factory=list)

    def of(self, keyword: str) -> list[Statement]:
        """Return the statements in this one with a keyword."""
        return [part for part in self.parts if part.keyword == keyword]

    def said(self, keyword: str) -> str:
        """Return the argument of the first statement in this one with a keyword, or ""."""
        found = self.of(keyword)
        return found[0].argument if found else ""


@dataclass(frozen=True)
class Leaf:
    """What one field takes: words, or whole numbers in any of `ranges`; neither if not known."""

    words: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    units: str = ""

    def takes(self, number: int) -> bool:
        """Return whether a whole number is in the ranges."""
        return any(least <= number <= most for least, most in self.ranges)


@dataclass(frozen=True)
class Table:
    """One table: the leaves of its rows' keys, all leaves by name, and the most rows, 0 for any."""

    keys: tuple[str, ...]
    leaves: dict[str, Leaf]
    most: int = 0


def read_tables(prefix: str, folder: str = MODELS) -> dict[str, Table]:
    """Return the tables whose names begin with `prefix`, of all models in a folder.

    A file that is no YANG, or cannot be read, has none.
    """
    found: dict[str, Table] = {}
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".yang"))
    except OSError:
        return found
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                text = file.read(_MOST_BYTES)
            if re.search(r"container\s+[\"']?" + re.escape(prefix), text):
                found.update(tables_of(text, prefix))
        except (OSError, ValueError):
            continue
    return found


def tables_of(text: str, prefix: str = "") -> dict[str, Table]:
    """Return a module's tables whose names begin with `prefix`. Raises ValueError for no YANG."""
    found = {}
    for module in parse(text):
        for whole in module.of("container"):
            for table in whole.of("container"):
                if table.argument.startswith(prefix) and table.of("list"):
                    found[table.argument] = _table(table.of("list")[0])
    return found


def parse(text: str) -> list[Statement]:
    """Return the statements of a module's text. Raises ValueError where it is no YANG."""
    root = Statement("", "")
    open_ones = [root]
    words: list[str] = []
    joined = False
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise ValueError(f"no YANG at character {place}")
        place = token.end()
        mark = token["mark"]
        if mark == "+":
            joined = bool(words)
        elif mark == "}":
            if words or len(open_ones) == 1:
                raise ValueError(f"a brace too many, or a semicolon missing, at character {place}")
            open_ones.pop()
        elif mark:
            if not 1 <= len(words) <= 2:
                raise ValueError(f"no statement ends at character {place}")
            statement = Statement(words[0], words[1] if len(words) == 2 else "")
            words = []
            open_ones[-1].parts.append(statement)
            if mark == "{":
                open_ones.append(statement)
        elif (
            token["word"] is not None or token["double"] is not None or token["single"] is not None
        ):
            piece = _piece(token)
            if joined:
                words[-1] += piece
            else:
                words.append(piece)
            joined = False
    if words or len(open_ones) > 1:
        raise ValueError("the text ends within a statement")
    return root.parts


def _piece(token: re.Match[str]) -> str:
    if token["double"] is not None:
        escapes = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
        return re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[0]), token["double"])
    return str(token["single"] if token["single"] is not None else token["word"])


def _table(rows: Statement) -> Table:
    most = rows.said("max-elements")
    return Table(
        tuple(rows.said("key").split()),
        {leaf.argument: _leaf(leaf) for leaf in (*rows.of("leaf"), *rows.of("leaf-list"))},
        int(most) if most.isdigit() else 0,
    )


def _leaf(leaf: Statement) -> Leaf:
    types = leaf.of("type")
    kind = types[0] if types else Statement("type", "")
    words = tuple(one.argument for one in kind.of("enum"))
    return Leaf(words, _ranges(kind), leaf.said("units"))


def _ranges(kind: Statement) -> tuple[tuple[int, int], ...]:
    """Return a type's ranges, ends included; empty for a type that is no built-in integer."""
    if kind.argument not in _BOUNDS:
        return ()
    least, most = _BOUNDS[kind.argument]
    text = kind.said("range")
    if not text:
        return ((least, most),)
    named = {"min": least, "max": most}
    found = []
    for part in text.split("|"):
        low, _, high = (end.strip() for end in part.partition(".."))
        ends = [named[end] if end in named else int(end) for end in (low, high or low)]
        found.append((ends[0], ends[1]))
    return tuple(found)
