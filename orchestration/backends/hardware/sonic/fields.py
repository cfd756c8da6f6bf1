"""What a field of CONFIG_DB may hold. Everything there is text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# A field's rule returns what is wrong with a value, "" if nothing is.
Rule = Callable[[str], str]

_DIGITS = re.compile(r"-?(0|[1-9][0-9]{0,19})\Z")


def number(text: str) -> int | None:
    """Return the whole number that `text` writes as SONiC's daemons read it, None if it is none."""
    return int(text) if _DIGITS.match(text) and text != "-0" else None


def whole(least: int, most: int, unit: str = "", why: str = "") -> Rule:
    """A whole number from `least` to `most`; `why` says where the bound comes from."""
    wanted = f"a whole number from {least} to {most}{f' {unit}' if unit else ''}"
    because = f" ({why})" if why else ""

    def rule(value: str) -> str:
        found = number(value)
        return "" if found is not None and least <= found <= most else f"must be {wanted}{because}"

    return rule


def one_of(*words: str) -> Rule:
    """One of some words."""

    def rule(value: str) -> str:
        return "" if value in words else f"must be {', '.join(words[:-1])} or {words[-1]}"

    return rule


def listed(value: str) -> str:
    """Priorities 0 to 7 with commas between, each once; empty for none."""
    if not value:
        return ""
    parts = value.split(",")
    if any(part not in set("01234567") for part in parts):
        return "must be priorities from 0 to 7 with commas between, like 3,4"
    return "" if len(set(parts)) == len(parts) else "names a priority twice"


truth = one_of("true", "false")


@dataclass(frozen=True)
class Reference:
    """A name of a row in another table. With `null`, `NULL` stands for none."""

    table: str
    null: bool = False


def queue_range(text: str) -> range | None:
    """Return the queues that `3` or `3-4` names, None for anything else."""
    first, dash, last = text.partition("-")
    low, high = number(first), number(last) if dash else number(first)
    if low is None or high is None or low < 0 or high < low:
        return None
    # 3-3 is written 3
    return range(low, high + 1) if not dash or high > low else None
