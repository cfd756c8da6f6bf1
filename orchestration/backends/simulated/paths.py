"""Path selection in ns-3's switches: how it is described to the program, set and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from inventory.addressing import attachments
from inventory.routing import next_hops
from orchestration.core.knobs import FLOWLET_TIMEOUT
from orchestration.core.load_balancing import (
    KINDS,
    ROUTES,
    LoadBalancingSpec,
    overflow_findings,
)
from orchestration.core.records import Change, Ints
from orchestration.core.signals import BALANCING_KEYS
from orchestration.core.topology import Port, Testbed

# Of a switch: its timeout, then its signals.
_COLUMNS = 1 + len(BALANCING_KEYS)
# Sets the timeouts of some switches in ns, by their places in `Testbed.switches`; returns
# `_COLUMNS` numbers of every switch.
Exchange = Callable[[Ints, Ints], Ints]
_Hops = Mapping[str, Mapping[str, tuple[Port, ...]]]


def rules(spec: LoadBalancingSpec, testbed: Testbed) -> list[list[int]]:
    """Return how switches choose, and each device's flowlet timeout and tier.

    Kinds and routes are numbered as in `ns3/balancing.h`.
    """
    return [
        [
            KINDS.index(spec.kind),
            ROUTES.index(spec.route_by),
            spec.entries,
            spec.dre_time_ns,
            spec.metric_age_ns,
        ],
        [
            spec.timeout_ns(device.tier) if device.kind == "switch" else 0
            for device in testbed.devices
        ],
        [device.tier for device in testbed.devices],
    ]


def partner_rows(spec: LoadBalancingSpec, testbed: Testbed) -> list[int]:
    """Return, for CONGA, with whom a switch that chooses keeps metrics: switch, target, partner.

    That is the next switch of its tier on the way to the leaf with the number `target`: for a leaf
    that leaf, for an aggregation switch the one below the same cores.
    """
    if spec.kind == "ecmp" or spec.route_by != "conga":
        return []
    hops = next_hops(testbed)
    number = {device.name: i for i, device in enumerate(testbed.devices)}
    rows = []
    for name in testbed.switches:
        for target, place in attachments(testbed).items():
            if len(hops[name].get(target, ())) > 1 and (
                other := _partner(testbed, hops, name, target)
            ):
                rows += [number[name], place, number[other]]
    return rows


def _partner(testbed: Testbed, hops: _Hops, name: str, target: str) -> str:
    """Return the next switch of a switch's tier on its way to `target`, "" if there is none."""
    here, tier = name, testbed.device[name].tier
    while here != target:
        here = testbed.peer_device(hops[here][target][0]).name
        if testbed.device[here].tier == tier:
            return here
    return ""


class PathChoices:
    """The switches' flowlet timeouts as a rig's knob, and what they have chosen.

    `known` has the timeouts by name, arrays (switches,), which are never altered.
    """

    def __init__(self, testbed: Testbed, exchange: Exchange) -> None:
        self._exchange = exchange
        self._switches = testbed.switches
        self._bounds = FLOWLET_TIMEOUT.bounds(testbed)
        none = np.zeros(0, dtype=np.int64)
        self._rows = self._ask(none, none)

    def _ask(self, switches: Ints, timeouts_ns: Ints) -> Ints:
        return self._exchange(switches, timeouts_ns).reshape(-1, _COLUMNS)

    @property
    def known(self) -> dict[str, Ints]:
        """Return the timeouts that were read last."""
        return FLOWLET_TIMEOUT.named(self._rows[:, 0])

    def signals(self) -> dict[str, Ints]:
        """Read the switches; return their signals by key, arrays (switches,)."""
        none = np.zeros(0, dtype=np.int64)
        self._rows = self._ask(none, none)
        return dict(zip(BALANCING_KEYS, self._rows[:, 1:].T, strict=True))

    def facts(self) -> dict[str, Any]:
        """Return facts and findings for the trial's record, as of now."""
        flowlets, reroutes, _, overflows = self.signals().values()
        lost = dict(zip(self._switches, overflows.tolist(), strict=True))
        return {
            "load_balancing": {
                "flowlets": int(flowlets.sum()),
                "reroutes": int(reroutes.sum()),
                "overflows": {name: count for name, count in lost.items() if count},
            },
            "findings": overflow_findings(lost),
        }

    def turn(self, change: Change) -> Change:
        """Set timeouts, and return what the switches then have.

        Raises ImpossibleSetting for what is out of bounds.
        """
        self._bounds.check(change)
        timeouts_ns = np.rint(change["timeout_ns"]).astype(np.int64)
        self._rows = self._ask(change.targets, timeouts_ns)
        return Change(
            change.knob, change.targets, FLOWLET_TIMEOUT.named(self._rows[change.targets, 0])
        )
