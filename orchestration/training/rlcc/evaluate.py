"""How a model of RL-CC does in steady state, in ns-3, from rates near the fair share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestration.backends.simulated.program import Program
from orchestration.core.topology import Testbed
from orchestration.training.rlcc.rollout import Rollout, play
from orchestration.training.rlcc.scenarios import Scenario
from tuners.nic.observation import expected_inflation

# Of a packet with 1 KB of payload on the line, framing and preamble counted: see roce.py.
_LINE_BPS = 100_000_000_000
STEADY = (
    Scenario("many-to-one", 2, 4_000),
    Scenario("many-to-one", 4, 4_000),
    Scenario("many-to-one", 16, 4_000),
    Scenario("many-to-one", 64, 5_000),
    Scenario("many-to-one", 256, 8_000),
    Scenario("many-to-one", 1024, 40_000),
)


@dataclass(frozen=True)
class Steady:
    """Means over flows in the second half: round trip over base, rates, Jain's index of these.

    `goodput` is the payload that senders had acknowledged, a share of the receiver's line;
    `latency_us` the mean round trip; `drops` counts the packets lost in the whole time.
    """

    scenario: Scenario
    inflation: float
    expected: float
    jain: float
    goodput: float
    latency_us: float
    drops: int

    @property
    def off(self) -> float:
        """How far the inflation is from equation 2, a share of it."""
        return self.inflation / self.expected - 1.0


def judged(rollout: Rollout) -> Steady:
    """Return a rollout's steady state; flows without a decision in it count as rate 0."""
    steady, count = rollout.steady & (rollout.rtt_ns > 0), rollout.scenario.flows
    rows = np.flatnonzero(steady.sum(axis=1) > 1)
    inflation, rates = [], np.zeros(count)
    for place, row in enumerate(rows):
        at = np.flatnonzero(steady[row])
        inflation.append(rollout.inflation[row, at].mean())
        acked = rollout.acked_bytes[row, at[-1]] - rollout.acked_bytes[row, at[0]]
        passed_ns = rollout.now_ns[row, at[-1]] - rollout.now_ns[row, at[0]]
        rates[place] = 8e9 * acked / passed_ns / _LINE_BPS
    mean = float(np.mean(inflation)) if inflation else float("nan")
    return Steady(
        rollout.scenario,
        mean,
        expected_inflation(count),
        float(rates.sum() ** 2 / (count * (rates**2).sum())) if rates.any() else 0.0,
        float(rates.sum()),
        mean * rollout.base_rtt_ns / 1000,
        rollout.drops,
    )


def steady_states(
    program: Program,
    model: Path,
    testbed: Testbed,
    seed: int,
    scenarios: Iterable[Scenario] = STEADY,
    weights: bytes = b"",
) -> list[Steady]:
    """Play each scenario with a model's library, and judge it."""
    return [judged(play(program, model, one, testbed, seed, weights)) for one in scenarios]
