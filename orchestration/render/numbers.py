"""Formatters of numbers: three significant digits with a unit, shares, p-values, intervals.

Numbers become text nowhere else. An unknown number is NaN and is shown as a dash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from orchestration.core.units import format_duration, format_rate, format_size

Unit = Literal["ns", "bytes", "bps", "share", "ratio", "count"]
NOTHING = "–"
_FORMATS = {"ns": format_duration, "bytes": format_size, "bps": format_rate}
# With two decimals of a percent, a share closer to 0 than this is shown as 0, without a sign.
NO_SHARE = 5e-5


@runtime_checkable
class Estimate(Protocol):
    """A mean with the ends of its interval."""

    @property
    def mean(self) -> float:
        """The mean."""

    @property
    def low(self) -> float:
        """The interval's lower end, NaN if unknown."""

    @property
    def high(self) -> float:
        """The interval's upper end, NaN if unknown."""


def quantity(value: float, unit: Unit) -> str:
    """Return the value with its unit: `1.21ms`, `64.3KB`, `12.3%`, `3.05`; `–` for NaN."""
    if not math.isfinite(value):
        return NOTHING
    if unit in _FORMATS:
        return _FORMATS[unit](value, _decimals(value))
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
    """Return `3.21 ±0.12`: the mean and the half-width of its 95 % interval."""
    text = quantity(estimate.mean, unit)
    half = (estimate.high - estimate.low) / 2
    return f"{text} ±{quantity(half, unit)}" if half > 0 else text


def extremes(values: Mapping[str, float], unit: Unit) -> str:
    """Return `180KB with secn1, 420KB with secn2`; of over three, `180KB with x to 1MB with y`."""
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    if not known:
        return "nothing measured"
    between = ", "
    if len(known) > 3:
        low, high = (pick(known, key=known.__getitem__) for pick in (min, max))
        known, between = {low: known[low], high: known[high]}, " to "
    return between.join(f"{quantity(value, unit)} with {name}" for name, value in known.items())


def count(value: float, one: str, more: str = "") -> str:
    """Return a number with its noun: `1 pair`, `3 pairs`."""
    return f"{value:,} {one if value == 1 else more or f'{one}s'}"


def p_value(p: float) -> str:
    """Return a p-value: `0.012`, `<0.001`."""
    if math.isnan(p):
        return NOTHING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def signed(value: float, unit: Unit, digits: int = 2) -> str:
    """Return a difference with its sign, in fixed decimals of its unit: `+1.25us`, `-64KB`."""
    if math.isnan(value):
        return NOTHING
    if unit not in _FORMATS:
        return f"{value:+.{digits}f}"
    return f"{'+' if value >= 0 else '-'}{_FORMATS[unit](abs(value), digits)}"


def percent(share: float, digits: int = 1) -> str:
    """Return a relative difference with its sign: `-12.6%`, `+270%`; `0.0%` has none."""
    text = f"{100 * share:+.{digits}f}%"
    return f"{0:.{digits}f}%" if float(text[:-1]) == 0 else text


def short_percent(value: float, sign: str = "+") -> str:
    """Return percents with two significant digits, or as integers: `+1.2%`, `+270%`."""
    if not math.isfinite(value):
        return NOTHING
    digits = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:{sign}.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


def percents(
    value: float, low: float, high: float, *, sign: str = "+", digits: int | None = None
) -> str:
    """Return a share and its interval in percent: `-38.7% [-41.1, -36.4]`.

    By default there is one decimal below 100 %, and none above. An unknown interval is left out.
    """

    def text(share: float) -> str:
        shown = 100 * share
        decimals = digits if digits is not None else 0 if abs(shown) >= 99.5 else 1
        return f"{shown:{sign}.{decimals}f}"

    if not math.isfinite(value):
        return NOTHING
    known = math.isfinite(low) and math.isfinite(high)
    return f"{text(value)}%" + (f" [{text(low)}, {text(high)}]" if known else "")


def percent_span(value: float, low: float, high: float, *, sign: str = "+", digits: int = 1) -> str:
    """Return `+3.1% [+2.0% to +4.2%]`: a share and its interval, which is left out if NaN."""
    if not math.isfinite(value):
        return NOTHING
    mean, *ends = (f"{100 * share:{sign}.{digits}f}%" for share in (value, low, high))
    return f"{mean} [{ends[0]} to {ends[1]}]" if math.isfinite(low) else mean


def points(value: float, low: float, high: float) -> str:
    """Return a difference of shares in percentage points: `+1.20 [+0.80 to +1.60]`."""
    mean, *ends = (f"{100 * share:+.2f}" for share in (value, low, high))
    return f"{mean} [{ends[0]} to {ends[1]}]" if math.isfinite(low) else mean


def clock_text(seconds: float) -> str:
    """Return `40.0 s`, `2 min 05 s`, `3 h 07 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
