"""Checks that RL-CC's networks and trees settle where equation 2 says, for every training seed.

Equation 2 of the paper (Fuhrer et al., HPSR 2023): at rest with N flows, a round trip is
target * sqrt(N) + beta times as long as on an idle path.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from orchestration.backends.simulated.program import require_program
from orchestration.bench.outcome import Figure, Outcome
from orchestration.core.errors import NotReadyError
from orchestration.policies.catboost_model import read_model
from orchestration.policies.render_c import render_policy
from orchestration.training.rlcc.rollout import STEADY, Steady, compile_library, steady_states
from orchestration.training.rlcc.scenarios import testbed
from tuners.learning.checkpoint import PRETRAINED, load
from tuners.nic.networks import Architecture
from tuners.nic.sources import network_source

# Other seeds than those of training and of distillation.
_SEEDS = (7, 8, 9)
_MAX_DISTANCE, _MIN_JAIN = 0.10, 0.95


def rlcc_steady() -> Outcome:
    """How far RL-CC's networks and trees are from equation 2, with 2 to 1,024 flows to one host."""
    figures, data = [], {}
    for name, source in _sources().items():
        states = _steady_states(source)
        data[name] = [
            [state.scenario.name, state.inflation, state.deviation, state.jain] for state in states
        ]
        distances = " ".join(
            f"{np.mean([state.deviation for state in states if state.scenario == scenario]):+.1%}"
            for scenario in STEADY
        )
        worst, jain = (
            max(abs(state.deviation) for state in states),
            min(state.jain for state in states),
        )
        figures += [
            Figure(f"{name}: off equation 2, by flows", distances),
            Figure(
                f"{name}: at most",
                f"{worst:.1%}",
                f"{_MAX_DISTANCE:.0%}",
                bool(worst <= _MAX_DISTANCE),
            ),
            Figure(
                f"{name}: Jain's index at least",
                f"{jain:.3f}",
                f"{_MIN_JAIN}",
                bool(jain >= _MIN_JAIN),
            ),
        ]
    flows = ", ".join(f"{state.flows:,}" for state in STEADY)
    notes = (
        f"{flows} flows from rates near the fair share, in ns-3; {len(_SEEDS)} seeds of evaluation "
        "each, the second half of 4 to 40 ms. The distance by flows is a mean over these seeds, "
        "the largest and the index are of single ones.",
    )
    return Outcome("RL-CC at rest: equation 2, by training seed", tuple(figures), notes, data)


def _sources() -> dict[str, str]:
    sources = {}
    for path in sorted(Path(PRETRAINED).glob("rl-cc-*.safetensors")):
        checkpoint = load(path.stem)
        architecture = Architecture(**checkpoint.card["architecture"])
        sources[path.stem] = network_source(
            architecture, checkpoint.arrays, "network", "A bench's."
        )
    if not sources:
        raise NotReadyError("there is no network of RL-CC", "closloop train rl-cc")
    sources["rl-cc-trees"] = render_policy(
        read_model(Path(PRETRAINED, "rl-cc-trees.json")), "trees"
    )
    return sources


def _steady_states(source: str) -> list[Steady]:
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        model = compile_library(source, Path(folder))
        return [
            state
            for seed in _SEEDS
            for state in steady_states(require_program(), model, testbed(), seed)
        ]
