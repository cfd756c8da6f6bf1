"""Testbed files that begin from another: `like: graphcc`, and beside it what differs.

    like: graphcc
    name: graphcc-pfc
    switch: {buffer: 32MB, alpha: 1/8, pfc: [3]}     # takes the place of `buffer`

A field of the file takes the place of the other file's whole field. Another kind is another file.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML

from inventory.strictyaml import Document, read
from orchestration.core.errors import InputError

LIKE = "like"
# One stands for the other: what a port may hold, and what its switch may.
_INSTEAD = {"switch": "buffer", "buffer": "switch"}
_DEEPEST = 8

# Finds a testbed's file by name or path.
Finder = Callable[[str], AbstractContextManager[Path]]


def read_testbed(path: Path, find: Finder) -> Document:
    """Return a testbed file's data, with what it has from the file that it is like.

    Paths in `like` start in the file's folder. Lines are those of the file itself. Raises
    InputError if a file cannot be read, is like itself, or names none.
    """
    return _read(path, find, ())


def _read(path: Path, find: Finder, seen: tuple[Path, ...]) -> Document:
    document = read(path)
    if LIKE not in document.data:
        return document
    named = document.data[LIKE]
    if not isinstance(named, str) or not named:
        what = f"{LIKE!r} is no testbed: {named!r}"
        remedy = "name one, or a file's path: like: graphcc"
        raise InputError([document.problem((LIKE,), what, remedy)])
    here = (*seen, path.resolve())
    if named.endswith((".yml", ".yaml")) or "/" in named:
        named = str(path.parent / named)
    with ExitStack() as stack:
        try:
            other = stack.enter_context(find(named))
        except InputError as error:
            raise InputError(document.at((LIKE,), it) for it in error.problems) from error
        if other.resolve() in here or len(here) > _DEEPEST:
            what = f"{path.name} is like itself, through {other.name}"
            raise InputError([document.problem((LIKE,), what, "let one of them stand alone")])
        base = _read(other, find, here).data
    own = {key: value for key, value in document.data.items() if key != LIKE}
    given_up = {_INSTEAD[key] for key in own if key in _INSTEAD}
    data = {key: value for key, value in base.items() if key not in given_up}
    return replace(document, data={**data, **own})


def whole_text(path: Path, find: Finder) -> str:
    """Return a testbed file as text that stands alone. Raises InputError as `read_testbed`."""
    if LIKE not in read(path).data:
        return path.read_text(encoding="utf-8")
    yaml = YAML()
    yaml.width = 4096
    written = io.StringIO()
    yaml.dump(read_testbed(path, find).data, written)
    return written.getvalue()
