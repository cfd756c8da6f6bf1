"""The product's modules as syntax trees, read once for the tests of this folder."""

import ast
import gc
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("closloop", "collectors", "inventory", "orchestration", "traffic", "tuners")


@dataclass(frozen=True)
class Source:
    """A module: `name` is its path below the root, `nodes` is all that its tree holds."""

    name: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]


@cache
def product() -> tuple[Source, ...]:
    """Return all modules. They are 170 MB: conftest.py forgets them after this folder's tests."""
    collects = gc.isenabled()
    gc.disable()  # there is no garbage among a million new objects, and to look for it takes longer
    try:
        return tuple(
            _read(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
        )
    finally:
        if collects:
            gc.enable()


def _read(path: Path) -> Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return Source(path.relative_to(ROOT).as_posix(), tree, tuple(ast.walk(tree)))
