"""What RL-CC is trained and judged on: flows without end on one switch, as trials.

Fuhrer et al., HPSR 2023, section VI-A: "various many-to-one and all-to-all scenarios" on a single
switch, 2 to 8,192 flows. Here the switch of rlcc-7, with six senders for one receiver. Flows start
one after the other, in an order and at times drawn from the seed: at once, most of thousands would
spend a rollout on recovering from the first round trip's losses.
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
    """So many flows, for a time, of which the second half is the steady state."""

    pattern: Literal["many-to-one", "all-to-all"]
    flows: int
    duration_us: int

    @property
    def name(self) -> str:
        """Like many-to-one 16."""
        return f"{self.pattern} {self.flows}"


# Of every update, and one more of every `_MANY_EVERY`th: those of many flows take longer.
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
# What a distilled model meets, with few and with many flows.
DISTILLING = (*_TRAINING, *_TRAINING_MANY[:3])


def card() -> dict[str, list[dict[str, Any]]]:
    """Return what networks are trained on, for their cards."""
    each = {"of every update": _TRAINING, f"one of every {_MANY_EVERY}th": _TRAINING_MANY}
    return {name: [dataclasses.asdict(one) for one in them] for name, them in each.items()}


def training_scenarios(update: int) -> tuple[Scenario, ...]:
    """Return the scenarios of the update with this number, the first being 1."""
    if update % _MANY_EVERY:
        return _TRAINING
    return (*_TRAINING, _TRAINING_MANY[update // _MANY_EVERY % len(_TRAINING_MANY)])


def first_shares(scenario: Scenario, seed: int) -> NDArray[np.float64]:
    """Return the shares of the line that flows of a rollout start with.

    From half the fair share to twice it, each by itself, and all of them together so again: a
    rollout is short, and should not be spent on filling and emptying a buffer.
    """
    rng = np.random.default_rng([seed, scenario.flows, 1])
    flows_of_a_port = scenario.flows if scenario.pattern == "many-to-one" else scenario.flows / 7
    own = rng.uniform(-1, 1, scenario.flows)
    result: NDArray[np.float64] = np.minimum(
        1.0, 2.0**own * 2.0 ** rng.uniform(-1, 1) / flows_of_a_port
    )
    return result


def schedule(scenario: Scenario, testbed: Testbed, seed: int) -> Schedule:
    """Return the flows: many-to-one to the last host, all-to-all evenly over all pairs."""
    rng = np.random.default_rng([seed, scenario.flows])
    hosts, at = len(testbed.hosts), np.arange(scenario.flows)
    if scenario.pattern == "many-to-one":
        src, dst = at % (hosts - 1), np.full(scenario.flows, hosts - 1)
    else:
        src = at % hosts
        dst = (src + 1 + at // hosts % (hosts - 1)) % hosts
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
    """Return the trial that the flows are sent in; each packet's acknowledgement is timed."""
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
    """Return the switch with its hosts."""
    return load_testbed(TESTBED)
