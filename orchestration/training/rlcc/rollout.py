"""A rollout: ns-3 with a model of RL-CC in its NICs, and every decision that it takes.

A model is the C source of a policy (tuners/nic/sources.py, or a compiled tree): it runs as it would
in a NIC, integers and all. Means over a rollout's steady half judge it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inventory.routing import base_rtt_ns
from orchestration import datapath
from orchestration.backends.simulated.job import build_arrays
from orchestration.backends.simulated.program import Operation, Program, Simulation
from orchestration.core.errors import NotReadyError
from orchestration.core.topology import Testbed
from orchestration.training.rlcc.scenarios import Scenario, first_shares, schedule, trial
from tuners.nic.networks import ONE, expected_inflation

_RECORD = np.dtype(
    [
        ("flow", "u8"),
        ("now_ns", "i8"),
        ("acked_bytes", "i8"),
        ("rtt_ns", "u4"),
        ("share", "u4"),
        ("delta", "i4"),
        ("before", "i4"),
        ("action", "i4"),
        ("decision", "u4"),
    ]
)
_SHARE = float(1 << 30)
_COMPILER = "gcc"
_HEADERS = Path(datapath.__file__).parent


@dataclass(frozen=True)
class Rollout:
    """Decisions of all flows, shape (flows, most steps of one); `valid` tells which there were.

    Deltas, actions before them and actions are as the policy saw them; `share` is the rate before
    the action. `drops` counts packets.
    """

    scenario: Scenario
    valid: NDArray[np.bool_]
    now_ns: NDArray[np.int64]
    acked_bytes: NDArray[np.int64]
    rtt_ns: NDArray[np.int64]
    share: NDArray[np.float64]
    delta: NDArray[np.float64]
    before: NDArray[np.float64]
    action: NDArray[np.float64]
    drops: int
    base_rtt_ns: int

    @property
    def inflation(self) -> NDArray[np.float64]:
        """The round trips over that of an idle switch."""
        return self.rtt_ns / self.base_rtt_ns

    @property
    def steady(self) -> NDArray[np.bool_]:
        """Which decisions are in the second half of the time."""
        return self.valid & (self.now_ns >= self.scenario.duration_us * 500)


def compile_library(source: str, folder: Path) -> Path:
    """Compile a model's source as a library for ns-3's program.

    Raises NotReadyError without a compiler.
    """
    if shutil.which(_COMPILER) is None:
        raise NotReadyError(
            f"a policy needs a C compiler, and there is no {_COMPILER}", "apt-get install gcc"
        )
    model, made = folder / "model.c", folder / "model.so"
    model.write_text(source)
    argv = [_COMPILER, "-O2", "-Wall", "-shared", "-fPIC", f"-I{_HEADERS}", f'-DMODEL="{model}"']
    done = subprocess.run(
        [*argv, "-o", str(made), str(Path(__file__).with_name("trace.c"))],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NotReadyError(
            f"the model does not compile: {done.stderr[:2000]}", "correct its source"
        )
    return made


def play(
    program: Program,
    model: Path,
    scenario: Scenario,
    testbed: Testbed,
    seed: int,
    weights: bytes = b"",
) -> Rollout:
    """Run a scenario with a model's library. Raises TrialError if ns-3 fails.

    Flows start at the seed's `first_shares` of the line, in the order of their starts. `weights`
    take the place of those in the library's source.
    """
    spec, flows = trial(scenario, seed), schedule(scenario, testbed, seed)
    first = first_shares(scenario, seed) * _SHARE
    with tempfile.TemporaryDirectory(prefix="closloop-rollout-") as name:
        folder = Path(name)
        first.astype(np.uint32).tofile(folder / "starts")
        if weights:
            (folder / "weights").write_bytes(weights)
        with Simulation(program, folder, policy=(model, str(folder))) as simulation:
            simulation.ask(
                Operation.BUILD, *build_arrays(spec, testbed, flows, observes_flows=False)
            )
            simulation.ask(Operation.RUN, spec.duration_ns)
            counters = simulation.ask(Operation.READ)
        records = np.fromfile(folder / "trace", dtype=_RECORD)
    queues = counters[: 8 * len(testbed.queues)].reshape(-1, 8)
    return _arranged(scenario, records, int(queues[:, 4].sum()), base_rtt_ns(testbed))


def _arranged(scenario: Scenario, records: NDArray[np.void], drops: int, base_ns: int) -> Rollout:
    """Return the decisions by flow, in the order of the flows' first ones."""
    _, first, flow = np.unique(records["flow"], return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    place = rank[flow], records["decision"].astype(np.int64)
    shape = (len(first), int(place[1].max(initial=0)) + 1)

    def column(name: str, unit: float = 1.0) -> NDArray[np.float64]:
        result = np.zeros(shape)
        result[place] = records[name] / unit
        return result

    whole = {name: column(name).astype(np.int64) for name in ("now_ns", "acked_bytes", "rtt_ns")}
    valid = np.zeros(shape, dtype=bool)
    valid[place] = True
    return Rollout(
        scenario,
        valid,
        **whole,
        share=column("share", _SHARE),
        delta=column("delta", ONE),
        before=column("before", ONE),
        action=column("action", ONE),
        drops=drops,
        base_rtt_ns=base_ns,
    )


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
    def deviation(self) -> float:
        """How far the inflation is from equation 2, a share of it."""
        return self.inflation / self.expected - 1.0


def steady_state_of(rollout: Rollout) -> Steady:
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
    return [steady_state_of(play(program, model, one, testbed, seed, weights)) for one in scenarios]
