"""Converts YAML text to plain data, with the line of every key and item, and data to text.

Only YAML 1.2's core schema is used: `yes`, `on` and dates are text. Duplicate keys, tags, anchors,
aliases and keys that are not text are faults. All of them are reported, not only the first. Size,
depth and the number of faults are bounded, so that no file makes the reader hang.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from orchestration.core.errors import Code, InputError, Problem

Path = tuple[str | int, ...]

# The largest files list each link of a fabric: an inventory of 8,192 hosts has 6 MB.
MAX_CHARS = 8 * 2**20
MAX_DEPTH = 50
MAX_FAULTS = 100
_CORE_CONSTANTS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
# Integers of more digits than any quantity here has are read as floats.
_INT = re.compile(r"[-+]?[0-9]{1,30}", re.ASCII)
_OCTAL = re.compile(r"0o[0-7]{1,30}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)

# Text that needs no quotes, also where YAML 1.1 is read: words, quantities, fractions, addresses.
_PLAIN = re.compile(
    r"[A-Za-z/~][A-Za-z0-9_./~@-]*|[0-9.]+[A-Za-z]+|[0-9]+/[0-9]+|[0-9]+(\.[0-9]+){3}"
)
_NOT_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"))


def flow(value: Any) -> str:
    """Return a value of mappings, lists, text, numbers and None as one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
        # A JSON string is also one of YAML.
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def parse(text: str, name: str) -> tuple[dict[str, Any], dict[Path, int], list[Problem]]:
    """Read one YAML document. `name` stands for the file in errors.

    Returns its data, the line (from 1) of each path in it, and its faults. Raises InputError for a
    syntax error, a top level that is not a mapping, and more than one document.
    """
    if len(text) > MAX_CHARS:
        what = f"more than {MAX_CHARS / 1e6:.0f} million characters"
        remedy = "check that it is the file you mean, or make it shorter"
        raise InputError.single(name, what, remedy, Code.NOT_YAML)
    builder = _Builder(name)
    try:
        data = builder.document(_events(text, name))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise _not_yaml(where, f"not valid YAML: {what}", _SYNTAX_REMEDY) from error
    except YAMLError as error:
        what = str(error).splitlines()[0]
        raise _not_yaml(name, f"not valid YAML: {what}", _SYNTAX_REMEDY) from error
    if not isinstance(data, dict):
        what = "empty" if data is None else "not a mapping of fields to values"
        where = f"{name}:{builder.lines.get((), 1)}"
        raise _not_yaml(where, f"the file is {what}", "write `field: value` lines")
    return data, builder.lines, builder.faults


def _events(text: str, name: str) -> Iterator[Event]:
    """Yield the parser's events, and raise InputError for deep nesting.

    The parser's time grows with the square of the depth. So each event is checked before the text
    after it is parsed.
    """
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, NodeEvent) and depth > MAX_DEPTH:
            what = f"nested more than {MAX_DEPTH} deep"
            where = f"{name}:{event.start_mark.line + 1}"
            raise _not_yaml(where, what, "write a flatter file")
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            depth += 1
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            depth -= 1
        yield event


def _not_yaml(where: str, what: str, remedy: str) -> InputError:
    return InputError.single(where, what, remedy, Code.NOT_YAML)


_SYNTAX_REMEDY = "check indentation, colons, quotes and brackets there and in the line above"


@dataclass
class _Builder:
    name: str
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[Problem] = field(default_factory=list)

    def document(self, events: Iterator[Event]) -> Any:
        """Return the value of the only document in `events`, None if there is none."""
        starts = 0
        data: Any = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                starts += 1
                if starts > 1:
                    what = "a second YAML document"
                    raise _not_yaml(self._where(event), what, "use one file for each")
                first = next(events)
                self.lines[()] = first.start_mark.line + 1
                data = self.build(first, events, ())
        return data

    def build(self, event: Event, events: Iterator[Event], path: Path) -> Any:
        """Return the value that begins with `event`, taking the rest of it from `events`."""
        self._refuse_references(event)
        if isinstance(event, MappingStartEvent):
            return self._mapping(events, path)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(events, path)
        if isinstance(event, ScalarEvent):
            text = self._text(event)
            return text if event.style else _resolve(text)
        return None

    def _mapping(self, events: Iterator[Event], path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key = self.build(event, events, path)
            if isinstance(event, ScalarEvent):
                key = self._text(event)
            else:
                self._fault(event, "a key that is not text", "write the key as a plain word")
                key = f"line {event.start_mark.line + 1}"
            inner = (*path, key)
            if key in result:
                remedy = "keep one of the two"
                self._fault(
                    event, f"duplicate key {key!r}, first in line {self.lines[inner]}", remedy
                )
                # The value is read only for its faults, under a path that nothing refers to.
                self.build(next(events), events, (*path, f"{key} again"))
                continue
            self.lines[inner] = event.start_mark.line + 1
            result[key] = self.build(next(events), events, inner)
        return result

    def _sequence(self, events: Iterator[Event], path: Path) -> list[Any]:
        result: list[Any] = []
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            inner = (*path, len(result))
            self.lines[inner] = event.start_mark.line + 1
            result.append(self.build(event, events, inner))
        return result

    def _text(self, event: ScalarEvent) -> str:
        text = str(event.value)
        if any("\ud800" <= char <= "\udfff" for char in text):
            self._fault(event, "a surrogate is not a character", "write the character itself")
            return ""
        return text

    def _refuse_references(self, event: Event) -> None:
        if isinstance(event, AliasEvent):
            self._fault(event, f"alias '*{event.anchor}' is not accepted", "write the value out")
        elif isinstance(event, NodeEvent) and event.anchor:
            self._fault(event, f"anchor '&{event.anchor}' is not accepted", "remove it")
        tag = getattr(event, "tag", None)
        if tag is not None:
            remedy = "remove it; put quotes around text that looks like a number"
            self._fault(event, f"tag {str(tag)!r} is not accepted", remedy)

    def _fault(self, event: Event, what: str, remedy: str) -> None:
        self.faults.append(Problem(self._where(event), what, remedy, Code.NOT_YAML))
        if len(self.faults) == MAX_FAULTS:
            what = f"{MAX_FAULTS:,} faults up to here; what follows was not read"
            last = Problem(self._where(event), what, "correct these first", Code.TOO_MANY)
            raise InputError([*self.faults, last])

    def _where(self, event: Event) -> str:
        return f"{self.name}:{event.start_mark.line + 1}"


def _resolve(text: str) -> str | int | float | bool | None:
    """Return a plain scalar's value according to YAML 1.2's core schema (section 10.3)."""
    if text in _CORE_CONSTANTS:
        return _CORE_CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
