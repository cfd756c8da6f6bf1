"""Turns a trial's faults into steps in time, the same on every backend. Pure.

A fault cuts links. `convergence_ns` after a cut or a repair, routes avoid the links that are down:
until then packets that are sent to a cut link are lost, as on a network whose routing protocol has
not converged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestration.core.topology import Link, Testbed
from orchestration.core.trial import FaultSpec, TrialSpec

# Separates the choice of links from the other random choices of a trial's seed.
_FAULT_STREAM = 0x6661756C74


@dataclass(frozen=True)
class FaultStep:
    """A change of the links or of the routes at `t_ns`.

    With kind `links`, the links in `down` (indices) go down and all others come up. With kind
    `routes`, routes avoid the links in `down` from now on. `detail` names the links that change.
    """

    t_ns: int
    kind: Literal["links", "routes"]
    down: frozenset[int]
    detail: str


def fault_plan(trial: TrialSpec, testbed: Testbed) -> tuple[FaultStep, ...]:
    """Return the trial's faults in order of time.

    A link is down while any fault holds it down. Raises ValueError for a link that does not exist.
    """
    faults = [
        (fault, _links_of(fault, number, trial.seed, testbed))
        for number, fault in enumerate(trial.faults)
    ]
    times = {
        (t_ns, fault.convergence_ns)
        for fault, _ in faults
        for t_ns in (fault.down_ns, fault.up_ns)
        if t_ns is not None
    }
    steps = []
    before: frozenset[int] = frozenset()
    for t_ns, convergence_ns in sorted(times):
        down = frozenset(
            index
            for fault, links in faults
            if fault.down_ns <= t_ns and (fault.up_ns is None or t_ns < fault.up_ns)
            for index in links
        )
        detail = _difference(testbed, before, down)
        if detail:
            steps.append(FaultStep(t_ns, "links", down, detail))
            steps.append(FaultStep(t_ns + convergence_ns, "routes", down, detail))
        before = down
    return tuple(sorted(steps, key=lambda step: step.t_ns))


def link_name(testbed: Testbed, link: Link, *, turned: bool = False) -> str:
    """Return a link's name in campaign files, like `leaf1-spine2`; `turned`, `spine2-leaf1`."""
    ends = [testbed.ports[end].device for end in (link.a, link.b)]
    return "-".join(reversed(ends) if turned else ends)


def _links_of(fault: FaultSpec, number: int, seed: int, testbed: Testbed) -> frozenset[int]:
    """Return the links that fault `number` of a trial cuts: a random share, or those it names."""
    if fault.share > 0:
        between_switches = [
            link.index
            for link in testbed.links
            if all(testbed.device[testbed.ports[end].device].tier > 0 for end in (link.a, link.b))
        ]
        links = len(between_switches)
        count = min(links, max(1, math.floor(fault.share * links + 0.5)))
        rng = np.random.default_rng([seed, number, _FAULT_STREAM])
        return frozenset(rng.choice(between_switches, size=count, replace=False).tolist())
    named: set[int] = set()
    for name in fault.links:
        matching = {
            link.index
            for link in testbed.links
            if name in (link_name(testbed, link), link_name(testbed, link, turned=True))
        }
        if not matching:
            raise ValueError(f"no link {name!r} on testbed {testbed.name}")
        named |= matching
    return frozenset(named)


def _difference(testbed: Testbed, before: frozenset[int], after: frozenset[int]) -> str:
    def names(links: frozenset[int]) -> str:
        return ", ".join(link_name(testbed, testbed.links[index]) for index in sorted(links))

    parts = [("down: ", after - before), ("up: ", before - after)]
    return "; ".join(prefix + names(links) for prefix, links in parts if links)
