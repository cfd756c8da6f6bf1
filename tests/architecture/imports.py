"""The import graph of the product's modules, read from the sources with `ast`; nothing is imported.

A module imports a module of ours if a statement names it, wherever the statement stands: at the
top, within a function (lazily), or under TYPE_CHECKING. `from package import name` is an import of
the module `package.name` if there is one that the front door does not define otherwise, and else of
the front door, `package/__init__.py`. The front doors of the packages in which an imported module
stands, which Python runs first, are not counted.

Texts that name a module (`import_module("orchestration.loop")`, `"module:name"` in a table, `-m`)
and entry points of pyproject.toml are listed apart: they are no edges of the graph.

The package of a module is its folder directly below `orchestration`; a loose module there is a
package by itself, and so is each other top-level folder as a whole.

Run as a program, it prints the figures of today's tree.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from graphs import Graph, circles, floors, graph, longest_chain

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "closloop",
    "collectors",
    "inventory",
    "orchestration",
    "playbooks",
    "traffic",
    "tuners",
)
DIVIDED = "orchestration"  # each folder and each loose module in it is a package of its own

Kind = Literal["top", "lazy", "typing", "named"]

_FOLDER = "|".join(FOLDERS)
_NAME = re.compile(rf"(?:{_FOLDER})(?:\.\w+)*(?::\w+)?")
_MAY_NAME = re.compile(rf"[\"'](?:{_FOLDER})\.".encode())


@dataclass(frozen=True, order=True)
class Import:
    """An import statement's module of ours, or a text that names one (`kind` "named")."""

    importer: str
    imported: str
    kind: Kind
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} -> {self.imported} ({self.kind})"


@dataclass(frozen=True)
class _Read:
    """What is kept of a file: its import statements, the names at its top, the modules it names.

    `classes` are those at its top: name, names of bases, names of what their bodies define.
    """

    statements: tuple[tuple[ast.Import | ast.ImportFrom, Kind], ...]
    defined: frozenset[str]
    texts: tuple[tuple[str, int], ...]
    classes: tuple[tuple[str, tuple[str, ...], frozenset[str]], ...]


