"""Conversion of texts with units, such as `25Gbps`, `64KB` and `100us`, to integers and back.

Rates are in bit/s with decimal prefixes. Sizes are in bytes: as in the field's papers, KB is 1,000
bytes and KiB 1,024. Durations are in nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from orchestration.core.problems import WrongValue

RATES = {"bps": 1, "Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}
SIZES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
DURATIONS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_NUMBER_UNIT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


class UnitError(WrongValue):
    """The text is not a number with a known unit, or not an integer in the base unit."""


def _parse(text: object, units: Mapping[str, int], noun: str, example: str) -> int:
    if not isinstance(text, str):
        raise UnitError(f"{text!r} is not a {noun} with a unit", f"write it like {example}")
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None:
        raise UnitError(f"{text!r} is not a {noun}", f"write it like {example}")
    number, unit = match.groups()
    if unit not in units:
        near = [known for known in units if known.lower() == unit.lower()]
        hint = f"write {number}{near[0]}" if near else f"use one of {', '.join(units)}"
        what = f"{text!r} has {f'unknown unit {unit!r}' if unit else 'no unit'} for a {noun}"
        if unit == "GBps":
            what = f"{what}: bytes per second are not accepted"
            hint = f"write {number}Gbps if bits were meant"
        raise UnitError(what, hint)
    try:
        value = Decimal(number.replace("_", "")) * units[unit]
    except InvalidOperation as error:  # pragma: no cover - the pattern admits numbers only
        raise UnitError(f"{text!r} is not a {noun}") from error
    if value != value.to_integral_value():
        raise UnitError(f"{text!r} is not a whole number of {next(iter(units))}", "round it")
    return int(value)


def parse_rate_bps(text: object) -> int:
    """Return the rate in bit/s. Raises UnitError unless the text is a number and bps to Tbps."""
    return _parse(text, RATES, "rate", "25Gbps")


def parse_size_bytes(text: object) -> int:
    """Return the size in bytes. Raises UnitError unless the text is a number and B to GiB."""
    return _parse(text, SIZES, "size", "64KB")


def parse_duration_ns(text: object) -> int:
    """Return the duration in ns. Raises UnitError unless the text is a number and ns to s."""
    return _parse(text, DURATIONS, "duration", "100us")


def _format(value: float, units: Mapping[str, int], digits: int) -> str:
    chosen, scale = next(iter(units.items()))
    for unit, factor in units.items():
        if abs(value) >= factor:
            chosen, scale = unit, factor
    number = f"{value / scale:.{digits}f}"
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number}{chosen}"


def format_rate(bps: float, digits: int = 2) -> str:
    """Return `25Gbps` for 25e9."""
    return _format(bps, RATES, digits)


def format_size(size_bytes: float, digits: int = 2) -> str:
    """Return `64KB` for 64e3 (decimal prefixes)."""
    decimal = {unit: factor for unit, factor in SIZES.items() if "i" not in unit}
    return _format(size_bytes, decimal, digits)


def format_duration(ns: float, digits: int = 2) -> str:
    """Return `100us` for 100e3."""
    return _format(ns, DURATIONS, digits)


def whole_rate(bps: int) -> str:
    """Return `25Gbps` for 25,000,000,000, exactly, in the largest unit that divides it."""
    return _whole(bps, RATES)


def whole_duration(ns: int) -> str:
    """Return `10ms` for 10,000,000, exactly, in the largest unit that divides it."""
    return _whole(ns, DURATIONS)


def _whole(value: int, units: Mapping[str, int]) -> str:
    fits = [unit for unit, size in units.items() if value and value % size == 0]
    unit = fits[-1] if fits else next(iter(units))
    return f"{value // units[unit]}{unit}"
