"""What a search searches: dimensions with ranges, inside physical limits.

A setting is its parameters as (name, value) pairs in the order of the dimensions, so it can be
compared, sorted and used as a key. Ordered dimensions are searched by their logarithm, and their
values have three significant digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestration.core.trial import Scalar
from orchestration.core.units import format_duration, format_size
from tuners.learning.exact import exp, log

Setting = tuple[tuple[str, Scalar], ...]

# A range that turns out too narrow is widened by this factor.
WIDENED_BY = 4.0
# The bases of the radical inverses (Halton 1960), one a dimension.
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)


@dataclass(frozen=True)
class Dimension:
    """A parameter with the range that is searched, and the limits that it may be widened to.

    `reason` says why there is nothing beyond each limit. With `choices`, the parameter has these
    values, in no order, and no range.
    """

    name: str
    least: float = 1.0
    most: float = 1.0
    lowest: float = 1.0
    highest: float = 1.0
    reason: tuple[str, str] = ("", "")
    whole: bool = True
    choices: tuple[Scalar, ...] = ()

    def at(self, share: float) -> Scalar:
        """Return the value at a share (0..1) of the range, by its logarithm."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        low, high = log([self.least, self.most])
        return self._rounded(float(exp(low + share * (high - low))))

    def moved(self, value: Scalar, octaves: float) -> Scalar:
        """Return the value so many octaves from another, within the range."""
        factor = float(exp(octaves * log(2.0)))
        return self._rounded(float(value) * factor)

    def at_edge(self, value: Scalar) -> int:
        """Return -1 at the lower edge of the range, 1 at the upper one, and 0 elsewhere."""
        if self.choices or self.least >= self.most:
            return 0
        return (float(value) >= self.most) - (float(value) <= self.least)

    def ends(self, side: int) -> bool:
        """Return whether the range ends at the physical limit on a side (-1 or 1)."""
        return self.least <= self.lowest if side < 0 else self.most >= self.highest

    def widened(self, side: int) -> Dimension:
        """Return it with a range that goes on beyond an edge, at most to the limit there."""
        if side < 0:
            return replace(self, least=max(self.lowest, self.least / WIDENED_BY))
        return replace(self, most=min(self.highest, self.most * WIDENED_BY))

    def _rounded(self, value: float) -> Scalar:
        inside = min(max(float(f"{value:.3g}"), self.least), self.most)
        return round(inside) if self.whole else inside


@dataclass(frozen=True)
class Space:
    """The dimensions of a search, and settings that are tried whatever the ranges are.

    If kmin would be above kmax, the two change places.
    """

    dimensions: tuple[Dimension, ...]
    known: tuple[Setting, ...] = ()

    def first(self, count: int, seed: int) -> list[Setting]:
        """Return `count` different settings that fill the space evenly, the known ones among them.

        They are a Halton sequence, shifted at random by `seed` (Cranley and Patterson 1976). Fewer
        if the space has no more.
        """
        found = dict.fromkeys(self.known)
        shift = np.random.default_rng(seed).random(len(self.dimensions))
        for index in range(1, 50 * count + 1):
            if len(found) >= count:
                break
            shares = [
                (_radical_inverse(index, base) + offset) % 1.0
                for base, offset in zip(_PRIMES, shift.tolist(), strict=False)
            ]
            found.setdefault(self._setting([d.at(u) for d, u in self._with(shares)]))
        return list(found)[: max(count, len(self.known))]

    def neighbours(self, setting: Setting, octaves: float) -> list[Setting]:
        """Return the settings a step away in one dimension, and in both thresholds together."""
        values = dict(setting)
        found: dict[Setting, None] = {}
        for dimension in self.dimensions:
            for value in self._steps(dimension, values[dimension.name], octaves):
                found.setdefault(self.changed(values, {dimension.name: value}))
        both = [d for d in self.dimensions if d.name in ("kmin_bytes", "kmax_bytes")]
        for sign in (-1, 1) if len(both) == 2 else ():
            moved = {d.name: d.moved(values[d.name], sign * octaves) for d in both}
            found.setdefault(self.changed(values, moved))
        found.pop(setting, None)
        return list(found)

    def together(self, setting: Setting, steps: Sequence[Setting]) -> Setting:
        """Return the setting that takes all of some steps from it; of one dimension the first."""
        before = dict(setting)
        new: dict[str, Scalar] = {}
        for step in steps:
            moved = {name: value for name, value in step if value != before[name]}
            if not moved.keys() & new.keys():
                new |= moved
        return self.changed(before, new)

    def edges(self, setting: Setting) -> Iterator[tuple[Dimension, int]]:
        """Yield the dimensions at whose edge a setting lies, and at which edge (-1 or 1)."""
        values = dict(setting)
        for dimension in self.dimensions:
            if side := dimension.at_edge(values[dimension.name]):
                yield dimension, side

    def widened(self, name: str, side: int) -> Space:
        """Return the space with the range of a dimension widened on a side."""
        wider = tuple(d.widened(side) if d.name == name else d for d in self.dimensions)
        return replace(self, dimensions=wider)

    def changed(self, values: dict[str, Scalar], new: dict[str, Scalar]) -> Setting:
        """Return a setting with some of its values replaced."""
        return self._setting([{**values, **new}[d.name] for d in self.dimensions])

    def _steps(self, dimension: Dimension, value: Scalar, octaves: float) -> list[Scalar]:
        if dimension.choices:
            return [choice for choice in dimension.choices if choice != value]
        return [dimension.moved(value, sign * octaves) for sign in (-1, 1)]

    def _with(self, shares: Sequence[float]) -> Iterator[tuple[Dimension, float]]:
        return zip(self.dimensions, shares, strict=True)

    def _setting(self, values: Sequence[Scalar]) -> Setting:
        named = {d.name: value for d, value in zip(self.dimensions, values, strict=True)}
        if {"kmin_bytes", "kmax_bytes"} <= named.keys():
            pair = sorted((int(named["kmin_bytes"]), int(named["kmax_bytes"])))
            named["kmin_bytes"], named["kmax_bytes"] = pair
        return tuple(named.items())


def describe(setting: Setting) -> str:
    """Return a setting in a few words: `kmin 5KB, kmax 200KB, pmax 0.01`."""
    return ", ".join(f"{short_name(name)} {value_text(name, value)}" for name, value in setting)


def label_of(setting: Setting) -> str:
    """Return a setting as the label of a trial: its values alone."""
    return "-".join(value_text(name, value) for name, value in setting)


def short_name(name: str) -> str:
    """Return a parameter's name without its unit."""
    return name.removesuffix("_bytes").removesuffix("_ns")


def value_text(name: str, value: Scalar | float) -> str:
    """Return a parameter's value with its unit, where its name has one."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_bytes"):
        return format_size(value)
    return format_duration(value) if name.endswith("_ns") else f"{value:g}"


def _radical_inverse(index: int, base: int) -> float:
    """Return the digits of `index` mirrored at the point: 0.75 for 3 in base 2."""
    result, share = 0.0, 1.0 / base
    while index:
        index, digit = divmod(index, base)
        result += digit * share
        share /= base
    return result
