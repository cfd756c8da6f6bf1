"""The scenarios that RL-CC is trained and judged on: long-lived flows on one switch, as trials.

Fuhrer et al., HPSR 2023, section VI-A: "various many-to-one and all-to-all scenarios" on a single
switch, with 2 to 8,192 flows. Here it is the switch of the testbed rlcc-7: six hosts send to the
seventh, or all to all. Flows start one after the other, in an order and at times that are drawn
from the seed. If thousands started at once, most of them would spend a rollout on recovering from
the losses of the first round trip.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inventory.files import load_testbed
from orchestration.core.records import Schedule
from orchestration.core.roce import RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import CLOSLOOP, HostSpec, TrialSpec, TunerSpec
from traffic.patterns.single_flow import SingleFlowSpec

TESTBED = "rlcc-7"
_ENDLESS_BYTES = 2_000_000_000
_US = 1_000


@dataclass(frozen=True)
class Scenario:
    """A traffic pattern with so many flows. The second half of the duration is the steady state."""

    pattern: Literal["many-to-one", "all-to-all"]
    flows: int
    duration_us: int

    @property
    def name(self) -> str:
        """A name like `many-to-one 16`."""
        return f"{self.pattern} {self.flows}"


# Every update has the scenarios of `_TRAINING`. Every `_MANY_EVERY`th has one of `_TRAINING_MANY`
# in addition, because those with many flows take longer.
_TRAINING = (
    Scenario("many-to-one", 2, 1_600),
    Scenario("many-to-one", 4, 1_200),
    Scenario("many-to-one", 16, 1_000),
    Scenario("many-to-one", 64, 1_200),
    Scenario("all-to-all", 42, 300),
)
_TRAINING_MANY = (
    Scenario("all-to-all", 168, 600),
    Scenario("many-to-one", 256, 3_000),
    Scenario("many-to-one", 1024, 6_000),
    Scenario("many-to-one", 8192, 16_000),
)
_MANY_EVERY = 6
# The scenarios for distillation, with few and with many flows.
DISTILLING = (*_TRAINING, *_TRAINING_MANY[:3])


def card() -> dict[str, list[dict[str, Any]]]:
    """Return the training scenarios, for the cards of networks."""
    groups = {"of every update": _TRAINING, f"one of every {_MANY_EVERY}th": _TRAINING_MANY}
    return {
        name: [dataclasses.asdict(scenario) for scenario in group] for name, group in groups.items()
    }


def training_scenarios(update: int) -> tuple[Scenario, ...]:
    """Return the scenarios of an update, given its number, which counts from 1."""
    if update % _MANY_EVERY:
        return _TRAINING
    return (*_TRAINING, _TRAINING_MANY[update // _MANY_EVERY % len(_TRAINING_MANY)])


def first_shares(scenario: Scenario, seed: int) -> NDArray[np.float64]:
    """Return the rates that the flows of a rollout start with, as shares of the line (flows,).

    Each is the fair share times two random factors from 1/2 to 2: one of the flow, and one of the
    whole rollout. A rollout is short, and should not be spent on filling and emptying a buffer.
    """
    rng = np.random.default_rng([seed, scenario.flows, 1])
    flows_per_port = scenario.flows if scenario.pattern == "many-to-one" else scenario.flows / 7
    of_flow = rng.uniform(-1, 1, scenario.flows)
    shares: NDArray[np.float64] = np.minimum(
        1.0, 2.0**of_flow * 2.0 ** rng.uniform(-1, 1) / flows_per_port
    )
    return shares


def schedule(scenario: Scenario, testbed: Testbed, seed: int) -> Schedule:
    """Return the flows: many-to-one goes to the last host, all-to-all evenly over all pairs."""
    rng = np.random.default_rng([seed, scenario.flows])
    hosts, flow = len(testbed.hosts), np.arange(scenario.flows)
    if scenario.pattern == "many-to-one":
        src, dst = flow % (hosts - 1), np.full(scenario.flows, hosts - 1)
    else:
        src = flow % hosts
        dst = (src + 1 + flow // hosts % (hosts - 1)) % hosts
    order = rng.permutation(scenario.flows)
    start_ns = np.sort(rng.integers(0, (10 + scenario.flows // 8) * _US, scenario.flows))
    return Schedule(
        start_ns,
        src[order],
        dst[order],
        np.full(scenario.flows, _ENDLESS_BYTES),
        np.zeros(scenario.flows, dtype=np.int64),
        ("flows",),
    )


def trial(
    scenario: Scenario, seed: int, control: str = "rlcc", backend: str = "simulated"
) -> TrialSpec:
    """Return the trial of a scenario. Every packet is acknowledged, so every RTT is measured."""
    duration_ns = scenario.duration_us * _US
    return TrialSpec(
        campaign="train-rl-cc",
        testbed=TESTBED,
        backend=backend,
        tuner=TunerSpec("secn1"),
        traffic=(SingleFlowSpec("h1", "h7", _ENDLESS_BYTES, 0),),
        seed=seed,
        repeat=0,
        duration_ns=duration_ns,
        drain_ns=0,
        host=HostSpec(control, roce=RoceSpec(control=control, ack_every=1)),
        fabric=CLOSLOOP,
    )


def testbed() -> Testbed:
    """Return the testbed: one switch with its hosts."""
    return load_testbed(TESTBED)