class Sources:
    """The product's modules below `root`."""

    def __init__(self, root: Path, folders: Iterable[str] = FOLDERS) -> None:
        self.root = root
        self.paths: dict[str, Path] = {}
        for folder in folders:
            for path in sorted((root / folder).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                if not any(part.startswith(".") or part == "__pycache__" for part in parts):
                    self.paths[".".join(parts).removesuffix(".__init__")] = path
        self._trees: dict[str, ast.Module] = {}

    def tree(self, module: str) -> ast.Module:
        """Return the syntax tree of a module, and keep it."""
        if module not in self._trees:
            self._trees[module] = ast.parse(self.paths[module].read_bytes())
        return self._trees[module]

    @cached_property
    def _read(self) -> dict[str, _Read]:
        """What is needed of each file. Trees are not kept: all of them would be half a gigabyte."""
        return {module: _read(path.read_bytes()) for module, path in self.paths.items()}

    def is_front_door(self, module: str) -> bool:
        """Return whether a module is the `__init__` of a package."""
        return self.paths[module].name == "__init__.py"

    def defines(self, module: str, name: str) -> bool:
        """Return whether a module is ours, and a name is bound at its top."""
        return module in self.paths and name in self._read[module].defined

    def module_of(self, name: str) -> str:
        """Return the longest part of a dotted name that is a module of ours, "" if none is."""
        while name and name not in self.paths:
            name = name.rpartition(".")[0]
        return name

    def imported_from(self, importer: str, module: str, name: str) -> str:
        """Return the module of ours that `from module import name` takes from, "" if none."""
        inner = f"{module}.{name}"
        if inner in self.paths and (importer == module or not self.defines(module, name)):
            return inner
        return self.module_of(module)

    def absolute(self, importer: str, node: ast.ImportFrom) -> str:
        """Return the dotted name of the module that a `from` names, relative ones resolved."""
        if not node.level:
            return node.module or ""
        parts = importer.split(".")
        keep = len(parts) - node.level + self.is_front_door(importer)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """All imports of modules of ours by statements."""
        return tuple(one for module in self.paths for one in self._imports_of(module))

    def _imports_of(self, importer: str) -> Iterator[Import]:
        for node, kind in self._read[importer].statements:
            if isinstance(node, ast.Import):
                named = [self.module_of(alias.name) for alias in node.names]
            else:
                module = self.absolute(importer, node)
                named = [self.imported_from(importer, module, alias.name) for alias in node.names]
            for imported in dict.fromkeys(named):
                if imported and imported != importer:
                    yield Import(importer, imported, kind, node.lineno)

    @cached_property
    def named(self) -> tuple[Import, ...]:
        """Texts that name a module of ours: whole, with `:name`, or as an f-string's beginning."""
        found = []
        for importer, read in self._read.items():
            for text, line in read.texts:
                imported = self.module_of(text.partition(":")[0])
                if imported and imported != importer:
                    found.append(Import(importer, imported, "named", line))
        return tuple(found)

    def classes_with(self, names: Set[str]) -> list[tuple[str, str]]:
        """Return module and name of the classes that define all of some names, bases included."""
        return sorted(
            (module, name)
            for module, read in self._read.items()
            for name, bases, own in read.classes
            if names and names <= own.union(*map(self._inherited, bases))
        )

    def _inherited(self, base: str, depth: int = 5) -> Set[str]:
        """Return what a base defines, with its own bases. It is known by its name alone."""
        found: set[str] = set()
        for bases, names in self._classes.get(base, ()) if depth else ():
            found = found.union(names, *(self._inherited(one, depth - 1) for one in bases))
        return found

    @cached_property
    def _classes(self) -> dict[str, list[tuple[tuple[str, ...], frozenset[str]]]]:
        found = defaultdict(list)
        for read in self._read.values():
            for name, bases, names in read.classes:
                found[name].append((bases, names))
        return found

    @cached_property
    def entry_points(self) -> tuple[tuple[str, str, str], ...]:
        """The group, name and `module:object` of each entry point of pyproject.toml."""
        path = self.root / "pyproject.toml"
        if not path.exists():
            return ()
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
        groups = {"console_scripts": project.get("scripts", {})} | project.get("entry-points", {})
        return tuple((group, *item) for group in groups for item in groups[group].items())

    @cached_property
    def modules(self) -> Graph:
        """The modules that each module imports."""
        return graph(self.paths, ((one.importer, one.imported) for one in self.imports))

    @cached_property
    def packages(self) -> Graph:
        """The packages that each package imports."""
        pairs = ((package_of(one.importer), package_of(one.imported)) for one in self.imports)
        return graph(map(package_of, self.paths), pairs)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of modules of ours that each module imports, most first."""
        counts = {module: len(imported) for module, imported in self.modules.items()}
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def ties(self, importer: str, imported: str) -> list[Import]:
        """Return the imports that make one package import another."""
        return [
            one
            for one in self.imports
            if (package_of(one.importer), package_of(one.imported)) == (importer, imported)
        ]


@cache
def sources(root: Path = ROOT) -> Sources:
    """Return the modules below `root`, kept for the next caller."""
    return Sources(root)


def package_of(module: str) -> str:
    """Return the package of a module, as the docstring of this module has it."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == DIVIDED else parts[0]


def package_chain(of: Sources, *, through_others: bool = True) -> list[str]:
    """Return the longest chain of packages of `orchestration`, from the top down.

    Its length is the number of packages of `orchestration` on it. With `through_others` (this is
    what the limit in test_layout.py is about), A also stands above B where A imports `collectors`,
    `inventory`, `traffic` or `tuners`, and that imports B: these folders link, and do not count.
    Without, only imports within `orchestration` link.

    Before the packages were laid out by the design, both gave 9, and 11 if the linking folders are
    counted, too; after that 8, 8 and 9. The last count is that of `floors`.
    """
    edges = of.packages
    if not through_others:
        inside = {node for node in edges if node.startswith(f"{DIVIDED}.")}
        edges = {node: edges[node] & inside for node in inside}
    return [node for node in longest_chain(edges, _is_divided) if _is_divided(node)]


def _is_divided(package: str) -> bool:
    return package.startswith(f"{DIVIDED}.")


def _read(text: bytes) -> _Read:
    tree = ast.parse(text)
    return _Read(
        tuple(_import_statements(tree.body, "top")),
        frozenset(_top_names(tree)),
        tuple(_texts(tree)) if _MAY_NAME.search(text) else (),
        tuple(_classes(tree)),
    )


def _classes(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...], frozenset[str]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
            names = tuple(
                base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
                for base in bases
            )
            yield node.name, names, frozenset(_class_names(node))


def _class_names(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names that a class's body defines, and its `__init__` assigns to `self`."""
    yield from _top_names(node)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for one in ast.walk(method):
                if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
                    yield one.attr


def _texts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the texts that are dotted names as modules of ours have, and their lines."""
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            text = str(node.values[0].value)
            text = text.removesuffix(".") if text.endswith(".") else ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            text = text if "." in text else ""
        if text and _NAME.fullmatch(text):
            yield text, node.lineno


def _import_statements(
    body: Iterable[ast.stmt], kind: Kind
) -> Iterator[tuple[ast.Import | ast.ImportFrom, Kind]]:
    """Yield the import statements of a body and of all bodies within it."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, kind
            continue
        within: Kind = kind
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            within = "lazy"
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _import_statements(node.body, "typing")
            yield from _import_statements(node.orelse, kind)
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _import_statements(getattr(node, field, ()), within)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _import_statements(part.body, within)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _top_names(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yield the names that the statements of a module or class bind, without those within them."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def report(of: Sources) -> Iterator[str]:
    """Yield the figures of a tree."""
    kinds = Counter(one.kind for one in (*of.imports, *of.named))
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    yield f"{len(of.paths)} modules; imports: {listed}; entry points: {len(of.entry_points)}"
    for name, edges in (("modules", of.modules), ("packages", of.packages)):
        loops = circles(edges)
        yield f"circles of {name}: {len(loops)}"
        yield from ("  " + " -> ".join(loop) for loop in loops)
    for how, chain in (
        ("through the other folders", package_chain(of)),
        ("within orchestration only", package_chain(of, through_others=False)),
        ("with the other folders counted", longest_chain(of.packages)),
    ):
        yield f"longest chain, {how}: {len(chain)}: {' > '.join(chain)}"
    by_floor = defaultdict(list)
    for package, floor in floors(of.packages).items():
        by_floor[floor].append(package)
    yield "floors:"
    yield from (f"  {floor} {' '.join(sorted(by_floor[floor]))}" for floor in sorted(by_floor))
    yield "most imports of our modules:"
    yield from (f"  {count} {module}" for module, count in list(of.counts.items())[:10])


if __name__ == "__main__":
    print(*report(sources()), sep="\n")
