"""The campaign file's `load_balancing`: how switches choose among equal-cost next hops.

A flowlet is a burst of a flow, separated from the next one by an idle time: the `timeout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from inventory.routing import next_hops
from inventory.strictyaml import SOMETHING, Duration, StrictModel, must, one_of
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.core.load_balancing import (
    KINDS,
    MAX_CONGA_PORTS,
    MAX_DRE_TIME_NS,
    MAX_ENTRIES,
    MAX_TIMEOUT_NS,
    MIN_DRE_TIME_NS,
    MIN_ENTRIES,
    MIN_TIMEOUT_NS,
    ROUTES,
    LoadBalancingSpec,
)
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration

_DEFAULT = LoadBalancingSpec()

_shown = partial(format_duration, digits=6)
_TIMEOUT = must(
    lambda value: MIN_TIMEOUT_NS <= value <= MAX_TIMEOUT_NS,
    "a flowlet timeout of {} is out of range",
    "use 1us to 1s; `spray` chooses for each packet, `ecmp` for each flow",
    _shown,
)
_ENTRIES = must(
    lambda value: MIN_ENTRIES <= value <= MAX_ENTRIES and not value & (value - 1),
    "a flowlet table of {} entries is impossible",
    f"use a power of two, {MIN_ENTRIES} to {MAX_ENTRIES}",
)
_DRE_TIME = must(
    lambda value: MIN_DRE_TIME_NS <= value <= MAX_DRE_TIME_NS and not value % 8,
    "a dre_time of {} is impossible",
    "use 8us to 10ms, of which an eighth is a whole number of ns",
    _shown,
)


def _for_both_tiers(value: object) -> object:
    """Return a mapping as it is, and a single timeout for both tiers."""
    if isinstance(value, dict):
        return value
    return {"edge": value, "aggregation": value}


Timeout = Annotated[Duration, _TIMEOUT]


class Timeouts(StrictModel):
    """A timeout for switches that hosts attach to, and one for the tiers above."""

    edge: Timeout = Field(description="of edges and leaves, like 200us")
    aggregation: Timeout = Field(description="of all switches above, like 500us")


_Timeouts = Annotated[Timeouts, BeforeValidator(_for_both_tiers)]


# What the papers' choices are called, and the settings that they are.
_PUBLISHED = {
    "letflow": {"kind": "flowlets"},
    "conga": {"kind": "flowlets", "route_by": "conga"},
}


def load_balancing_as_mapping(value: object) -> object:
    """Return the mapping that a short form means: `ecmp`, `spray`, `flowlets`, `letflow`, `conga`.

    A mapping may have these names as its `kind`, too.
    """
    fields = {"kind": value} if isinstance(value, str) else value
    if not isinstance(fields, dict):
        return value
    kind = fields.get("kind")
    return {**fields, **_PUBLISHED.get(kind, {})} if isinstance(kind, str) else fields


class LoadBalancing(StrictModel):
    """How switches choose among equal-cost next hops."""

    kind: Annotated[str, one_of("no load balancing", KINDS)] = Field(
        default="ecmp",
        description="what keeps to one path: a flow, a packet, or a flowlet; `letflow` and `conga` "
        "are flowlets by random ports and by CONGA's",
    )
    timeout: Annotated[_Timeouts | None, SOMETHING] = Field(
        default=None,
        description="the idle time after which a flow's next packet begins a new flowlet, 200us by "
        "default: one duration, or a mapping",
    )
    route_by: Annotated[str, one_of("no route_by", ROUTES)] = Field(
        default=_DEFAULT.route_by,
        description="what chooses the port of a new flowlet, or under spray of a packet",
    )
    entries: Annotated[int, _ENTRIES] = Field(
        default=_DEFAULT.entries, description="the size of a switch's flowlet table"
    )
    dre_time: Annotated[Duration, _DRE_TIME] = Field(
        default=_DEFAULT.dre_time_ns,
        description="CONGA's time constant; at 1 Gbit/s use 1ms or more",
    )
    metric_age: Duration = Field(
        default=_DEFAULT.metric_age_ns,
        description="how long CONGA uses a metric that is not updated",
    )

    def spec(self) -> LoadBalancingSpec:
        """Return the load balancing of a trial, with times in ns and defaults filled in."""
        kind: Any = self.kind
        route_by: Any = self.route_by
        given = self.timeout
        return LoadBalancingSpec(
            kind,
            given.edge if given else _DEFAULT.edge_timeout_ns,
            given.aggregation if given else _DEFAULT.aggregation_timeout_ns,
            route_by,
            self.entries,
            self.dre_time,
            self.metric_age,
        )


# Settings that only flowlets use, and those that any choice other than ECMP's uses.
_FLOWLET_FIELDS, _CHOICE_FIELDS = ("timeout", "entries"), ("route_by", "dre_time", "metric_age")


def check_load_balancing(campaign: Fields, testbed: Testbed | None) -> Iterator[LocatedProblem]:
    """Report settings that would have no effect, and a testbed with a single path."""
    balancing: LoadBalancing | None = campaign.get("load_balancing")
    if balancing is None:
        return
    yield from _check_unused(balancing)
    if balancing.kind != "ecmp" and testbed is not None:
        yield from _check_paths(balancing, testbed)


def _check_unused(balancing: LoadBalancing) -> Iterator[LocatedProblem]:
    without_effect = {"ecmp": (*_FLOWLET_FIELDS, *_CHOICE_FIELDS), "spray": _FLOWLET_FIELDS}
    unused = without_effect.get(balancing.kind, ())
    for name in unused:
        if name in balancing.model_fields_set:
            yield LocatedProblem(
                ("load_balancing", name),
                f"{balancing.kind} has no {name!r}",
                "remove it, or use `kind: flowlets`",
            )
    if balancing.kind != "ecmp" and balancing.route_by != "conga":
        for name in ("dre_time", "metric_age"):
            if name in balancing.model_fields_set:
                yield LocatedProblem(
                    ("load_balancing", name),
                    f"only CONGA uses {name!r}, and flowlets are routed by {balancing.route_by}",
                    "remove it, or use `route_by: conga`",
                )


def _check_paths(balancing: LoadBalancing, testbed: Testbed) -> Iterator[LocatedProblem]:
    hops = next_hops(testbed)
    counts = [len(ports) for name in testbed.switches for ports in hops[name].values()]
    maximum = max(counts, default=1)
    if maximum < 2:
        yield LocatedProblem(
            ("load_balancing",),
            f"testbed {testbed.name} has one path between any two hosts: there is nothing to "
            "balance",
            "leave it out, or use a testbed with several spines, like graphcc",
        )
    elif balancing.route_by == "conga" and maximum > MAX_CONGA_PORTS:
        yield LocatedProblem(
            ("load_balancing", "route_by"),
            f"a switch of testbed {testbed.name} has {maximum} equal-cost next hops, and CONGA's "
            f"tags have numbers for {MAX_CONGA_PORTS}",
            "use another route_by, or a testbed with fewer spines",
        )
