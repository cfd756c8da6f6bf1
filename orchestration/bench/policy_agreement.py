"""Checks that RL-CC's policies do the same as BPF, as C and as Python, on a million states.

BPF is the program that emulated NICs run, in a guest's kernel. C is a shared library of the same
source. Python is orchestration/policies/reference.py, which was written independently.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from collectors.bpf.policy import CONTEXT, HEADERS, policy_object
from orchestration.backends.emulated.bpf_programs import load_in_guest
from orchestration.bench.outcome import Figure, Outcome, zero
from orchestration.policies import reference
from orchestration.policies.catboost_model import read_model
from orchestration.policies.compile import build_library
from orchestration.policies.reference import Infer
from orchestration.policies.trees import ONE, IntegerTrees, Settings
from tuners.learning.checkpoint import PRETRAINED
from tuners.nic import fixed_point
from tuners.nic.networks import LSTM, MLP, STATE, Architecture

_FLOWS, _BATCH = 1_000_000, 200_000
TREES = "rl-cc-trees.json"
_CHECKPOINT = re.compile(r"pretrained/([\w-]+\.safetensors)")


@dataclass(frozen=True)
class Model:
    """A model: its C source, and its twin in Python, the function `infer`.

    `boundaries` are, for each word of its window, values at which the model changes its behaviour,
    with their neighbours. `memory_words` is the size of the state that the model keeps for a flow.
    """

    source: Path
    settings: Settings
    infer: Infer
    boundaries: Sequence[Sequence[int]]
    memory_words: int = 0


def policy_agreement() -> Outcome:
    """RL-CC's models as BPF, C and Python, on a million states of flows, with boundary values."""
    figures: list[Figure] = []
    for model in built_in_models():
        differ = {"BPF": 0, "Python": 0}
        decided = 0
        for seed in range(_FLOWS // _BATCH):
            before = flows(model, _BATCH, seed)
            after = run_as_c(model, before)
            decided += int((after["own"] != before["own"]).any(axis=1).sum())
            bpf = load_in_guest(policy_object(model.source), before)
            assert bpf is not None
            differ["BPF"] += count_differing(after, bpf)
            differ["Python"] += count_differing(
                after, reference.happen(before, model.settings, model.infer)
            )
        name = model.source.stem.removeprefix("policy_").replace("_", "-")
        figures.append(Figure(f"{name}: flows, and those that decided", f"{_FLOWS:,}, {decided:,}"))
        for form, count in differ.items():
            figures.append(zero(f"{name}: flows that {form} leaves otherwise than C", count))
    notes = ("half of the words that a model reads are at its thresholds or next to them",)
    return Outcome("RL-CC's models as BPF, as C and in Python", tuple(figures), notes)


def built_in_models() -> list[Model]:
    """Return the models of the built-in policies."""
    trees = Path(PRETRAINED, TREES)
    models = [trees_model(read_model(trees), HEADERS / "policy_rlcc.c")]
    for architecture in (MLP, LSTM):
        source = HEADERS / f"policy_rlcc_{architecture.kind}.c"
        checkpoint = _CHECKPOINT.search(source.read_text())
        assert checkpoint is not None
        models.append(_network(source, architecture, load_file(PRETRAINED / checkpoint[1])))
    return models


def trees_model(trees: IntegerTrees, source: Path) -> Model:
    """Return the model of trees that were compiled to the C file `source`."""
    boundaries: list[list[int]] = [[] for _ in trees.settings.features]
    for tree in trees.trees:
        for feature, threshold in zip(tree.features, tree.thresholds, strict=True):
            boundaries[feature] += [threshold - 1, threshold, threshold + 1]
    return Model(source, trees.settings, lambda windows, _: trees.infer(windows), boundaries)


def _network(
    source: Path, architecture: Architecture, weights: dict[str, NDArray[np.float32]]
) -> Model:
    quantised, span = fixed_point.quantised(architecture, weights), fixed_point.SPAN_Q16
    # inputs are clipped at 16
    boundaries = [
        [-ONE - 1, -ONE, -ONE + 1, -1, 0, 1, ONE - 1, ONE],
        [ONE - span, ONE - 1, ONE, ONE + 1],
    ]

    def infer(windows: NDArray[np.int64], memory: NDArray[np.int32]) -> NDArray[np.int64]:
        if architecture.kind == "mlp":
            return fixed_point.mlp(quantised, windows)
        state = memory[:, : 2 * STATE].astype(np.int64)
        answer = fixed_point.lstm(quantised, windows, state)
        memory[:, : 2 * STATE] = state
        return answer

    settings = Settings(architecture.history, ONE - span, ONE + span)
    memory_words = 2 * STATE if architecture.kind == "lstm" else 0
    return Model(source, settings, infer, boundaries * architecture.history, memory_words)


def windows(model: Model, count: int, seed: int = 1) -> NDArray[np.int32]:
    """Return windows of shape (count, features), over all values that a flow can observe.

    Half of the words are at a boundary of the model.
    """
    rng = np.random.default_rng(seed)
    values = np.empty((count, len(model.boundaries)), dtype=np.int32)
    ranges = {
        "delta": (-32 * ONE, ONE),
        "action": (ONE // 16, 16 * ONE),
        "inflation": (0, reference.MAX_INFLATION),
        "rate": (4, ONE),
    }
    for word, (name, boundaries) in enumerate(
        zip(model.settings.features, model.boundaries, strict=True)
    ):
        low, high = ranges[name.partition("[")[0]]
        values[:, word] = rng.integers(low, high, count, endpoint=True)
        if boundaries:
            at_edge = rng.random(count) < 0.5
            values[at_edge, word] = rng.choice(boundaries, at_edge.sum())
    return values


def flows(model: Model, count: int, seed: int = 2) -> NDArray[np.void]:
    """Return flows in random states with random events, in the form of BPF policies' contexts."""
    rng = np.random.default_rng(seed)
    contexts = np.zeros(count, dtype=CONTEXT)
    contexts["line_bps"] = rng.choice([10**9, 25 * 10**9, 10**11, 400 * 10**9], count)
    contexts["rate_bps"] = contexts["line_bps"]
    contexts["now_ns"] = rng.integers(10**6, 10**12, count)
    contexts["event"] = np.where(rng.random(count) < 0.8, 2, rng.integers(0, 7, count))
    contexts["rtt_ns"] = 10 ** rng.uniform(2, 6, count)
    odd = rng.random(count) < 0.1
    contexts["rtt_ns"][odd] = rng.choice([0, 1, 2**32 - 1, 2**32, 2**40], odd.sum())
    contexts["parameters"][:, 0] = rng.choice([1, 64, 1_000], count)
    contexts["parameters"][:, 1] = rng.choice([0, 1_500, 100_000], count)
    contexts["parameters"][:, 2] = rng.choice([0, 1, 10_000], count)
    contexts["parameters"][:, 3] = rng.choice([0, 1, 4, 999, 1_000], count)
    words = np.zeros((count, 48), dtype=np.int32)
    words[:, reference.SHARE] = rng.choice([2**16, 2**30, 2**29 + 1], count)
    drawn = rng.random(count) < 0.7
    words[drawn, reference.SHARE] = rng.integers(2**16, 2**30, drawn.sum())
    words[:, reference.MIN] = 2**16
    words[:, reference.MIN_RTT] = rng.choice([0, 1, 8_000], count)
    bounds = model.settings.min_action, model.settings.max_action
    words[:, reference.ACTION] = rng.integers(*bounds, count)
    end = reference.WINDOW + len(model.boundaries)
    words[:, reference.WINDOW : end] = windows(model, count, seed)
    if model.memory_words:
        half = model.memory_words // 2
        words[:, end : end + half] = rng.integers(-ONE, ONE, (count, half), endpoint=True)
        words[:, end + half : end + 2 * half] = rng.integers(
            -64 * ONE, 64 * ONE, (count, half), endpoint=True
        )
    contexts["own"] = words.view(np.uint64)
    # some have decided about when the packet was sent, or after that
    recent = rng.random(count) < 0.2
    before = np.minimum(contexts["now_ns"], contexts["rtt_ns"]).astype(np.int64)
    since = before + rng.choice([-2, -1, 0, 1, 2], count)
    contexts["own"][recent, 0] = (contexts["now_ns"].astype(np.int64) - since)[recent].clip(0)
    return contexts


def run_as_c(model: Model, before: NDArray[np.void]) -> NDArray[np.void]:
    """Return flows after the model's C has handled their events."""
    with tempfile.TemporaryDirectory(prefix="closloop-agreement-") as folder:
        library = Path(folder, "policy.so")
        build_library(model.source, library)
        return run_library(ctypes.CDLL(str(library)), before)


def run_library(library: ctypes.CDLL, before: NDArray[np.void]) -> NDArray[np.void]:
    """Return flows after the shared library of a policy has handled their events."""
    after = before.copy()
    library.rlcc_happen_all(after.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(len(after)))
    return after


def count_differing(one: NDArray[np.void], other: NDArray[np.void]) -> int:
    """Return the number of flows that differ in any byte."""
    return int((one.view(np.uint8) != other.view(np.uint8)).reshape(len(one), -1).any(axis=1).sum())
