"""RL-CC in ns-3: rollouts with a network in the NICs, and what the packaged one does."""

import dataclasses

import numpy as np
import pytest

from orchestration.backends.simulated.program import require_program
from orchestration.training.rlcc.rollout import compile_library, play, steady_state_of
from orchestration.training.rlcc.scenarios import Scenario
from orchestration.training.rlcc.scenarios import testbed as one_switch
from tuners.learning import checkpoint
from tuners.nic import fixed_point
from tuners.nic.networks import MLP, ONE, delta, initial_weights, windows
from tuners.nic.sources import network_source, weights_bytes

pytestmark = pytest.mark.ns3
SCENARIO = Scenario("many-to-one", 16, 4_000)
PACKAGED = "rl-cc-mlp-3"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Play the scenario with the packaged network, given as weights to a library of another."""
    arrays = checkpoint.load(PACKAGED).arrays
    source = network_source(MLP, initial_weights(MLP, 1), "other", "A test's.")
    model = compile_library(source, tmp_path_factory.mktemp("model"))
    weights = weights_bytes(MLP, arrays)
    return arrays, play(require_program(), model, SCENARIO, one_switch(), 3, weights)


def test_a_rollout_has_each_decision_as_the_network_took_it(played):
    arrays, rollout = played
    assert rollout.valid.sum(axis=1).min() > 100
    # equation 4 of what was measured
    wanted = delta(rollout.inflation, rollout.share)
    assert np.abs(rollout.delta - wanted)[rollout.valid].max() < 1e-3
    # the first delta of all follows a start, each later one the action before it
    assert (rollout.before[:, 0] == 1.0).all()
    assert (rollout.before[:, 1:] == rollout.action[:, :-1])[rollout.valid[:, 1:]].all()
    seen = windows(np.stack([rollout.delta, rollout.before - 1.0], axis=-1), MLP.history)
    seen[..., 1::2] += 1.0
    asked = np.rint(seen[rollout.valid] * ONE).astype(np.int64)
    answers = fixed_point.mlp(fixed_point.quantised(MLP, arrays), asked)
    assert (answers == np.rint(rollout.action[rollout.valid] * ONE)).all()


def test_the_packaged_network_keeps_to_equation_2(played):
    _, rollout = played
    found = steady_state_of(rollout)
    assert abs(found.deviation) < 0.1
    assert found.jain > 0.95
    assert found.goodput > 0.9
    assert dataclasses.replace(found, inflation=1.2).deviation < -0.3
