"""Values as the text of YAML files: exact, with units, quoted where they are names."""

from __future__ import annotations

import json
from collections.abc import Mapping

_DURATIONS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_RATES = {"Tbps": 10**12, "Gbps": 10**9, "Mbps": 10**6, "Kbps": 10**3, "bps": 1}


def duration(ns: int) -> str:
    """Return `10ms` for 10,000,000: the largest unit that has no remainder."""
    return _exact(ns, _DURATIONS, "ns")


def rate(bps: int) -> str:
    """Return `25Gbps` for 25,000,000,000: the largest unit that has no remainder."""
    return _exact(bps, _RATES, "bps")


def quoted(text: str) -> str:
    """Return text as a double-quoted YAML scalar."""
    return json.dumps(text, ensure_ascii=False)


def mapping(values: Mapping[str, object]) -> str:
    """Return a mapping of texts, numbers and lists on one line: `{name: "secn1", weight: 70}`."""
    pairs = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "{" + ", ".join(pairs) + "}"


def _exact(value: int, units: Mapping[str, int], smallest: str) -> str:
    for unit, size in units.items():
        if value and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}{smallest}"
