"""A rollout: a run of ns-3 with a model of RL-CC in its NICs, and all decisions of the model.

A model is the C source of a policy, of a network (`tuners.nic.sources`) or of compiled trees. It
runs as it would in a NIC, in integers. It is judged by its means over the steady half of a rollout.
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

# One decision, as trace.c writes it.
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
_SHARE_UNIT = float(1 << 30)  # a whole line
_COMPILER = "gcc"
_HEADERS = Path(datapath.__file__).parent


@dataclass(frozen=True)
class Rollout:
    """The decisions of all flows: arrays (flows, the largest number of decisions of a flow).

    `valid` says which entries are decisions. `delta` is what the policy observed, `before` its
    action before, `action` its action, and `share` the rate before the action as a share of the
    line. `drops` counts packets.
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
        """Each decision's round trip over the base RTT, that of an idle switch."""
        return self.rtt_ns / self.base_rtt_ns

    @property
    def steady(self) -> NDArray[np.bool_]:
        """Which entries are decisions in the second half of the time."""
        return self.valid & (self.now_ns >= self.scenario.duration_us * 500)


def compile_library(source: str, folder: Path) -> Path:
    """Compile a model's C source in `folder`, and return the library for ns-3's program.

    Raises NotReadyError without a compiler, or for a source that does not compile.
    """
    if shutil.which(_COMPILER) is None:
        raise NotReadyError(
            f"a policy needs a C compiler, and there is no {_COMPILER}", "apt-get install gcc"
        )
    model, output = folder / "model.c", folder / "model.so"
    model.write_text(source)
    argv = [_COMPILER, "-O2", "-Wall", "-shared", "-fPIC", f"-I{_HEADERS}", f'-DMODEL="{model}"']
    completed = subprocess.run(
        [*argv, "-o", str(output), str(Path(__file__).with_name("trace.c"))],
        capture_output=True,
        text=True,
    )
    if completed.returncode:
        raise NotReadyError(
            f"the model does not compile: {completed.stderr[:2000]}", "correct its source"
        )
    return output


def play(
    program: Program,
    model: Path,
    scenario: Scenario,
    testbed: Testbed,
    seed: int,
    weights: bytes = b"",
) -> Rollout:
    """Run a scenario with a model's library, and return its decisions.

    Flows start at the seed's `first_shares` of the line, in the order of their starts. `weights`,
    if given, replace those in the library's source. Raises TrialError if ns-3 fails.
    """
    spec, flows = trial(scenario, seed), schedule(scenario, testbed, seed)
    first = first_shares(scenario, seed) * _SHARE_UNIT
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
    """Return the decisions as arrays with a row per flow, in the order of first decisions."""
    _, first, flow = np.unique(records["flow"], return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    index = rank[flow], records["decision"].astype(np.int64)
    shape = (len(first), int(index[1].max(initial=0)) + 1)

    def column(name: str, unit: float = 1.0) -> NDArray[np.float64]:
        result = np.zeros(shape)
        result[index] = records[name] / unit
        return result

    integers = {name: column(name).astype(np.int64) for name in ("now_ns", "acked_bytes", "rtt_ns")}
    valid = np.zeros(shape, dtype=bool)
    valid[index] = True
    return Rollout(
        scenario,
        valid,
        **integers,
        share=column("share", _SHARE_UNIT),
        delta=column("delta", ONE),
        before=column("before", ONE),
        action=column("action", ONE),
        drops=drops,
        base_rtt_ns=base_ns,
    )


_LINE_BPS = 100_000_000_000
# The scenarios by whose steady states a model is judged.
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
    """The steady state of a rollout: means over its flows in the second half of the time.

    `inflation` is round trip over base RTT, and `expected` that of equation 2. `jain` is Jain's
    fairness index of the flows' rates. `goodput` is the acknowledged payload, as a share of the
    receiver's line. `latency_us` is the mean round trip. `drops` counts the packets that were lost
    in the whole rollout.
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
        """The relative deviation of the inflation from equation 2."""
        return self.inflation / self.expected - 1.0


def steady_state_of(rollout: Rollout) -> Steady:
    """Return a rollout's steady state. Flows with fewer than two decisions in it have rate 0."""
    steady, count = rollout.steady & (rollout.rtt_ns > 0), rollout.scenario.flows
    rows = np.flatnonzero(steady.sum(axis=1) > 1)
    inflation, rates = [], np.zeros(count)
    for number, row in enumerate(rows):
        steps = np.flatnonzero(steady[row])
        first, last = steps[0], steps[-1]
        inflation.append(rollout.inflation[row, steps].mean())
        acked_bytes = rollout.acked_bytes[row, last] - rollout.acked_bytes[row, first]
        passed_ns = rollout.now_ns[row, last] - rollout.now_ns[row, first]
        rates[number] = 8e9 * acked_bytes / passed_ns / _LINE_BPS
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
    """Play each scenario with a model's library; return the steady states."""
    rollouts = (play(program, model, each, testbed, seed, weights) for each in scenarios)
    return [steady_state_of(rollout) for rollout in rollouts]
