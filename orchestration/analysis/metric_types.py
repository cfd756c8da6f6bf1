"""The entries of the catalogue of metrics (`metrics`): name, unit, scope, aggregation, source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orchestration.render.numbers import Unit

if TYPE_CHECKING:
    from orchestration.results.reader import TrialResult

# What a metric is measured at. `pair` are metrics of two trials together.
Scope = Literal["flow", "queue", "port", "class", "switch", "host", "trial", "pair"]
# How it is aggregated: over flows, samples, or targets.
Law = Literal[
    "mean", "quantile", "maximum", "deviation", "share", "ratio", "count", "total", "distance"
]
Better = Literal["lower", "higher"]
# The data from which `trial_metrics` computes it, together with others of the same data.
Source = Literal[
    "flow-classes", "flows", "flow-samples", "queues", "links", "devices", "paths", "load",
    "balance", "hosts-links", "incasts", "goodput", "backlog", "pair", "own",
]  # fmt: skip


@dataclass(frozen=True)
class FlowChoice:
    """Which finished flows a metric counts, by size, and by which column of them."""

    column: Literal["fct_ns", "slowdown"] = "fct_ns"
    min_bytes: int = 0
    max_bytes: int | None = None


@dataclass(frozen=True)
class Metric:
    """A metric of a trial, or of a pair of trials.

    `law` is how it is aggregated, `columns` are the tables' columns from which it is computed. A
    metric of a user's own is computed by `of`. If `compared`, tuners are tested against each other
    on it. A metric that `may_be_zero` cannot be an objective of a search, because regret is
    relative.

    A metric with a `family` is compared between runs. Its margin, set for the key or the family, is
    a share of A's value, or `floor` in its unit if that is more. A metric with a `distance`
    compares whole distributions: it is never negative, and its margin is a share of A's mean
    ("mean") or of all flows ("cdf"). `klass` is its class of flow sizes; `topic` is the group of
    metrics that a difference in a setting affects together. `short` is its label where there is
    less room, `statement` the title of a figure of it, in which `{}` stands for the values.
    """

    key: str
    label: str
    unit: Unit
    scope: Scope
    law: Law
    better: Better = "lower"
    source: Source = "own"
    columns: tuple[str, ...] = ()
    compared: bool = False
    short: str = ""
    statement: str = ""
    quantile: float | None = None
    flows: FlowChoice | None = None
    may_be_zero: bool = False
    family: str = ""
    topic: str = ""
    floor: float = 0.0
    distance: Literal["", "mean", "cdf"] = ""
    klass: str = "all"
    of: Callable[[TrialResult], float] | None = None

    @property
    def short_label(self) -> str:
        """The label in comparisons of runs, on axes, and in headings of columns."""
        return self.short or self.label

    @property
    def title(self) -> str:
        """The title of a figure; `{}` stands for the values."""
        return self.statement or f"{self.label[0].upper()}{self.label[1:]}: {{}}"

    @property
    def tail(self) -> float | None:
        """The quantile, if it is one of chosen flows of all repeats together; else None."""
        return self.quantile if self.flows else None
