"""The margins within which differences between runs do not matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from orchestration.analysis.metric import Metric
from orchestration.analysis.metrics import METRICS
from orchestration.core.errors import InputError

DEFAULT_MARGIN = 0.10


@dataclass(frozen=True)
class Margins:
    """The margins of a comparison: the default, and those set for families or single metrics."""

    default: float = DEFAULT_MARGIN
    of: Mapping[str, float] = field(default_factory=dict)

    def margin(self, metric: Metric) -> float:
        """Return a metric's margin as a share of A's value."""
        return self.of.get(metric.key, self.of.get(metric.family, self.default))


def parse_margins(texts: Sequence[str]) -> Margins:
    """Parse margins such as `5%` and `slowdown_mean=15%`. Raises InputError with all problems."""
    default, of, compared = DEFAULT_MARGIN, {}, METRICS.between_runs
    known = sorted({name for metric in compared for name in (metric.key, metric.family)} - {""})
    for text in texts:
        name, equals, number = text.rpartition("=")
        share = _share(number, text)
        if not equals:
            default = share
        elif name in known:
            of[name] = share
        else:
            near = get_close_matches(name, known, 3) or sorted({m.family for m in compared} - {""})
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
