"""The space of a search: dimensions with ranges, which lie inside physical limits.

A setting is a tuple of (name, value) pairs of parameters, in the order of the dimensions, so that
it can be compared, sorted and used as a key. Dimensions with a range are searched on a logarithmic
scale, and their values have three significant digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestration.campaign.fields import read_param
from orchestration.core.errors import InputError, check_known
from orchestration.core.load_balancing import MAX_TIMEOUT_NS, MIN_TIMEOUT_NS
from orchestration.core.roce import DCQCN_PARAMETERS, RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar
from orchestration.core.units import format_duration, format_size
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tuners.ecn.static import REFERENCE_RATE_BPS
from tuners.flowlet.settings import LONGEST_NS, SHORTEST_NS
from tuners.learning.networks import exp, log

Setting = tuple[tuple[str, Scalar], ...]

# A range that turns out too narrow is widened by this factor.
WIDENED_BY = 4.0
# The bases of the radical inverses (Halton 1960), one for each dimension.
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)


@dataclass(frozen=True)
class Dimension:
    """A parameter, the range that is searched, and the physical limits of that range.

    The range from `minimum` to `maximum` may be widened up to `min_limit` and `max_limit`;
    `limit_reasons` says why there is nothing beyond each limit. `whole` values are rounded to
    integers. A parameter with `choices` has these values, without an order, and no range.
    """

    name: str
    minimum: float = 1.0
    maximum: float = 1.0
    min_limit: float = 1.0
    max_limit: float = 1.0
    limit_reasons: tuple[str, str] = ("", "")
    whole: bool = True
    choices: tuple[Scalar, ...] = ()

    def at(self, share: float) -> Scalar:
        """Return the value at a share (0 to 1) of the range, on a logarithmic scale."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        low, high = log([self.minimum, self.maximum])
        return self._rounded(float(exp(low + share * (high - low))))

    def shifted(self, value: Scalar, octaves: float) -> Scalar:
        """Return `value` times 2 to the power of `octaves`, limited to the range."""
        factor = float(exp(octaves * log(2.0)))
        return self._rounded(float(value) * factor)

    def at_edge(self, value: Scalar) -> int:
        """Return -1 at the lower edge of the range, 1 at the upper one, and 0 elsewhere."""
        if self.choices or self.minimum >= self.maximum:
            return 0
        return (float(value) >= self.maximum) - (float(value) <= self.minimum)

    def is_at_limit(self, side: int) -> bool:
        """Return whether the range ends at the physical limit on a side (-1 or 1)."""
        return self.minimum <= self.min_limit if side < 0 else self.maximum >= self.max_limit

    def widened(self, side: int) -> Dimension:
        """Return the dimension with its range widened on a side (-1 or 1), at most to the limit."""
        if side < 0:
            return replace(self, minimum=max(self.min_limit, self.minimum / WIDENED_BY))
        return replace(self, maximum=min(self.max_limit, self.maximum * WIDENED_BY))

    def _rounded(self, value: float) -> Scalar:
        inside = min(max(float(f"{value:.3g}"), self.minimum), self.maximum)
        return round(inside) if self.whole else inside


@dataclass(frozen=True)
class Space:
    """The dimensions of a search, and the settings that are tried in any case (`known`).

    If kmin is above kmax in a setting, the two are swapped.
    """

    dimensions: tuple[Dimension, ...]
    known: tuple[Setting, ...] = ()

    def first(self, count: int, seed: int) -> list[Setting]:
        """Return `count` different settings that fill the space evenly, the known ones first.

        They are a Halton sequence, shifted at random by `seed` (Cranley and Patterson 1976). There
        are fewer if the space has no more.
        """
        settings = dict.fromkeys(self.known)
        shift = np.random.default_rng(seed).random(len(self.dimensions))
        for index in range(1, 50 * count + 1):
            if len(settings) >= count:
                break
            shares = [
                (_radical_inverse(index, base) + offset) % 1.0
                for base, offset in zip(_PRIMES, shift.tolist(), strict=False)
            ]
            settings.setdefault(
                self._setting([d.at(u) for d, u in zip(self.dimensions, shares, strict=True)])
            )
        return list(settings)[: max(count, len(self.known))]

    def neighbours(self, setting: Setting, octaves: float) -> list[Setting]:
        """Return the settings one step away in one dimension, or in both thresholds together."""
        values = dict(setting)
        settings: dict[Setting, None] = {}
        for dimension in self.dimensions:
            for value in self._steps(dimension, values[dimension.name], octaves):
                settings.setdefault(self.changed(values, {dimension.name: value}))
        both = [d for d in self.dimensions if d.name in ("kmin_bytes", "kmax_bytes")]
        for sign in (-1, 1) if len(both) == 2 else ():
            shifted = {d.name: d.shifted(values[d.name], sign * octaves) for d in both}
            settings.setdefault(self.changed(values, shifted))
        settings.pop(setting, None)
        return list(settings)

    def together(self, setting: Setting, steps: Sequence[Setting]) -> Setting:
        """Return the setting after all of these steps; in one dimension, only the first counts."""
        before = dict(setting)
        new: dict[str, Scalar] = {}
        for step in steps:
            shifted = {name: value for name, value in step if value != before[name]}
            if not shifted.keys() & new.keys():
                new |= shifted
        return self.changed(before, new)

    def edges(self, setting: Setting) -> Iterator[tuple[Dimension, int]]:
        """Yield the dimensions in which a setting is at an edge, each with the side (-1 or 1)."""
        values = dict(setting)
        for dimension in self.dimensions:
            if side := dimension.at_edge(values[dimension.name]):
                yield dimension, side

    def widened(self, name: str, side: int) -> Space:
        """Return the space with the range of the dimension `name` widened on a side."""
        wider = tuple(d.widened(side) if d.name == name else d for d in self.dimensions)
        return replace(self, dimensions=wider)

    def changed(self, values: dict[str, Scalar], new: dict[str, Scalar]) -> Setting:
        """Return a setting with some of its values replaced."""
        return self._setting([{**values, **new}[d.name] for d in self.dimensions])

    def _steps(self, dimension: Dimension, value: Scalar, octaves: float) -> list[Scalar]:
        if dimension.choices:
            return [choice for choice in dimension.choices if choice != value]
        return [dimension.shifted(value, sign * octaves) for sign in (-1, 1)]

    def _setting(self, values: Sequence[Scalar]) -> Setting:
        named = {d.name: value for d, value in zip(self.dimensions, values, strict=True)}
        if {"kmin_bytes", "kmax_bytes"} <= named.keys():
            pair = sorted((int(named["kmin_bytes"]), int(named["kmax_bytes"])))
            named["kmin_bytes"], named["kmax_bytes"] = pair
        return tuple(named.items())


