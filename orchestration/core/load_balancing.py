"""How switches choose among equal-cost ports: per flow, per flowlet, or per packet.

A flowlet is a burst of a flow that may take another path than the burst before it, as in LetFlow
(Vanini et al., NSDI 2017, section 3). Spraying chooses a path for each packet, as in RPS (Dixit et
al., INFOCOM 2013). docs/load-balancing.md has the rules that all backends follow: the hash, the
flowlet table and the random draws.
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
# CONGA's discounting rate estimator (DRE) measures a link's load: its register loses an eighth of
# its value in each eighth of `dre_time_ns` (CONGA, section 3.2).
DRE_SHIFT = 3
# A tag of CONGA has four bits, and one of its values means that there is no feedback.
MAX_CONGA_PORTS = 15

_MASK = 2**64 - 1


@dataclass(frozen=True)
class LoadBalancingSpec:
    """How the switches of a trial choose among equal-cost ports.

    With `ecmp`, a hash of the five-tuple chooses. With `flowlets`, a gap longer than the timeout
    begins a new flowlet, whose port is chosen by the rule `route_by`. With `spray`, that rule
    chooses for each packet. Switches of tier 1 (edges, leaves) have the timeout `edge_timeout_ns`,
    all others `aggregation_timeout_ns`. `entries` is the size of a switch's flowlet table. For
    CONGA, `dre_time_ns` is the paper's tau, and a path's metric that has not been updated for
    `metric_age_ns` fades.
    """

    kind: Kind = "ecmp"
    edge_timeout_ns: int = 200_000
    aggregation_timeout_ns: int = 200_000
    route_by: RouteBy = "random"
    entries: int = 65_536
    dre_time_ns: int = 160_000
    metric_age_ns: int = 10_000_000

    def timeout_ns(self, tier: int) -> int:
        """Return the initial timeout of switches of a tier; 0 makes each packet a flowlet."""
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
    """Return the 64-bit state that a switch's random stream begins with in a trial of `seed`.

    `switch` is its index in `Testbed.switches`. Each draw returns `splitmix64` of the state, and
    then adds 0x9E3779B97F4A7C15 to the state.
    """
    return splitmix64((splitmix64(seed & _MASK) + switch) & _MASK)


def balancing_facts(flowlets: int, reroutes: int, overflows: Mapping[str, int]) -> dict[str, Any]:
    """Return facts and findings about load balancing for a trial's record.

    `overflows` has for each switch the number of packets that found no entry in the flowlet table.
    """
    above_0 = {name: count for name, count in overflows.items() if count}
    facts = {"flowlets": flowlets, "reroutes": reroutes, "overflows": above_0}
    findings = []
    if above_0:
        switch = max(above_0, key=lambda name: above_0[name])
        text = (
            f"{sum(above_0.values())} packets found the flowlet table full and took their ECMP "
            f"path, {above_0[switch]} of them at {switch}: give it more 'entries'"
        )
        findings.append({"code": "flowlet-overflows", "severity": "warning", "text": text})
    return {"load_balancing": facts, "findings": findings}
