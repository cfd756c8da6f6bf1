"""A server in memory for tests: it keeps points as InfluxDB does, and can be told to fail."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collectors.sinks.influx import Answer

_LINE = re.compile(r"(?P<head>(?:\\.|[^\\ ])+) (?P<fields>.*) (?P<time>-?\d+)", re.DOTALL)
_FIELD = re.compile(r'(\w+)=("(?:\\.|[^"\\])*"|[^,]*)(?:,|$)', re.DOTALL)
_TAG = re.compile(r"((?:\\.|[^\\,=])+)=((?:\\.|[^\\,])+)")
Key = tuple[str, tuple[tuple[str, str], ...], int]


class Store:
    """Points by (measurement, tags, time), the last one written stays; how often each came."""

    def __init__(self) -> None:
        self.points: dict[Key, dict[str, str]] = {}
        self.writes = 0
        self.lines = 0
        self.answers: list[Answer] = []

    def write(self, lines: Sequence[str]) -> Answer:
        """Keep the lines, or answer what is next in `answers`."""
        self.writes += 1
        if self.answers and (answer := self.answers.pop(0)).meaning != "ok":
            return answer
        for line in lines:
            measurement, tags, fields, time_ns = parse(line)
            self.points.setdefault((measurement, tags, time_ns), {}).update(fields)
        self.lines += len(lines)
        return Answer("ok")

    def of(self, measurement: str, **tags: str) -> list[dict[str, str]]:
        """Return the points of a measurement with these tags: tags, fields and `_time`."""
        return [
            {**dict(theirs), **fields, "_time": str(time_ns)}
            for (name, theirs, time_ns), fields in sorted(self.points.items())
            if name == measurement and tags.items() <= dict(theirs).items()
        ]


def parse(line: str) -> tuple[str, tuple[tuple[str, str], ...], dict[str, str], int]:
    """Return a line's measurement, tags, fields (texts without quotes) and time."""
    found = _LINE.fullmatch(line)
    assert found is not None, line
    measurement, _, rest = found["head"].partition(",")
    tags = tuple((key, re.sub(r"\\(.)", r"\1", value)) for key, value in _TAG.findall(rest))
    fields = {}
    for name, value in _FIELD.findall(found["fields"]):
        if value.startswith('"'):
            fields[name] = re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
        else:
            fields[name] = value.removesuffix("i")
    return measurement, tags, fields, int(found["time"])
