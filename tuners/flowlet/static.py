"""Flowlet timeouts that do not depend on observations.

LetFlow's, any other fixed one, the best one for a load, and random ones (DRLet's placebo).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.core.records import Action, Observation, Setup
from tuners.base import share_faults
from tuners.flowlet.settings import (
    FlowletTuner,
    Uplinks,
    best_static_ns,
    host_rate,
    timeout_change,
    timeout_faults,
    timeout_of,
)

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

LETFLOW_NS = 200_000


@dataclass(eq=False)
class StaticTimeout(FlowletTuner):
    """One timeout at all switches.

    With random routes, a timeout of 1 us sprays packets at up to 10 Gbit/s, as RPS does: no two
    packets of a flow are closer. A timeout of 1 s keeps a flow that does not pause on one path, as
    ECMP does.
    """

    timeout_ns: int

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from timeout_faults(timeout_ns=self.timeout_ns)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the timeout of every switch."""
        return self.setup(testbed, [self.timeout_ns] * len(testbed.switches))


class LetFlow(StaticTimeout):
    """LetFlow as DRLet's paper has it: 200 us (section VI-B)."""

    def __init__(self) -> None:
        super().__init__(LETFLOW_NS)


@dataclass(eq=False)
class BestStaticTimeout(FlowletTuner):
    """The timeout that a grid search found best at the given load. The load is not measured."""

    load: float

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        yield from share_faults(load=self.load)

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Return the timeout of every switch."""
        best = int(best_static_ns(self.load, host_rate(testbed)))
        return self.setup(testbed, [best] * len(testbed.switches))


@dataclass(eq=False)
class RandomTimeouts(FlowletTuner):
    """DRLet's placebo: each decision draws timeouts from 100 us to 8 ms, log-uniformly.

    As with DRLet, every switch with several paths upwards gets one, and all switches start with the
    best static timeout of the lowest load.
    """

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Seed the draws, and return the setup that DRLet starts from."""
        self._draws = np.random.default_rng(seed)
        self._switches = Uplinks(testbed).switches
        start_ns = int(best_static_ns(0.0, host_rate(testbed)))
        return self.setup(testbed, [start_ns] * len(testbed.switches))

    def act(self, observation: Observation) -> Action:
        """Draw a timeout for every switch that has several paths upwards."""
        drawn = timeout_of(self._draws.uniform(-1.0, 1.0, len(self._switches)))
        return (timeout_change(self._switches, drawn),) if len(drawn) else ()
