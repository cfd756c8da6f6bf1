"""Compiled policies in a guest: as BPF they do what they do as C, to the bit."""

import numpy as np
import pytest

from collectors.bpf.policy import policy_object
from orchestration.backends.emulated.bpf_programs import load_in_guest
from orchestration.bench.policy_agreement import built_in_models, count_differing, flows, run_as_c
from tests.unit.compiled_policies import RECORDED, compiled, model_file, present_file

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


@pytest.mark.parametrize(
    "name", ["recorded", "present", "largest", "rlcc", "rlcc-mlp", "rlcc-lstm"]
)
def test_a_policy_as_bpf_leaves_flows_as_its_c_does(tmp_path, name):
    if name == "recorded":
        model = compiled(RECORDED, tmp_path)
    elif name == "present":
        model = compiled(present_file(tmp_path / "model.json"), tmp_path)
    elif name == "largest":
        model = compiled(largest(tmp_path / "model.json"), tmp_path)
    else:
        model = built_in_models()[("rlcc", "rlcc-mlp", "rlcc-lstm").index(name)]
    given = flows(model, 2_000 if model.memory_words else 20_000)
    made = load_in_guest(policy_object(model.source), given)
    assert made is not None
    assert count_differing(run_as_c(model, given), made) == 0
    assert (made["own"] != given["own"]).any(axis=1).mean() > 0.5
