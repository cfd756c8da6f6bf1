"""The dimensions that are searched by default: thresholds, DCQCN's parameters, flowlet timeouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestration.campaign.fields import read_param
from orchestration.core.errors import InputError, check_known
from orchestration.core.load_balancing import LEAST_TIMEOUT_NS, MOST_TIMEOUT_NS
from orchestration.core.roce import DCQCN_PARAMETERS, RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from orchestration.search.space import Dimension, Space
from tuners.ecn.static import REFERENCE_RATE_BPS
from tuners.flowlet.settings import LONGEST_NS, SHORTEST_NS

# SECN1 and SECN2 of the ACC paper: what its authors found in use.
_KNOWN = ((5_000, 200_000, 0.01, False), (100_000, 400_000, 0.2, True))
_LEAST_THRESHOLD_BYTES = 1_000
_LEAST_PMAX, _LOWEST_PMAX = 0.01, 0.0001
# The parameters of DCQCN that decide how fast rates fall and rise, with ranges around what mlx5
# NICs, the DCQCN paper and HPCC's simulator have.
_DCQCN_RANGES: Mapping[str, tuple[int, int]] = {
    "rpg_time_reset": (30, 1_000),
    "rpg_ai_rate": (2, 500),
    "rpg_hai_rate": (10, 2_000),
    "dce_tcp_rtt": (1, 256),
    "rate_reduce_monitor_period": (1, 256),
}
_DCQCN_CHOICES = ("clamp_tgt_rate",)


def threshold_space(testbeds: Sequence[Testbed], roce: RoceSpec | None, *, dcqcn: bool) -> Space:
    """Return the space of `static`, with DCQCN's parameters if `dcqcn` (`roce` has the campaign's).

    kmin from 1 KB, kmax to the largest port's buffer, pmax to 1; scaled by rate or not, where ports
    have several rates.
    """
    queues = [queue for testbed in testbeds for queue in testbed.queues]
    rates = {queue.rate_bps for queue in queues}
    buffer = max(queue.buffer_bytes for queue in queues)
    sizes = [
        Dimension(
            name,
            least=_LEAST_THRESHOLD_BYTES,
            most=buffer,
            lowest=_LEAST_THRESHOLD_BYTES,
            highest=buffer,
            reason=("less than one packet", "the largest buffer of a port"),
        )
        for name in ("kmin_bytes", "kmax_bytes")
    ]
    pmax = Dimension(
        "pmax",
        least=_LEAST_PMAX,
        most=1.0,
        lowest=_LOWEST_PMAX,
        highest=1.0,
        reason=("a packet in 10,000 at kmax", "every packet at kmax"),
        whole=False,
    )
    scaled = [Dimension("per_25g", choices=(False, True))] if len(rates) > 1 else []
    own = _dcqcn_dimensions() if dcqcn else []
    dimensions = (*sizes, pmax, *scaled, *own)
    presets = _dcqcn_presets(roce) if dcqcn else [{}]
    known = []
    for kmin, kmax, share, per_25g in _KNOWN:
        # with one rate there is nothing to scale by, but the sizes are that rate's
        factor = next(iter(rates)) / REFERENCE_RATE_BPS if per_25g and len(rates) == 1 else 1.0
        for preset in presets:
            values: dict[str, Scalar] = {
                "kmin_bytes": min(round(kmin * factor), buffer),
                "kmax_bytes": min(round(kmax * factor), buffer),
                "pmax": share,
                "per_25g": per_25g,
                **preset,
            }
            known.append(tuple((one.name, values[one.name]) for one in dimensions))
    return Space(dimensions, tuple(dict.fromkeys(known)))


def dcqcn_space(roce: RoceSpec | None) -> Space:
    """Return the space of DCQCN's parameters under SECN1's thresholds, which stay."""
    kmin, kmax, share, _ = _KNOWN[0]
    fixed = (
        Dimension("kmin_bytes", choices=(kmin,)),
        Dimension("kmax_bytes", choices=(kmax,)),
        Dimension("pmax", choices=(share,)),
    )
    dimensions = (*fixed, *_dcqcn_dimensions())
    thresholds: dict[str, Scalar] = {"kmin_bytes": kmin, "kmax_bytes": kmax, "pmax": share}
    known = [
        tuple((one.name, {**thresholds, **preset}[one.name]) for one in dimensions)
        for preset in _dcqcn_presets(roce)
    ]
    return Space(dimensions, tuple(dict.fromkeys(known)))


def timeout_space() -> Space:
    """Return the space of `timeout`: flowlet timeouts, DRLet's figure 3's at first."""
    timeout = Dimension(
        "timeout_ns",
        least=SHORTEST_NS,
        most=LONGEST_NS,
        lowest=LEAST_TIMEOUT_NS,
        highest=MOST_TIMEOUT_NS,
        reason=("every packet may change its path", "no gap is longer"),
    )
    return Space((timeout,), ((("timeout_ns", 200_000),),))


def with_ranges(space: Space, given: Sequence[str]) -> Space:
    """Return the space with ranges as `NAME=LEAST:MOST`; limits stay where they are.

    A parameter of DCQCN that is not searched yet is added, if others of DCQCN are. Raises
    InputError for a name that is none of the space's, or a range that is none.
    """
    for text in given:
        name, _, bounds = text.partition("=")
        known = {one.name: one for one in space.dimensions if not one.choices}
        if name not in known and name in DCQCN_PARAMETERS and "rpg_ai_rate" in known:
            added = _dcqcn_dimension(name, _parsed(name, bounds))
            default = DCQCN_SETS["mlx5"][name]
            space = Space(
                (*space.dimensions, added),
                tuple((*one, (name, default)) for one in space.known),
            )
            known[name] = added
        check_known("--range", "{!r} is not searched", [name], known, "there are ")
        one, (low, high) = known[name], _parsed(name, bounds)
        if not one.lowest <= low < high <= one.highest:
            raise InputError.single(
                "--range",
                f"{text}: not a range inside the limits {one.lowest:g} to {one.highest:g}",
                "give the lower bound first, both within the limits",
            )
        new = Dimension(name, low, high, one.lowest, one.highest, one.reason, one.whole)
        space = Space(tuple(new if d.name == name else d for d in space.dimensions), space.known)
    return space


def ranges_of(space: Space) -> dict[str, tuple[Scalar, ...]]:
    """Return the ranges of a space by parameter: the two ends, or the choices."""
    return {
        one.name: one.choices
        or ((round(one.least), round(one.most)) if one.whole else (one.least, one.most))
        for one in space.dimensions
    }


def _dcqcn_dimensions() -> list[Dimension]:
    ranged = [_dcqcn_dimension(name, bounds) for name, bounds in _DCQCN_RANGES.items()]
    return [*ranged, *(Dimension(name, choices=(0, 1)) for name in _DCQCN_CHOICES)]


def _dcqcn_dimension(name: str, bounds: tuple[float, float]) -> Dimension:
    parameter = DCQCN_PARAMETERS[name]
    reason = "the least that mlx5 NICs take", "the most that mlx5 NICs take"
    # logarithms have no 0, which mostly means off
    lowest = max(1, parameter.least)
    return Dimension(name, bounds[0], bounds[1], lowest, parameter.most, reason)


def _dcqcn_presets(roce: RoceSpec | None) -> list[dict[str, Scalar]]:
    """Return the parameters of the campaign, of mlx5 NICs and of the DCQCN paper."""
    own = [roce.parameters] if roce is not None else []
    sets = [*own, DCQCN_SETS["mlx5"], DCQCN_SETS["paper"]]
    names = (*_DCQCN_RANGES, *_DCQCN_CHOICES)
    return [{name: values[name] for name in names} for values in sets]


def _parsed(name: str, text: str) -> tuple[float, float]:
    """Return the bounds of a range `LEAST:MOST`."""
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(_value(name, low)), float(_value(name, high))
    except ValueError:
        raise InputError.single(
            "--range", f"{name}={text} is no range", "write it like kmin_bytes=1KB:200KB"
        ) from None


def _value(name: str, text: str) -> Scalar:
    try:
        return float(text)
    except ValueError:
        return read_param(name, text)
