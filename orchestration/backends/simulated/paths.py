"""Path selection in ns-3's switches: how it is described to the program, set and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from inventory.addressing import attachments
from inventory.routing import next_hops
from orchestration.backends.common.rig import KnobSettings
from orchestration.core.knobs import FLOWLET_TIMEOUT
from orchestration.core.load_balancing import KINDS, ROUTES, LoadBalancingSpec, balancing_facts
from orchestration.core.records import Ints
from orchestration.core.signals import BALANCING_KEYS
from orchestration.core.topology import Port, Testbed

# Of a switch: its timeout, then its signals.
_COLUMNS = 1 + len(BALANCING_KEYS)
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
    """The switches' flowlet timeouts as a rig's knob, and what they have chosen."""

    def __init__(self, testbed: Testbed, ask: Callable[[Ints, Ints], Ints]) -> None:
        """`ask` sets the timeouts of some switches in ns, by their places in `Testbed.switches`.

        It returns `_COLUMNS` numbers of every switch.
        """
        self._ask = ask
        self._switches = testbed.switches
        self.timeouts = KnobSettings(FLOWLET_TIMEOUT, testbed, self._read()[:, :1], self._exchange)

    def _exchange(self, switches: Ints, timeouts_ns: Ints) -> Ints:
        rows = self._ask(switches, timeouts_ns.ravel()).reshape(-1, _COLUMNS)
        return rows[switches, :1]

    def _read(self) -> Ints:
        none = np.zeros(0, dtype=np.int64)
        return self._ask(none, none).reshape(-1, _COLUMNS)

    def signals(self) -> dict[str, Ints]:
        """Read the switches; return their signals by key, arrays (switches,)."""
        return dict(zip(BALANCING_KEYS, self._read()[:, 1:].T, strict=True))

    def facts(self) -> dict[str, Any]:
        """Return facts and findings for the trial's record, as of now."""
        flowlets, reroutes, _, overflows = self.signals().values()
        lost = dict(zip(self._switches, overflows.tolist(), strict=True))
        return balancing_facts(int(flowlets.sum()), int(reroutes.sum()), lost)
