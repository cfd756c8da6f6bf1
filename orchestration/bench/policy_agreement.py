"""Do RL-CC's policies leave flows the same as BPF, as C and as Python, on a million states?

BPF is the very program that NICs run, in a guest's kernel; C is a shared library of the same
source; Python is orchestration/policies/reference.py, written apart.
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
from orchestration.backends.emulated.programs import load_in_guest
from orchestration.bench.outcome import Figure, Outcome, zero
from orchestration.policies import reference
from orchestration.policies.catboost_model import read_model
from orchestration.policies.compile import build_library
from orchestration.policies.reference import Infer
from orchestration.policies.trees import ONE, IntegerTrees, Settings
from tuners.learning.checkpoint import PRETRAINED
from tuners.nic import fixed_point
from tuners.nic.networks import LSTM, MLP, STATE, Architecture

_FLOWS, _AT_ONCE = 1_000_000, 200_000
TREES = "rl-cc-trees.json"
_CHECKPOINT = re.compile(r"pretrained/([\w-]+\.safetensors)")


@dataclass(frozen=True)
class Model:
    """A model: its C source, its twin in Python, and the values of each word that it minds."""

    source: Path
    settings: Settings
    infer: Infer
    edges: Sequence[Sequence[int]]
    memory_words: int = 0


def policy_agreement() -> Outcome:
    """RL-CC's models as BPF, C and Python, on a million states of flows, edges included."""
    figures: list[Figure] = []
    for model in built_in():
        differ = {"BPF": 0, "Python": 0}
        decided = 0
        for seed in range(_FLOWS // _AT_ONCE):
            given = flows(model, _AT_ONCE, seed)
            made = as_c(model, given)
            decided += int((made["own"] != given["own"]).any(axis=1).sum())
            bpf = load_in_guest(policy_object(model.source), given)
            assert bpf is not None
            differ["BPF"] += differing(made, bpf)
            differ["Python"] += differing(
                made, reference.happen(given, model.settings, model.infer)
            )
        name = model.source.stem.removeprefix("policy_").replace("_", "-")
        figures.append(Figure(f"{name}: flows, and those that decided", f"{_FLOWS:,}, {decided:,}"))
        for form, found in differ.items():
            figures.append(zero(f"{name}: flows that {form} leaves otherwise than C", found))
    notes = ("half of the words that a model looks at are at its thresholds or beside them",)
    return Outcome("RL-CC's models as BPF, as C and in Python", tuple(figures), notes)


def built_in() -> list[Model]:
    """Return the models of the built-in policies."""
    trees = Path(PRETRAINED, TREES)
    made = [trees_model(read_model(trees), HEADERS / "policy_rlcc.c")]
    for architecture in (MLP, LSTM):
        source = HEADERS / f"policy_rlcc_{architecture.kind}.c"
        checkpoint = _CHECKPOINT.search(source.read_text())
        assert checkpoint is not None
        made.append(_network(source, architecture, load_file(PRETRAINED / checkpoint[1])))
    return made


def trees_model(trees: IntegerTrees, source: Path) -> Model:
    """Return compiled trees, whose source is there."""
    edges: list[list[int]] = [[] for _ in trees.settings.features]
    for tree in trees.trees:
        for feature, threshold in zip(tree.features, tree.thresholds, strict=True):
            edges[feature] += [threshold - 1, threshold, threshold + 1]
    return Model(source, trees.settings, lambda windows, _: trees.infer(windows), edges)


def _network(
    source: Path, architecture: Architecture, weights: dict[str, NDArray[np.float32]]
) -> Model:
    own, span = fixed_point.quantised(architecture, weights), fixed_point.SPAN_Q16
    # inputs end at 16, and begin to change there
    edges = [
        [-ONE - 1, -ONE, -ONE + 1, -1, 0, 1, ONE - 1, ONE],
        [ONE - span, ONE - 1, ONE, ONE + 1],
    ]

    def infer(windows: NDArray[np.int64], memory: NDArray[np.int32]) -> NDArray[np.int64]:
        if architecture.kind == "mlp":
            return fixed_point.mlp(own, windows)
        kept = memory[:, : 2 * STATE].astype(np.int64)
        answer = fixed_point.lstm(own, windows, kept)
        memory[:, : 2 * STATE] = kept
        return answer

    settings = Settings(architecture.history, ONE - span, ONE + span)
    words = 2 * STATE if architecture.kind == "lstm" else 0
    return Model(source, settings, infer, edges * architecture.history, words)


def windows(model: Model, count: int, seed: int = 1) -> NDArray[np.int32]:
    """Return windows (count, features) over all that a flow can see, half of whose words are at an
    edge of the model.
    """
    rng = np.random.default_rng(seed)
    made = np.empty((count, len(model.edges)), dtype=np.int32)
    ranges = {
        "delta": (-32 * ONE, ONE),
        "action": (ONE // 16, 16 * ONE),
        "inflation": (0, reference.MAX_INFLATION),
        "rate": (4, ONE),
    }
    for word, (name, edges) in enumerate(zip(model.settings.features, model.edges, strict=True)):
        low, high = ranges[name.partition("[")[0]]
        made[:, word] = rng.integers(low, high, count, endpoint=True)
        if edges:
            at_edge = rng.random(count) < 0.5
            made[at_edge, word] = rng.choice(edges, at_edge.sum())
    return made


def flows(model: Model, count: int, seed: int = 2) -> NDArray[np.void]:
    """Return flows in any state that are about to hear of any event, as a BPF policy has them."""
    rng = np.random.default_rng(seed)
    made = np.zeros(count, dtype=CONTEXT)
    made["line_bps"] = rng.choice([10**9, 25 * 10**9, 10**11, 400 * 10**9], count)
    made["rate_bps"] = made["line_bps"]
    made["now_ns"] = rng.integers(10**6, 10**12, count)
    made["event"] = np.where(rng.random(count) < 0.8, 2, rng.integers(0, 7, count))
    made["rtt_ns"] = 10 ** rng.uniform(2, 6, count)
    odd = rng.random(count) < 0.1
    made["rtt_ns"][odd] = rng.choice([0, 1, 2**32 - 1, 2**32, 2**40], odd.sum())
    made["parameters"][:, 0] = rng.choice([1, 64, 1_000], count)
    made["parameters"][:, 1] = rng.choice([0, 1_500, 100_000], count)
    made["parameters"][:, 2] = rng.choice([0, 1, 10_000], count)
    made["parameters"][:, 3] = rng.choice([0, 1, 4, 999, 1_000], count)
    own = np.zeros((count, 48), dtype=np.int32)
    own[:, reference.SHARE] = rng.choice([2**16, 2**30, 2**29 + 1], count)
    drawn = rng.random(count) < 0.7
    own[drawn, reference.SHARE] = rng.integers(2**16, 2**30, drawn.sum())
    own[:, reference.MIN] = 2**16
    own[:, reference.MIN_RTT] = rng.choice([0, 1, 8_000], count)
    bounds = model.settings.min_action, model.settings.max_action
    own[:, reference.ACTION] = rng.integers(*bounds, count)
    end = reference.WINDOW + len(model.edges)
    own[:, reference.WINDOW : end] = windows(model, count, seed)
    if model.memory_words:
        half = model.memory_words // 2
        own[:, end : end + half] = rng.integers(-ONE, ONE, (count, half), endpoint=True)
        own[:, end + half : end + 2 * half] = rng.integers(
            -64 * ONE, 64 * ONE, (count, half), endpoint=True
        )
    made["own"] = own.view(np.uint64)
    # some have decided about when the packet left, or after that
    recent = rng.random(count) < 0.2
    before = np.minimum(made["now_ns"], made["rtt_ns"]).astype(np.int64)
    since = before + rng.choice([-2, -1, 0, 1, 2], count)
    made["own"][recent, 0] = (made["now_ns"].astype(np.int64) - since)[recent].clip(0)
    return made


def as_c(model: Model, given: NDArray[np.void]) -> NDArray[np.void]:
    """Return flows as the model's C leaves them."""
    with tempfile.TemporaryDirectory(prefix="closloop-agreement-") as folder:
        made = Path(folder, "policy.so")
        build_library(model.source, made)
        return happen(ctypes.CDLL(str(made)), given)


def happen(library: ctypes.CDLL, given: NDArray[np.void]) -> NDArray[np.void]:
    """Return flows as a library of a policy leaves them."""
    made = given.copy()
    library.rlcc_happen_all(made.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(len(made)))
    return made


def differing(one: NDArray[np.void], other: NDArray[np.void]) -> int:
    """Return how many flows differ in anything."""
    return int((one.view(np.uint8) != other.view(np.uint8)).reshape(len(one), -1).any(axis=1).sum())
