"""Compiled policies in a guest: as BPF they do what they do as C, to the bit."""

import ctypes

import numpy as np
import pytest

from orchestration.backends.emulated.policies import load_in_guest
from orchestration.policies.compile import compile_model
from tests.unit.compiled_policies import RECORDED, contexts, happen, model_file, recorded

pytestmark = pytest.mark.kernel


def largest(path):
    """Write a model as large as one may be, which asks about every word in each of its trees."""
    rng = np.random.default_rng(3)
    trees = [
        {
            "leaf_values": rng.normal(0, 0.01, 64).tolist(),
            "splits": [
                {
                    "border": float(np.float32(rng.normal(0, 0.3) + word % 2)),
                    "float_feature_index": word,
                    "split_type": "FloatFeature",
                }
                for word in range(6)
            ],
        }
        for _ in range(64)
    ]
    return model_file(path, oblivious_trees=trees)


@pytest.mark.parametrize("size", ["recorded", "largest"])
def test_a_policy_as_bpf_leaves_flows_as_its_c_does(tmp_path, size):
    source = RECORDED if size == "recorded" else largest(tmp_path / "model.json")
    files = {
        target: compile_model(source, target, tmp_path / name).files[0]
        for target, name in (("bpf", "mine.bpf.o"), ("library", "mine.so"))
    }
    given = contexts(recorded(), 20_000)
    made = load_in_guest(files["bpf"], given)
    expected = happen(ctypes.CDLL(str(files["library"])), given)
    assert made is not None
    for name in given.dtype.names:
        np.testing.assert_array_equal(made[name], expected[name], err_msg=name)
    decided = (made["own"] != given["own"]).any(axis=1)
    assert decided.mean() > 0.5
