"""Formats figures as text: three significant digits and a unit."""

from __future__ import annotations

import math
from collections.abc import Mapping

from orchestration.analysis.metrics import Unit
from orchestration.analysis.statistics import Estimate
from orchestration.model.units import format_duration, format_rate, format_size

NOTHING = "–"


def quantity(value: float, unit: Unit) -> str:
    """Return the value with its unit: `1.21ms`, `64.3KB`, `12.3%`, `3.05`; `–` for NaN."""
    if not math.isfinite(value):
        return NOTHING
    if unit == "ns":
        return format_duration(value, _decimals(value))
    if unit == "bytes":
        return format_size(value, _decimals(value))
    if unit == "bps":
        return format_rate(value, _decimals(value))
    if unit == "share":
        percent = 100 * value
        return f"{percent:.{2 if abs(percent) < 1 else 1}f}%"
    if unit == "ratio":
        return f"{value:,.{_decimals(value)}f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _decimals(value: float) -> int:
    """Return how many decimals give three significant digits, scaled by powers of 1,000."""
    size = abs(value)
    if size < 1:
        return 2
    mantissa = size / 1000 ** math.floor(math.log10(size) / 3 + 1e-12)
    return 2 if mantissa < 9.995 else 1 if mantissa < 99.95 else 0


def interval(low: float, high: float, unit: Unit) -> str:
    """Return `8us to 16us`."""
    return f"{quantity(low, unit)} to {quantity(high, unit)}"


def change(value: float, unit: Unit) -> str:
    """Return a difference with its sign: `+12us`, `-0.42`."""
    return f"+{quantity(value, unit)}" if value > 0 else quantity(value, unit)


def percent_change(share: float) -> str:
    """Return the size of a relative change without its sign: `12%`, `1.4%`."""
    percent = abs(100 * share)
    return f"{percent:.{0 if percent >= 9.95 else 1}f}%"


def with_error(estimate: Estimate, unit: Unit) -> str:
    """Return `3.21 ±0.12`: the mean and half of its 95 % interval."""
    text = quantity(estimate.mean, unit)
    half = (estimate.high - estimate.low) / 2
    return f"{text} ±{quantity(half, unit)}" if half > 0 else text


def extremes(values: Mapping[str, float], unit: Unit) -> str:
    """Return `180KB with secn1, 420KB with secn2`; of more than three, only lowest and highest."""
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    if not known:
        return "nothing measured"
    if len(known) > 3:
        low, high = (pick(known, key=known.__getitem__) for pick in (min, max))
        known = {low: known[low], high: known[high]}
    return ", ".join(f"{quantity(value, unit)} with {name}" for name, value in known.items())
