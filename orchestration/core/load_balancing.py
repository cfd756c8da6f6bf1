"""How switches choose among equal-cost ports: per flow, per flowlet, or per packet.

Flowlets are those of LetFlow (Vanini et al., NSDI 2017, section 3), spraying is RPS (Dixit et al.,
INFOCOM 2013). What every backend does alike, hash, table and draws included, is in
docs/load-balancing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["ecmp", "spray", "flowlets"]
RouteBy = Literal["random", "round-robin", "drill", "conga"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ROUTES: tuple[RouteBy, ...] = get_args(RouteBy)

MIN_TIMEOUT_NS, MAX_TIMEOUT_NS = 1_000, 1_000_000_000
MIN_ENTRIES, MAX_ENTRIES = 4, 1 << 20
MIN_DRE_TIME_NS, MAX_DRE_TIME_NS = 8_000, 10_000_000
# DRE's register loses an eighth each eighth of its time (CONGA, section 3.2).
DRE_SHIFT = 3
# Of CONGA's tags: four bits, of which one value says that there is no feedback.
MAX_CONGA_PORTS = 15

_MASK = 2**64 - 1


@dataclass(frozen=True)
class LoadBalancingSpec:
    """How the switches of a trial choose; `ecmp` is a hash of the five-tuple, as ever.

    A gap of more than the timeout begins a new flowlet, which `route_by` routes; under `spray` it
    routes each packet. Switches of tier 1 (edges, leaves) have one timeout, all others the other.
    `entries` is the size of a switch's flowlet table. `dre_time_ns` is CONGA's tau, and a metric
    without news for `metric_age_ns` fades.
    """

    kind: Kind = "ecmp"
    edge_timeout_ns: int = 200_000
    aggregation_timeout_ns: int = 200_000
    route_by: RouteBy = "random"
    entries: int = 65_536
    dre_time_ns: int = 160_000
    metric_age_ns: int = 10_000_000

    def timeout_ns(self, tier: int) -> int:
        """Return the timeout that a switch of a tier begins with; 0 makes each packet a flowlet."""
        if self.kind == "spray":
            return 0
        return self.edge_timeout_ns if tier == 1 else self.aggregation_timeout_ns


ECMP = LoadBalancingSpec()


def splitmix64(value: int) -> int:
    """Return SplitMix64's output for a state: Steele, Lea, Flood, OOPSLA 2014, figure 17."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
    return z ^ z >> 31


def initial_random_state(seed: int, switch: int) -> int:
    """Return the 64 bits that a switch's stream of draws begins with, of a trial's seed.

    `switch` is its place in `Testbed.switches`. Each draw adds 0x9E3779B97F4A7C15 to the state, and
    is `splitmix64` of the state before that.
    """
    return splitmix64((splitmix64(seed & _MASK) + switch) & _MASK)


def balancing_facts(flowlets: int, reroutes: int, overflows: Mapping[str, int]) -> dict[str, Any]:
    """Return facts and findings for a trial's record; `overflows` are packets by switch."""
    lost = {name: count for name, count in overflows.items() if count}
    facts = {"flowlets": flowlets, "reroutes": reroutes, "overflows": lost}
    findings = []
    if lost:
        maximum = max(lost, key=lambda name: lost[name])
        text = (
            f"{sum(lost.values())} packets found the flowlet table full and took their ECMP path, "
            f"{lost[maximum]} of them at {maximum}: give it more 'entries'"
        )
        findings.append({"code": "flowlet-overflows", "severity": "warning", "text": text})
    return {"load_balancing": facts, "findings": findings}
