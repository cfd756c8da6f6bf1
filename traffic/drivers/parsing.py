"""Reading what programs print: strictly, so that what cannot be read is an error, never a zero."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_SHOWN = 160


class OutputError(ValueError):
    """A program's output that cannot be used: which program, what is wrong, what to do."""

    def __init__(self, program: str, what: str, remedy: str = "") -> None:
        super().__init__(f"{program}: {what}")
        self.program = program
        self.what = what
        self.remedy = remedy


def excerpt(text: str) -> str:
    """Return the start of a program's words as one line of printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def foreign(program: str, text: str) -> OutputError:
    """Return the error for an output that holds no result."""
    if not text.strip():
        return OutputError(program, "it printed nothing", "see whether it was killed")
    return OutputError(
        program,
        f"its output is cut short or not its own: {excerpt(text)}",
        "run its command by hand on the host",
    )


def json_documents(program: str, text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in `text`, one after another, without the lines around them.

    Raises OutputError for an object that does not end, or if there is none.
    """
    decoder = json.JSONDecoder(parse_constant=lambda name: _no_number(program, name))
    documents: list[dict[str, Any]] = []
    at = 0
    while True:
        # a document begins a line: braces within messages are not one
        while at < len(text) and text[at] != "{":
            line_end = text.find("\n", at)
            at = len(text) if line_end < 0 else line_end + 1
        if at >= len(text):
            break
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise OutputError(
                program,
                f"its JSON is cut short or broken at line {error.lineno}: {error.msg}",
                "see whether it was killed, and run its command by hand on the host",
            ) from error
        documents.append(document)
    if not documents:
        raise foreign(program, text)
    return documents


def _no_number(program: str, name: str) -> float:
    raise OutputError(program, f"it reports {name} where a number is due")


def number(program: str, values: Mapping[str, Any], *path: str) -> float:
    """Return the finite number at a path of keys. Raises OutputError."""
    value: Any = values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        where = ".".join(path)
        raise OutputError(program, f"its report has no number {where} but {excerpt(repr(value))}")
    return value


def optional(program: str, values: Mapping[str, Any], *path: str) -> float | None:
    """Return the number at a path of keys, or None where the last key is not there."""
    *to, last = path
    value: Any = values
    for key in to:
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or last not in value:
        return None
    return number(program, value, last)
