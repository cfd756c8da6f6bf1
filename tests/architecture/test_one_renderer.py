"""What a user reads is rendered in one package: tables, escaping, CSV, Markdown."""

import ast
from collections.abc import Collection, Iterator

import pytest
from trees import product

RENDERER = "orchestration/render/"
# Data files for other programs, written below the renderer.
EXCEPT = {"orchestration/core/csv_columns.py": {"csv.writer"}}
NAMES = {
    "rich.table",
    "rich.markup",
    "html.escape",
    "xml.sax.saxutils.escape",
    "csv.writer",
    "csv.DictWriter",
}
TEXTS = ("<table", "<td", "<th>", "| --- |", "| ---\n")


def offences(nodes: Collection[ast.AST]) -> Iterator[str]:
    """Yield what of the renderer's own means a module uses."""
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named = [f"{node.value.id}.{node.attr}"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield from (text for text in TEXTS if text in node.value)
            continue
        yield from (name for name in named if name in NAMES)


def test_only_the_renderer_makes_tables_and_escapes() -> None:
    found = {}
    for module in product():
        if module.name.startswith(RENDERER):
            continue
        used = set(offences(module.nodes)) - EXCEPT.get(module.name, set())
        if used:
            found[module.name] = sorted(used)
    assert found == {}, "describe a table by orchestration.render.table, and show that"


@pytest.mark.parametrize(
    "source",
    [
        "from rich.table import Table",
        "import rich.table",
        "from html import escape",
        "import html\nhtml.escape(text)",
        "import csv\ncsv.writer(file)",
        "row = f'<td>{cell}</td>'",
        "line = '| --- | --- |'",
    ],
)
def test_the_rule_sees_what_it_forbids(source: str) -> None:
    assert list(offences([*ast.walk(ast.parse(source))]))
