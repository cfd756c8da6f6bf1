"""Models for tests of compiled policies, windows and flows at their edges, and libraries."""

import ctypes
import json
from pathlib import Path

import numpy as np

from collectors.bpf.policy import CONTEXT
from orchestration.policies.catboost_model import read_model
from orchestration.policies.trees import ONE

RECORDED = Path(__file__).with_name("recorded") / "catboost-1.2.10-rlcc.json"
WINDOW_AT = 7  # words of 32 bits before it in struct rlcc


def model_file(path, **changes):
    """Write the recorded model with other top-level entries; return the path."""
    path.write_text(json.dumps({**json.loads(RECORDED.read_text()), **changes}))
    return path


def windows(model, count, seed=1):
    """Return windows (count, 2 * history) int32 over all that a flow can see, half of their words
    at a threshold of the model or beside it."""
    rng = np.random.default_rng(seed)
    words = 2 * model.settings.history
    made = np.empty((count, words), dtype=np.int32)
    edges = [[] for _ in range(words)]
    for tree in model.trees:
        for feature, threshold in zip(tree.features, tree.thresholds, strict=True):
            edges[feature] += [threshold - 1, threshold, threshold + 1]
    for word in range(words):
        low, high = (-32 * ONE, ONE) if word % 2 == 0 else (ONE // 16, 16 * ONE)
        made[:, word] = rng.integers(low, high, count, endpoint=True)
        if edges[word]:
            at_edge = rng.random(count) < 0.5
            made[at_edge, word] = rng.choice(edges[word], at_edge.sum())
    return made


def contexts(model, count, seed=2):
    """Return flows in any state that is about to hear of any event, as a BPF policy has them."""
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
    own = np.zeros((count, 48), dtype=np.uint32)
    own[:, 2] = rng.choice([2**16, 2**30, 2**29 + 1], count)
    drawn = rng.random(count) < 0.7
    own[drawn, 2] = rng.integers(2**16, 2**30, drawn.sum())
    own[:, 3] = 2**16
    own[:, 4] = rng.choice([0, 1, 8_000], count)
    own[:, 6] = rng.integers(model.settings.least_action, model.settings.most_action, count)
    words = 2 * model.settings.history
    own[:, WINDOW_AT : WINDOW_AT + words] = windows(model, count, seed).view(np.uint32)
    made["own"] = own.view(np.uint64)
    return made


def infer(library, given):
    """Return a library's sums of leaves for windows."""
    sums = np.empty(len(given), dtype=np.int32)
    pointers = (item.ctypes.data_as(ctypes.c_void_p) for item in (given, sums))
    library.rlcc_infer_all(*pointers, ctypes.c_uint64(len(given)))
    return sums


def happen(library, given):
    """Return the flows as a library leaves them."""
    made = given.copy()
    library.rlcc_happen_all(made.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(len(made)))
    return made


def recorded():
    """Return the recorded model."""
    return read_model(RECORDED)
