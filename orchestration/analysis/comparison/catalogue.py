"""The metrics on which runs are compared, and the margin of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from orchestration.analysis.metrics import (
    METRIC,
    SIZE_CLASSES,
    SLOWDOWN_STATISTICS,
    Unit,
    fct_key,
    slowdown_key,
)
from orchestration.model.errors import InputError

Group = Literal["flows", "ports"]
DEFAULT_MARGIN = 0.10
# Smaller differences never matter, whatever the percentage: one packet in a queue, rare marks.
_PACKET_BYTES, _MARKED_SHARE, _UTILISATION, _DROPPED_SHARE = 1_500.0, 0.002, 0.005, 0.0005

FCT_RATIO = "fct_ratio"
SLOWDOWN_WASSERSTEIN, SLOWDOWN_KS = "slowdown_wasserstein", "slowdown_ks"
QUEUE_WASSERSTEIN = "queue_wasserstein_bytes"
DROPPED_SHARE = "dropped_share"


@dataclass(frozen=True)
class Compared:
    """One metric. Its margin is a share of A's value, or `floor` in its unit if that is more.

    A margin can be set for `key` or for the whole `family`. A metric with a `distance` compares
    whole distributions: it is never negative, and its margin is a share of A's mean ("mean") or of
    all flows ("cdf"). `klass` is its class of flow sizes.
    """

    key: str
    label: str
    unit: Unit
    family: str
    group: Group
    floor: float = 0.0
    distance: Literal["", "mean", "cdf"] = ""
    klass: str = "all"


def _slowdowns() -> list[Compared]:
    return [
        Compared(key, METRIC[key].label, "ratio", f"slowdown_{statistic}", "flows", klass=klass)
        for statistic in ("mean", "p50", "p99")
        if statistic in SLOWDOWN_STATISTICS
        for klass in SIZE_CLASSES
        for key in (slowdown_key(statistic, klass),)
    ]


def _reported(key: str, family: str, floor: float, label: str = "") -> Compared:
    metric = METRIC[key]
    return Compared(key, label or metric.label, metric.unit, family, "ports", floor)


COMPARED: tuple[Compared, ...] = (
    *_slowdowns(),
    Compared(fct_key("all"), "mean FCT", "ns", "fct_mean", "flows"),
    Compared(FCT_RATIO, "FCT, flow by flow", "ratio", FCT_RATIO, "flows"),
    Compared(
        SLOWDOWN_WASSERSTEIN,
        "slowdown, Wasserstein",
        "ratio",
        "slowdown_wasserstein",
        "flows",
        distance="mean",
    ),
    Compared(
        SLOWDOWN_KS,
        "slowdown, KS distance",
        "share",
        "slowdown_ks",
        "flows",
        distance="cdf",
    ),
    _reported("queue_mean_bytes", "queue_mean", _PACKET_BYTES),
    _reported("queue_p99_bytes", "queue_p99", _PACKET_BYTES),
    Compared(
        QUEUE_WASSERSTEIN,
        "queue, Wasserstein",
        "bytes",
        "queue_wasserstein",
        "ports",
        _PACKET_BYTES,
        "mean",
    ),
    _reported("marked_share", "marked_share", _MARKED_SHARE),
    _reported("utilisation_hosts", "utilisation", _UTILISATION, "links to hosts used"),
    _reported("utilisation_fabric", "utilisation", _UTILISATION, "core links used"),
    Compared(DROPPED_SHARE, "packets dropped", "share", DROPPED_SHARE, "ports", _DROPPED_SHARE),
)
COMPARED_BY_KEY = {metric.key: metric for metric in COMPARED}


@dataclass(frozen=True)
class Margins:
    """The margins of a comparison: the default, and those set for families or single metrics."""

    default: float = DEFAULT_MARGIN
    of: Mapping[str, float] = field(default_factory=dict)

    def margin(self, metric: Compared) -> float:
        """Return a metric's margin as a share of A's value."""
        return self.of.get(metric.key, self.of.get(metric.family, self.default))


def parse_margins(texts: Sequence[str]) -> Margins:
    """Parse margins such as `5%` and `slowdown_mean=15%`. Raises InputError with all problems."""
    default, of = DEFAULT_MARGIN, {}
    known = sorted({name for metric in COMPARED for name in (metric.key, metric.family)})
    for text in texts:
        name, equals, number = text.rpartition("=")
        share = _share(number, text)
        if not equals:
            default = share
        elif name in known:
            of[name] = share
        else:
            near = get_close_matches(name, known, 3) or sorted({m.family for m in COMPARED})
            raise InputError.single(
                "--margin", f"no metric is called {name!r}", f"known: {', '.join(near)}"
            )
    return Margins(default, of)


def _share(number: str, text: str) -> float:
    try:
        share = float(number.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not number.endswith("%") or not 0 < share < 1:
        raise InputError.single(
            "--margin",
            f"{text!r} is not a share between 0% and 100%",
            "write it like 5% or slowdown_mean=15%",
        )
    return share
