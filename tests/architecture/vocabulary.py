"""The field's words in place of ours, in names and in what users read.

    python tests/architecture/vocabulary.py

prints each name and text that has a word of these tables, with what to write instead. The right
words, with their sources, are in docs/glossary.md. Python and pages are read; C is not yet.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import trees

ROOT = Path(__file__).parents[2]

# Parts of names: `told` is one of `repeats_told` and `Told`, and none of `untold`.
NAMES = {
    "told": "message, shown or reported",
    "said": "message, output or answer",
    "foretold": "predicted",
    "brought": "path mapping, or copied",
    "luggage": "bundle",
    "lend": "lease",
    "lends": "lease",
    "lent": "leased",
    "lending": "interface lease",
    "loan": "interface lease",
    "loans": "interface leases",
    "shield": "isolate",
    "guardian": "reaper",
    "newness": "staleness",
    "arriving": "deliverable",
    "tally": "counts or totals",
    "yardstick": "baseline",
    "yardsticks": "baselines",
    "look": "interim analysis",
    "looks": "interim analyses",
    "looked": "analysed",
    "standing": "condition status",
    "standings": "condition statuses",
    "turns": "rotation",
    "place": "location, index, executor or cell key",
    "places": "locations, indices or subgroups",
    "forced": "intervention",
    "leftover": "what cleanup removes",
    "leftovers": "cleanup",
    "corridor": "guardrails",
}
# Names that begin so: `most` and `least` are words of `at_most`, too.
PREFIXES = {"most": "max or maximum", "least": "min or minimum"}
# Names of functions, classes and attributes; a variable may be called `found`.
DEFINITIONS = {"found": "search result, or what was read"}

# What a reader of messages, help, reports and docs meets.
TEXTS = {
    r"\bluggage\b": "bundle",
    r"\bforetold\b": "predicted",
    r"\byardsticks?\b": "baseline",
    r"\bguardian\b": "reaper",
    r"\bnewness\b": "staleness",
    r"\b(is|are|was|were|been|be) (lent|told)\b": "leased; reported",
    r"\btold apart\b": "distinguished",
    r"\b(takes?|took) turns\b": "in rotation, or one at a time",
    r"\bthe most repeats\b": "the maximum number of repeats",
    r"\bas these are the most\b": "as this is the maximum",
    r"\bat the most\b": "at most",
    r"\bthe least (size|value|number|share|threshold)\b": "the smallest",
    r"\blaw of marking\b|\bmarking law\b": "marking probability",
    r"\bon the way\b": "in flight",
    r"\bunder way\b": "running or in flight",
    r"\ba (rack|machine|place) that is not\b": "remote",
    r"\bwhat (became|becomes|will become) of\b": "name the thing itself",
    r"\bhow many of which\b": "name the thing itself",
    r"\bof which reading\b": "the observation that",
}
_ANY_TEXT = re.compile("|".join(TEXTS), re.IGNORECASE)
PACKAGES = (
    *("closloop", "collectors", "examples", "inventory", "orchestration", "playbooks"),
    *("traffic", "tuners"),
)
# Names that others gave: of files, tables and fields that are kept, and of libraries.
KEPT = frozenset({"most_common", "at_least", "at_most", "lookup"})


class Word(NamedTuple):
    """A word that is not the field's, where it stands, and what to write instead."""

    file: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}: write {self.instead}"


def tracked(*patterns: str) -> list[Path]:
    """Return the project's own files of these patterns."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", *patterns], check=True, capture_output=True, text=True
    )
    return [path for name in listed.stdout.split("\n") if name and (path := ROOT / name).is_file()]


def product() -> list[Path]:
    """Return the product's Python files."""
    return tracked(*(f"{package}/*.py" for package in PACKAGES))


def pages() -> list[Path]:
    """Return the pages that people write."""
    return tracked("README.md", "CONTRIBUTING.md", ":(glob)docs/*.md")


def instead_of(name: str) -> str | None:
    """Return what to write in place of a name, None if it is plain."""
    if name in KEPT:
        return None
    parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]
    if parts and parts[0] in PREFIXES:
        return PREFIXES[parts[0]]
    return next((NAMES[part] for part in parts if part in NAMES), None)


def nodes_of(path: Path) -> Iterable[ast.AST]:
    """Return all nodes of a Python file's tree; those of the product are read once."""
    for source in trees.product():
        if path == trees.ROOT / source.name:
            return source.nodes
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    """Yield each name that a source gives: its line, and whether it is more than a variable."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name, True
                if not isinstance(node, ast.ClassDef):
                    continue
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        yield field.lineno, field.target.id, True
            case ast.arg():
                yield node.lineno, node.arg, False
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id, False
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr, True
            case ast.alias(asname=str() as name):
                yield 0, name, False
            case ast.ExceptHandler(name=str() as name):
                yield node.lineno, name, False
            case _:
                pass


def of_names(files: list[Path]) -> list[Word]:
    """Return the private words in names of Python files, and of the files themselves."""
    found: dict[tuple[str, str], Word] = {}
    for path in files:
        file = path.relative_to(ROOT).as_posix()
        if instead := instead_of(path.stem):
            found[file, ""] = Word(file, 1, f"the file's name {path.stem!r}", instead)
        for line, name, defined in names(nodes_of(path)):
            own = instead_of(name)
            if own is None and defined and "found" in name.strip("_").lower().split("_"):
                own = DEFINITIONS["found"]
            if own:
                found.setdefault((file, name), Word(file, line, name, own))
    return list(found.values())


def of_texts(files: list[Path]) -> list[Word]:
    """Return the private words in strings of Python files, and in pages."""
    found = []
    for path in files:
        file = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            texts = [
                (node.lineno, node.value)
                for node in nodes_of(path)
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                # one word alone is a key
                and not re.fullmatch(r"[\w.-]+", node.value)
            ]
        else:
            texts = list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
        for line, text in texts:
            plain = " ".join(text.split())
            if not _ANY_TEXT.search(plain):
                continue
            for pattern, instead in TEXTS.items():
                if hit := re.search(pattern, plain, re.IGNORECASE):
                    around = plain[max(0, hit.start() - 30) : hit.end() + 30]
                    found.append(Word(file, line, repr(around), instead))
    return found


def main() -> None:
    """Print all private words, and their numbers."""
    in_names = of_names(product())
    in_texts = of_texts([*product(), *pages()])
    for word in (*in_names, *in_texts):
        print(word)
    print(f"{len(in_names)} names, {len(in_texts)} texts")


if __name__ == "__main__":
    main()
