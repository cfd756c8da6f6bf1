"""Tables and texts in Markdown (GitHub's, with tables)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from orchestration.render.table import Table, Text, joined, spans, table

_LINE = "<br>"
# Characters that are markup in Markdown. Square brackets and underlines are so in some positions
# only.
_SPECIAL = re.compile(
    r"[\\`|~]"
    r"|\*(?=\S)|(?<=\S)\*"
    r"|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w+;)"
    r"|\](?=[(\[:])"
    r"|!(?=\[)"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
)


def escaped(text: str) -> str:
    """Return Markdown on one line that shows a plain text as it is."""
    lines = re.split(r"\r\n|\r|\n", text)
    return _LINE.join(_SPECIAL.sub(lambda match: f"\\{match[0]}", line) for line in lines)


def inline(text: Text) -> str:
    """Return a text with its styles as Markdown, on one line."""
    parts = []
    for part in spans(text):
        shown = escaped(part.text)
        if part.style == "code" and not re.search(r"[`\n\\]", part.text):
            shown = f"`{part.text}`".replace("|", r"\|")
        elif part.style in ("strong", "bad"):
            shown = f"**{shown}**"
        parts.append(f"[{shown}](<{part.link}>)" if part.link else shown)
    return "".join(parts)


def markdown_table(made: Table) -> str:
    """Return a table. Its title is above it in bold, its caption below it."""
    columns, rows = made.shown(details=True)
    lines = [f"**{escaped(made.title)}**\n"] if made.title else []
    lines += [_line([escaped(column.name) for column in columns]), _line(["---"] * len(columns))]
    for texts, row in rows:
        if row.note:
            texts[-1] = joined((texts[-1], row.note))
        shown = [inline(text) for text in texts]
        if row.style == "strong":
            shown = [f"**{text}**" if text and "**" not in text else text for text in shown]
        lines.append(_line(shown))
    lines += ["", escaped(made.caption)] if made.caption else []
    return "\n".join(lines)


def rows_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table of heads and rows, with an empty line after it; "" without rows."""
    return f"{markdown_table(table(heads, (), rows))}\n" if rows else ""


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
