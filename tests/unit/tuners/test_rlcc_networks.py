"""RL-CC's networks: their integers in C and Python, and the gradient that trains them."""

import ctypes
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from orchestration import datapath as data_path
from orchestration.bench import decision_cost
from orchestration.policies.compile import build_library
from orchestration.training.rlcc import learner as gradient
from tests.unit.policy_library import RTT, START, US, Flow, Policy
from tuners.nic import fixed_point, networks, sources
from tuners.nic.networks import LSTM, MLP

ONE = 65536
HEADERS = Path(data_path.__file__).parent


def some_weights(architecture, seed=3):
    weights = networks.initial_weights(architecture, seed)
    rng = np.random.default_rng(seed)
    # biases too, and some weights near the end of 16 bits
    return {
        name: (values + rng.normal(0, 0.5, values.shape)).clip(-7.9, 7.9).astype(np.float32)
        for name, values in weights.items()
    }


def some_windows(architecture, count, seed=4):
    """Deltas of all sizes, and actions."""
    rng = np.random.default_rng(seed)
    shape = (count, architecture.history)
    deltas = np.minimum(4194, -(2 ** rng.uniform(0, 21, shape)) + rng.integers(0, 5000, shape))
    actions = ONE + rng.integers(-13107, 13108, shape)
    return np.stack([deltas, actions], axis=-1).reshape(count, -1).astype(np.int64)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    def build(architecture, weights):
        source = tmp_path_factory.mktemp("network") / "network.c"
        source.write_text(sources.network_source(architecture, weights, "network", "A test's."))
        build_library(source, source.with_suffix(".so"))
        return ctypes.CDLL(str(source.with_suffix(".so")))

    return build


def test_the_paper_s_lstm_has_its_2753_weights():
    assert LSTM.weights == 2753


def test_the_mlp_in_c_has_the_bits_of_its_twin_and_is_near_the_floating_one(built):
    weights, windows = some_weights(MLP), some_windows(MLP, 20_000)
    library = built(MLP, weights)
    inputs = np.ascontiguousarray(windows, dtype=np.int32)
    answers = np.zeros(len(windows), dtype=np.int32)
    pointer = ctypes.POINTER(ctypes.c_int32)
    library.rlcc_infer_all(
        inputs.ctypes.data_as(pointer),
        answers.ctypes.data_as(pointer),
        ctypes.c_uint64(len(windows)),
    )
    twin = fixed_point.mlp(fixed_point.quantised(MLP, weights), windows)
    assert (answers == twin).all()
    seen = fixed_point.inputs(windows) / ONE
    floating = networks.actions(MLP, weights, seen[:, None])[:, 0]
    assert np.abs(twin / ONE - floating).max() < 0.003
    assert np.ptp(floating) > 0.3  # both ends of the actions are in it


def test_the_lstm_in_c_has_the_bits_of_its_twin_over_a_flow_s_life(built):
    weights = some_weights(LSTM)
    library = built(LSTM, weights)
    flow = Flow(Policy.in_dll(library, "cl_policy_network"), [64, 1500, 5 * US, 1000])
    flow.tell(START, 0)
    quantised, memory = fixed_point.quantised(LSTM, weights), np.zeros((1, 32), dtype=np.int64)
    rng, now_ns, seen = np.random.default_rng(5), 0, []
    for _ in range(300):
        rtt_ns = int(5 * US * 2 ** rng.uniform(0, 3))
        now_ns += rtt_ns
        flow.tell(RTT, now_ns, rtt_ns=rtt_ns)
        words = np.frombuffer(bytes(flow.state.own), dtype=np.int32)
        window, action = words[7:9].astype(np.int64), words[6]
        assert action == fixed_point.lstm(quantised, window[None], memory)[0]
        assert (words[9:41] == memory[0]).all()
        seen.append((fixed_point.inputs(window) / ONE, action / ONE))
    inputs = np.array([one for one, _ in seen])[None]
    floating = networks.actions(LSTM, weights, inputs)[0]
    assert np.abs(floating - [action for _, action in seen]).max() < 0.01


