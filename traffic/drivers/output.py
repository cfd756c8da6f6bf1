"""Strict parsing of programs' output: a value that cannot be read is an error, never a zero."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

BY_HAND = "run its command by hand on the host"
_SHOWN = 160


class OutputError(ValueError):
    """A program's output cannot be used: which program, what is wrong, what to do."""

    def __init__(self, program: str, what: str, remedy: str = "") -> None:
        super().__init__(f"{program}: {what}")
        self.program = program
        self.what = what
        self.remedy = remedy

    @property
    def why(self) -> str:
        """What is wrong and what to do, in one text."""
        return f"{self}; {self.remedy}" if self.remedy else str(self)


def excerpt(text: str) -> str:
    """Return the start of a program's output as one line of printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def unrecognized_output(program: str, text: str) -> OutputError:
    """Return the error for an output that holds no result."""
    if not text.strip():
        return OutputError(program, "it printed nothing", "see whether it was killed")
    what = f"its output is cut short or not its own: {excerpt(text)}"
    return OutputError(program, what, BY_HAND)


def json_documents(program: str, text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in `text`; other lines are skipped.

    Raises OutputError for an incomplete object, or if there is none.
    """
    decoder = json.JSONDecoder(parse_constant=lambda name: _no_number(program, name))
    documents: list[dict[str, Any]] = []
    position = 0
    while True:
        # a document begins at the start of a line, unlike braces within messages
        while position < len(text) and text[position] != "{":
            line_end = text.find("\n", position)
            position = len(text) if line_end < 0 else line_end + 1
        if position >= len(text):
            break
        try:
            document, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise OutputError(
                program,
                f"its JSON is cut short or broken at line {error.lineno}: {error.msg}",
                f"see whether it was killed, and {BY_HAND}",
            ) from error
        documents.append(document)
    if not documents:
        raise unrecognized_output(program, text)
    return documents


def _no_number(program: str, name: str) -> float:
    raise OutputError(program, f"it reports {name} instead of a number")


def mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the mapping under a name; an empty one if there is none."""
    inner = values.get(name)
    return inner if isinstance(inner, Mapping) else {}


def number(program: str, values: Mapping[str, Any], *path: str) -> float:
    """Return the finite number at a path of keys. Raises OutputError if there is none."""
    value = _value_at(values, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        where = ".".join(path)
        raise OutputError(program, f"its report has no number {where} but {excerpt(repr(value))}")
    return value


def optional(program: str, values: Mapping[str, Any], *path: str) -> float | None:
    """Return the number at a path of keys, or None if the last key is missing."""
    inner = _value_at(values, path[:-1])
    if not isinstance(inner, Mapping) or path[-1] not in inner:
        return None
    return number(program, inner, path[-1])


def _value_at(values: Any, path: Sequence[str]) -> Any:
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values
