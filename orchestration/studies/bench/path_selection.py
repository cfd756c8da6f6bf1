"""Measures what choosing paths costs: the same trials under ECMP, flowlets and spraying."""

from __future__ import annotations

import statistics

from orchestration.model.load_balancing import ECMP, LoadBalancingSpec
from orchestration.model.roce import DCQCN_SETS, RoceSpec
from orchestration.model.trial import TCP, HostSpec
from orchestration.studies.bench.outcome import (
    MILLISECOND,
    SECN1,
    Figure,
    Outcome,
    at_most,
    run_trial,
    websearch,
)

_LASTS_NS = 20 * MILLISECOND
_PAIRS = 5
_HOSTS = {
    "DCTCP": TCP,
    # a receiver that bears what comes out of order, so that all sides send as many packets
    "DCQCN": HostSpec(
        "dcqcn",
        roce=RoceSpec(dcqcn=tuple(DCQCN_SETS["hpcc"].items()), recovery="selective-repeat"),
    ),
}
_SIDES = {
    "flowlets, 200 us, random": LoadBalancingSpec("flowlets"),
    "flowlets, 20 us, CONGA": LoadBalancingSpec("flowlets", 20_000, 20_000, "conga"),
    "spraying, random": LoadBalancingSpec("spray"),
    "spraying, DRILL": LoadBalancingSpec("spray", route_by="drill"),
}
# What the paper's rivals use is held to the bound; the others are beside it.
_HELD = ("flowlets, 200 us, random",)


def path_selection() -> Outcome:
    """Flowlets and spraying against ECMP: graphcc, WebSearch at 60 %, 20 ms, in turn."""
    figures, ratios = [], {}
    for transport, host in _HOSTS.items():
        walls: dict[str, list[float]] = {name: [] for name in _SIDES}
        for _ in range(_PAIRS):
            plain_s = _wall_s(host, ECMP)
            for name, spec in _SIDES.items():
                walls[name].append(_wall_s(host, spec) / plain_s)
        ratios[transport] = walls
        for name, found in walls.items():
            more = 100 * (statistics.median(found) - 1)
            what = f"{transport}: wall time of {name} above ECMP's, median of {_PAIRS}"
            figures.append(
                at_most(what, more, 10, 1, " %") if name in _HELD else Figure(what, f"{more:.1f} %")
            )
    return Outcome(
        "Choosing paths: graphcc, WebSearch at 60 %, 20 ms of arrivals, all ports every 100 us",
        tuple(figures),
        notes=("each trial beside one of ECMP, boot left out, of all flows until they end",),
        data={"ratios": ratios},
    )


def _wall_s(host: HostSpec, spec: LoadBalancingSpec) -> float:
    run = run_trial(
        "graphcc",
        websearch(_LASTS_NS),
        SECN1,
        duration_ns=_LASTS_NS,
        host=host,
        load_balancing=spec,
    )
    return float(run.record.facts["stages_s"]["run"])
