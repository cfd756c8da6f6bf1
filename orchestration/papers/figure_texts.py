"""Figures of the results page as text: amounts, estimates, differences."""

from __future__ import annotations

import math

from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.core.units import format_rate
from orchestration.render.numbers import NO_SHARE, NOTHING, Unit, percent, points, quantity


def amount(value: float, unit: Unit) -> str:
    """Return a value with its unit and three significant digits: `398Gbps`, `12.6KB`, `2.84`."""
    if unit == "share":
        return quantity(0.0 if abs(value) < NO_SHARE else value, unit)
    if unit != "bps":
        return quantity(value, unit)
    if not math.isfinite(value):
        return NOTHING
    digits = max(0, 2 - math.floor(math.log10(abs(value))) % 3) if value else 0
    return format_rate(round(value), digits)


def estimate_text(estimate: Estimate, unit: Unit) -> str:
    """Return `2.84 ±0.10`: the mean and half of its interval."""
    text = amount(estimate.mean, unit)
    half = (estimate.high - estimate.low) / 2
    return f"{text} ±{amount(half, unit)}" if half > 0 else text


def difference_text(difference: PairedDifference, unit: Unit) -> str:
    """Return `-12.6% [-15.0% to -9.8%]`; differences of shares are in points.

    The interval is in the metric's unit if there is no relative one, which happens if the other
    mean is not significantly different from 0.
    """
    if not difference.n or not math.isfinite(difference.mean):
        return NOTHING
    if unit == "share":
        return f"{points(difference.mean, difference.low, difference.high)} points"
    text = percent(difference.relative) if math.isfinite(difference.relative) else ""
    if math.isfinite(difference.relative_low):
        low, high = difference.relative_low, difference.relative_high
        return f"{text} [{percent(low)} to {percent(high)}]"
    if math.isfinite(difference.low) or not text:
        sign = "+" if difference.mean > 0 else ""
        text = f"{text}, {sign}{amount(difference.mean, unit)}".removeprefix(", ")
    if math.isfinite(difference.low):
        text += f" [{amount(difference.low, unit)} to {amount(difference.high, unit)}]"
    return text