@pytest.mark.parametrize("architecture", [MLP, LSTM], ids=["mlp", "lstm"])
def test_the_gradient_of_equation_3_is_the_numerical_one(architecture):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    flows, steps = 3, 7
    seen = rng.normal(0, 1, (flows, steps, 2))
    inputs = networks.windows(seen, architecture.history)
    # the deltas that follow weigh the actions; the network's weights do not change them
    given = rng.normal(0, 1, (flows, steps))
    weights = {name: v.astype(np.float64) for name, v in some_weights(architecture).items()}
    tensors = {name: torch.tensor(v, requires_grad=True) for name, v in weights.items()}
    gradient.objective(architecture, tensors, torch.tensor(inputs), torch.tensor(given)).backward()
    step = 1e-6
    for name, values in weights.items():
        places = list(
            itertools.islice(np.ndindex(values.shape), 0, None, max(1, values.size // 25))
        )
        for place in places:
            ends = []
            for sign in (1, -1):
                moved = {**weights, name: values.copy()}
                moved[name][place] += sign * step
                ends.append(gradient.objective(architecture, moved, inputs, given))
            numerical = (ends[0] - ends[1]) / (2 * step)
            assert tensors[name].grad[place] == pytest.approx(numerical, rel=1e-4, abs=1e-7)


def test_an_action_is_weighted_with_the_deltas_after_it_and_not_with_those_before():
    deltas = np.zeros((1, 40))
    deltas[0, 20] = -1.0
    rollout = pytest.importorskip("types").SimpleNamespace(
        delta=deltas, valid=np.ones((1, 40), dtype=bool)
    )
    weights = gradient.decision_weights(rollout, discount=0.5, horizon=16)[0]
    assert (weights[20:] == 0).all()
    # half, a quarter, ... of the mean that equation 3 takes without end
    assert weights[19] == pytest.approx(-0.5, rel=1e-4)
    assert weights[18] == pytest.approx(-0.25, rel=1e-4)
    assert weights[4] < 0
    assert (weights[:4] == 0).all()
    # too few deltas after it
    deltas[0, -1] = -1.0
    assert (gradient.decision_weights(rollout, discount=0.5)[0, -gradient.MIN_LATER :] == 0).all()


def test_each_rollout_teaches_as_much_as_another():
    weights = np.array([[0.01, -0.02, 0.0]])
    assert np.abs(gradient.normalised(10 * weights) - gradient.normalised(weights)).max() < 1e-9
    assert (gradient.normalised(weights)[:, :2] ** 2).mean() == pytest.approx(1.0)
    assert (gradient.normalised(0 * weights) == 0).all()


@pytest.mark.parametrize(
    ("name", "architecture", "of"), [("mlp", MLP, "mlp-3"), ("lstm", LSTM, "lstm-1")]
)
def test_the_networks_that_are_built_in_are_those_that_were_trained(name, architecture, of):
    weights = load_file(f"tuners/pretrained/rl-cc-{of}.safetensors")
    written = (HEADERS / f"policy_rlcc_{name}.c").read_text()
    source = sources.network_source(architecture, weights, f"rlcc_{name}", "")
    # behind the comment that says where the weights are from
    assert written.partition("#define")[2].rstrip() == source.partition("#define")[2].rstrip()
    assert (HEADERS / "policy_rlcc_tanh.h").read_text().rstrip() == sources.tanh_source().rstrip()


@pytest.mark.slow
def test_the_benchmark_of_decisions_runs_every_model():
    sources_of = decision_cost.model_sources(decision_cost.paper_sized_trees())
    assert set(sources_of) == {"trees", "rlcc_mlp", "rlcc_lstm"}
    for text in sources_of.values():
        # refuses a loop that did nothing
        parts = decision_cost.parts_ns(text, partial(decision_cost.c_ns, rounds=2_000))
        assert all(1 < value < 1e6 for value in parts.values())
