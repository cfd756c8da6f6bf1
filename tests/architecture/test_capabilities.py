"""Nobody outside a backend's package decides by its name: its capabilities are asked.

A name decides where it is compared, is looked for among others, is a case of a `match`, or a key of
a table. A constant that stands for a name, or for several, is one itself.
"""

import ast
from collections.abc import Iterable, Iterator

import pytest
from trees import ROOT, product

# What is called `imported` beside the backend: a finding of stamps, the facts of an import, and
# what stands in its spec for the hosts' congestion control.
SOMETHING_ELSE = (
    "reason.code != 'imported'",
    "facts.get('imported')",
    "trial.facts.get('imported')",
    "own == IMPORTED_CONTROL",
)
FACTS_OF_IMPORTS = "orchestration/exchange/imported.py"
BACKENDS = ("emulated", "fluid", "hardware", "imported", "simulated")


def is_own(name: str) -> bool:
    """Return whether a module is in a backend's own package, or in what results from elsewhere."""
    packages = tuple(f"orchestration/backends/{backend}/" for backend in BACKENDS)
    return name.startswith(packages) or name == FACTS_OF_IMPORTS


def has_name(node: ast.AST, constants: frozenset[str] = frozenset()) -> bool:
    """Return whether an expression is a backend's name, or some of them."""
    if isinstance(node, ast.Constant):
        return node.value in BACKENDS
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(has_name(item, constants) for item in node.elts)
    if isinstance(node, ast.Starred):
        return has_name(node.value, constants)
    if isinstance(node, ast.Call):  # frozenset({"fluid"})
        known = isinstance(node.func, ast.Name) and node.func.id in ("frozenset", "set", "tuple")
        return known and any(has_name(item, constants) for item in node.args)
    return named(node) in constants


def named(node: ast.AST) -> str:
    """Return the last word of a name or attribute; "" for any other expression."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def constants_of(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of module-level constants that are names of backends."""
    found = set()
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    pairs = [(target, node.value)]
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = list(zip(target.elts, node.value.elts, strict=True))
                    found |= {named(name) for name, value in pairs if has_name(value)}
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                found |= {named(node.target)} if has_name(node.value) else set()
    return frozenset(found - {"", "__all__"})


def decisions(nodes: Iterable[ast.AST], constants: frozenset[str]) -> Iterator[int]:
    """Yield the lines that decide by a backend's name."""
    for node in nodes:
        operands: list[ast.AST] = []
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
            case ast.Dict():
                operands = [key for key in node.keys if key is not None]
            case ast.Subscript() if named(node.value) != "Literal":
                operands = [node.slice]
            case ast.MatchValue():
                operands = [node.value]
            case ast.Call(func=ast.Attribute(attr="get" | "startswith" | "endswith")):
                operands = node.args[:1]
        if not any(has_name(one, constants) for one in operands):
            continue
        if ast.unparse(node) not in SOMETHING_ELSE:
            yield node.lineno if not isinstance(node, ast.Dict) else node.keys[0].lineno


def test_nobody_decides_by_the_name_of_a_backend():
    constants = constants_of(source.tree for source in product())
    found = [
        f"{source.name}:{line}"
        for source in product()
        if not is_own(source.name)
        for line in decisions(source.nodes, constants)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        'trial.backend == "hardware"',
        'backend not in (None, "emulated")',
        "spec.backend is IMPORTED",
        "one.backend in _SOME",
        '{"fluid": 1}[spec.backend]',
        'table.get("simulated")',
        'match backend:\n    case "fluid":\n        pass',
    ],
)
def test_the_rule_sees_each_form(text):
    constants = constants_of([ast.parse('IMPORTED = "imported"\n_SOME = frozenset({"fluid"})')])
    assert list(decisions(ast.walk(ast.parse(text)), constants))


@pytest.mark.parametrize("backend", BACKENDS)
def test_capabilities_are_words_of_the_model_only(backend):
    """They are read by what lies below backends: `orchestration.core.capabilities` loads them."""
    path = ROOT / f"orchestration/backends/{backend}/capabilities.py"
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    modules = [one.module for one in nodes if isinstance(one, ast.ImportFrom)]
    known = ("__future__", "dataclasses")
    assert [name for name in modules if not name.startswith((*known, "orchestration.core."))] == []
    assert not any(isinstance(one, ast.Import) for one in nodes)
    front_door = ast.parse((path.parent / "__init__.py").read_text())
    assert not any(isinstance(one, ast.Import | ast.ImportFrom) for one in ast.walk(front_door))