def describe(setting: Setting) -> str:
    """Return a setting as text: `kmin 5KB, kmax 200KB, pmax 0.01`."""
    return ", ".join(f"{short_name(name)} {value_text(name, value)}" for name, value in setting)


def label_of(setting: Setting) -> str:
    """Return a setting as the label of a trial: its values without their names."""
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
    """Return the digits of `index` mirrored at the decimal point: 0.75 for 3 in base 2."""
    result, share = 0.0, 1.0 / base
    while index:
        index, digit = divmod(index, base)
        result += digit * share
        share /= base
    return result


# SECN1 and SECN2 of the ACC paper, which its authors saw in use: kmin, kmax, pmax, scaled by rate.
_KNOWN = ((5_000, 200_000, 0.01, False), (100_000, 400_000, 0.2, True))
_MIN_THRESHOLD_BYTES = 1_000
_MIN_PMAX, _LOWEST_PMAX = 0.01, 0.0001
# The parameters of DCQCN that decide how fast rates fall and rise. The ranges include the values of
# mlx5 NICs, of the DCQCN paper and of HPCC's simulator.
_DCQCN_RANGES: Mapping[str, tuple[int, int]] = {
    "rpg_time_reset": (30, 1_000),
    "rpg_ai_rate": (2, 500),
    "rpg_hai_rate": (10, 2_000),
    "dce_tcp_rtt": (1, 256),
    "rate_reduce_monitor_period": (1, 256),
}
_DCQCN_CHOICES = ("clamp_tgt_rate",)


def threshold_space(testbeds: Sequence[Testbed], roce: RoceSpec | None, *, dcqcn: bool) -> Space:
    """Return the space of the tuner `static`; with `dcqcn`, DCQCN's parameters are part of it.

    kmin and kmax lie between 1 KB and the largest port's buffer, pmax goes up to 1. Where ports
    have different rates, thresholds may be scaled by rate. `roce` has the campaign's parameters.
    """
    queues = [queue for testbed in testbeds for queue in testbed.queues]
    rates = {queue.rate_bps for queue in queues}
    buffer = max(queue.buffer_bytes for queue in queues)
    sizes = [
        Dimension(
            name,
            minimum=_MIN_THRESHOLD_BYTES,
            maximum=buffer,
            min_limit=_MIN_THRESHOLD_BYTES,
            max_limit=buffer,
            limit_reasons=("less than one packet", "the largest buffer of a port"),
        )
        for name in ("kmin_bytes", "kmax_bytes")
    ]
    pmax = Dimension(
        "pmax",
        minimum=_MIN_PMAX,
        maximum=1.0,
        min_limit=_LOWEST_PMAX,
        max_limit=1.0,
        limit_reasons=("a packet in 10,000 at kmax", "every packet at kmax"),
        whole=False,
    )
    scaled = [Dimension("per_25g", choices=(False, True))] if len(rates) > 1 else []
    own = _dcqcn_dimensions() if dcqcn else []
    dimensions = (*sizes, pmax, *scaled, *own)
    presets = _dcqcn_presets(roce) if dcqcn else [{}]
    known = []
    for kmin, kmax, share, per_25g in _KNOWN:
        # with a single rate there is no dimension for scaling, but the sizes follow that rate
        factor = next(iter(rates)) / REFERENCE_RATE_BPS if per_25g and len(rates) == 1 else 1.0
        for preset in presets:
            values: dict[str, Scalar] = {
                "kmin_bytes": min(round(kmin * factor), buffer),
                "kmax_bytes": min(round(kmax * factor), buffer),
                "pmax": share,
                "per_25g": per_25g,
                **preset,
            }
            known.append(tuple((dim.name, values[dim.name]) for dim in dimensions))
    return Space(dimensions, tuple(dict.fromkeys(known)))


