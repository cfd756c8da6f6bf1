"""The campaign file's `load_balancing`: how switches choose among equal-cost ports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from inventory.routing import next_hops
from inventory.strictyaml import Duration, StrictModel, must, one_of
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


def _both(value: object) -> object:
    if isinstance(value, dict):
        return value
    return {"edge": value, "aggregation": value}


Timeout = Annotated[Duration, _TIMEOUT]


class Timeouts(StrictModel):
    """One timeout for switches that hosts attach to, one for those above."""

    edge: Timeout = Field(description="of edges and leaves, like 200us")
    aggregation: Timeout = Field(description="of all switches above, like 500us")


class LoadBalancing(StrictModel):
    """How switches choose among equal-cost ports."""

    kind: Annotated[str, one_of("no load balancing", KINDS)] = Field(
        default="ecmp", description="what keeps to one path: a flow, a packet, or a flowlet"
    )
    timeout: Annotated[Timeouts, BeforeValidator(_both)] | None = Field(
        default=None,
        description="the gap after which a flow's next packet begins a new flowlet, 200us without "
        "it: one duration, or a mapping",
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
        description="how long CONGA believes a metric that it hears nothing more of",
    )

    def spec(self) -> LoadBalancingSpec:
        """Return it as a trial has it."""
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


_OF_FLOWLETS, _OF_CHOICES = ("timeout", "entries"), ("route_by", "dre_time", "metric_age")


def check_load_balancing(whole: Fields, testbed: Testbed | None) -> Iterator[LocatedProblem]:
    """Report settings that would do nothing, and a testbed without a choice of paths."""
    asked: LoadBalancing | None = whole.get("load_balancing")
    if asked is None:
        return
    yield from _check_unused(asked)
    if asked.kind == "ecmp":
        return
    if testbed is not None:
        yield from _check_paths(asked, testbed)


def _check_unused(asked: LoadBalancing) -> Iterator[LocatedProblem]:
    unused = {"ecmp": (*_OF_FLOWLETS, *_OF_CHOICES), "spray": _OF_FLOWLETS}.get(asked.kind, ())
    for name in unused:
        if name in asked.model_fields_set:
            yield LocatedProblem(
                ("load_balancing", name),
                f"{asked.kind} has no {name!r}",
                "remove it, or use `kind: flowlets`",
            )
    if asked.kind != "ecmp" and asked.route_by != "conga":
        for name in ("dre_time", "metric_age"):
            if name in asked.model_fields_set:
                yield LocatedProblem(
                    ("load_balancing", name),
                    f"{name!r} is CONGA's, and new flowlets are routed by {asked.route_by}",
                    "remove it, or use `route_by: conga`",
                )


def _check_paths(asked: LoadBalancing, testbed: Testbed) -> Iterator[LocatedProblem]:
    hops = next_hops(testbed)
    ways = [len(ports) for name in testbed.switches for ports in hops[name].values()]
    maximum = max(ways, default=1)
    if maximum < 2:
        yield LocatedProblem(
            ("load_balancing",),
            f"testbed {testbed.name} has one path between any two hosts: there is nothing to "
            "balance",
            "leave it out, or use a testbed with several spines, like graphcc",
        )
    elif asked.route_by == "conga" and maximum > MAX_CONGA_PORTS:
        yield LocatedProblem(
            ("load_balancing", "route_by"),
            f"a switch of testbed {testbed.name} has {maximum} equal-cost ports, and CONGA's tags "
            f"tell {MAX_CONGA_PORTS} apart",
            "use another route_by, or a testbed with fewer spines",
        )