def dcqcn_space(roce: RoceSpec | None) -> Space:
    """Return the space of DCQCN's parameters under the fixed thresholds of SECN1."""
    kmin, kmax, share, _ = _KNOWN[0]
    fixed = (
        Dimension("kmin_bytes", choices=(kmin,)),
        Dimension("kmax_bytes", choices=(kmax,)),
        Dimension("pmax", choices=(share,)),
    )
    dimensions = (*fixed, *_dcqcn_dimensions())
    thresholds: dict[str, Scalar] = {"kmin_bytes": kmin, "kmax_bytes": kmax, "pmax": share}
    known = [
        tuple((dim.name, {**thresholds, **preset}[dim.name]) for dim in dimensions)
        for preset in _dcqcn_presets(roce)
    ]
    return Space(dimensions, tuple(dict.fromkeys(known)))


def timeout_space() -> Space:
    """Return the space of the tuner `timeout`: flowlet timeouts as in DRLet's figure 3."""
    timeout = Dimension(
        "timeout_ns",
        minimum=SHORTEST_NS,
        maximum=LONGEST_NS,
        min_limit=MIN_TIMEOUT_NS,
        max_limit=MAX_TIMEOUT_NS,
        limit_reasons=("every packet may change its path", "no gap is longer"),
    )
    return Space((timeout,), ((("timeout_ns", 200_000),),))


def with_ranges(space: Space, given: Sequence[str]) -> Space:
    """Return the space with ranges given as `NAME=MIN:MAX`; the limits stay as they are.

    A further parameter of DCQCN is added if other parameters of DCQCN are searched. Raises
    InputError for names that are not in the space, and for invalid ranges.
    """
    for text in given:
        name, _, bounds = text.partition("=")
        known = {dim.name: dim for dim in space.dimensions if not dim.choices}
        if name not in known and name in DCQCN_PARAMETERS and "rpg_ai_rate" in known:
            added = _dcqcn_dimension(name, _parsed(name, bounds))
            default = DCQCN_SETS["mlx5"][name]
            space = Space(
                (*space.dimensions, added),
                tuple((*setting, (name, default)) for setting in space.known),
            )
            known[name] = added
        check_known("--range", "{!r} is not searched", [name], known, "there are ")
        dim, (low, high) = known[name], _parsed(name, bounds)
        if not dim.min_limit <= low < high <= dim.max_limit:
            raise InputError.single(
                "--range",
                f"{text}: not a range inside the limits {dim.min_limit:g} to {dim.max_limit:g}",
                "give the lower bound first, both within the limits",
            )
        new = Dimension(name, low, high, dim.min_limit, dim.max_limit, dim.limit_reasons, dim.whole)
        space = Space(tuple(new if d.name == name else d for d in space.dimensions), space.known)
    return space


def ranges_of(space: Space) -> dict[str, tuple[Scalar, ...]]:
    """Return the range of each parameter of a space: its two ends, or its choices."""
    return {
        dim.name: dim.choices
        or ((round(dim.minimum), round(dim.maximum)) if dim.whole else (dim.minimum, dim.maximum))
        for dim in space.dimensions
    }


def _dcqcn_dimensions() -> list[Dimension]:
    ranged = [_dcqcn_dimension(name, bounds) for name, bounds in _DCQCN_RANGES.items()]
    return [*ranged, *(Dimension(name, choices=(0, 1)) for name in _DCQCN_CHOICES)]


def _dcqcn_dimension(name: str, bounds: tuple[float, float]) -> Dimension:
    parameter = DCQCN_PARAMETERS[name]
    limit_reasons = "the least that mlx5 NICs take", "the most that mlx5 NICs take"
    # a logarithmic scale has no 0, which mostly means that something is off
    min_limit = max(1, parameter.minimum)
    return Dimension(name, bounds[0], bounds[1], min_limit, parameter.maximum, limit_reasons)


def _dcqcn_presets(roce: RoceSpec | None) -> list[dict[str, Scalar]]:
    """Return the searched parameters as the campaign, mlx5 NICs and the DCQCN paper have them."""
    own = [roce.parameters] if roce is not None else []
    sets = [*own, DCQCN_SETS["mlx5"], DCQCN_SETS["paper"]]
    names = (*_DCQCN_RANGES, *_DCQCN_CHOICES)
    return [{name: values[name] for name in names} for values in sets]


def _parsed(name: str, text: str) -> tuple[float, float]:
    """Return the bounds of a range `MIN:MAX`."""
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(_value(name, low)), float(_value(name, high))
    except ValueError:
        raise InputError.single(
            "--range", f"{name}={text} is not a range", "write it like kmin_bytes=1KB:200KB"
        ) from None


def _value(name: str, text: str) -> Scalar:
    try:
        return float(text)
    except ValueError:
        return read_param(name, text)
