"""DRLet: its equations by hand, its exploration, its learner, and what it makes of readings."""

import dataclasses

import numpy as np
import pytest
import torch

from inventory.files import load_testbed
from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.records import Observation
from orchestration.core.signals import PAIRS, targets
from tuners import registry
from tuners.flowlet import learned as ddpg
from tuners.flowlet.drlet import Drlet
from tuners.flowlet.drlet_local import DrletLocal
from tuners.flowlet.drw import Drw
from tuners.flowlet.learned import balance_reward, load_aware_exploration, reordering_reward, reward
from tuners.flowlet.settings import (
    BEST_NS,
    LOADS,
    LONGEST_NS,
    SHORTEST_NS,
    action_of,
    best_static_ns,
    timeout_of,
)
from tuners.learning import checkpoint
from tuners.training.ddpg import DdpgLearner, DdpgSettings, ddpg_target
from tuners.training.drlet import DrletLearner
from tuners.training.drlet_local import DrletLocalLearner

MS = 1_000_000
K4 = load_testbed("drlet-k4")
GBPS = 10**9


# equations


def test_the_reward_falls_with_the_variance_and_rises_with_the_traffic():
    # equation 3 as printed has the other sign: decision 69
    assert balance_reward(0.01) == pytest.approx(np.log(100))
    assert balance_reward(0.04) < balance_reward(0.01)
    assert reordering_reward(3e6, 2e6) == pytest.approx(np.log(1.5))
    assert reward(0.01, 3e6, 2e6, 0.2, 0.8) == pytest.approx(0.2 * np.log(100) + 0.8 * np.log(1.5))


def test_an_idle_fabric_earns_a_number():
    assert np.isfinite([reward(0.0, 0.0, 5e6, 0.5, 0.5), reward(0.0, 5e6, 0.0, 0.5, 0.5)]).all()


def test_actions_are_timeouts_by_equal_factors():
    assert timeout_of(np.array([-1.0, 1.0])).tolist() == [SHORTEST_NS, LONGEST_NS]
    assert timeout_of(np.array([0.0])) == [round((SHORTEST_NS * LONGEST_NS) ** 0.5)]
    some = np.array([100_000, 200_000, 2_000_000, 8_000_000])
    assert timeout_of(action_of(some)).tolist() == some.tolist()


def test_target_of_the_critic_by_hand():
    # mu'(s) = tanh(2 s), Q'(s, a) = 3 s + 10 a
    parameters = {
        "actor.0.weight": torch.tensor([[2.0]]),
        "actor.0.bias": torch.zeros(1, 1),
        "critic.0.weight": torch.tensor([[3.0], [10.0]]),
        "critic.0.bias": torch.zeros(1, 1),
    }
    y = ddpg_target(parameters, torch.tensor([1.0]), torch.tensor([[0.5]]), discount=0.5)
    assert float(y) == pytest.approx(1.0 + 0.5 * (1.5 + 10 * np.tanh(1.0)))


def test_exploration_takes_the_base_with_a_tenth_of_one_by_the_step():
    def share(step):
        rng = np.random.default_rng(0)
        tries = [
            load_aware_exploration(rng, np.zeros(1), np.ones(1), step, 0.0)[0]
            for _ in range(20_000)
        ]
        return np.mean(tries)

    assert share(1) == pytest.approx(0.1, abs=0.01)
    assert share(5) == pytest.approx(0.02, abs=0.005)


def test_exploration_is_noisy_and_within_bounds():
    tried = load_aware_exploration(
        np.random.default_rng(0), np.zeros((1, 5000)), np.zeros((1, 1)), 1, 0.5
    )
    assert np.abs(tried).max() == 1.0
    assert np.std(np.clip(tried, -0.5, 0.5)) > 0.3
    assert len(np.unique(tried)) > 4000, "each switch has noise of its own"


# the learner


class Learner(DdpgLearner):
    def __init__(self, seed=1, **settings):
        settings = dataclasses.replace(DdpgSettings(), **settings)
        super().__init__(seed, (1, 1), settings, {"hidden": [16]})


def episode(learner, seed, steps=40):
    """Play a problem whose best action is 0.6 where the state is 1, and -0.6 where it is -1."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 1.0], (steps, 1, 1)).astype(np.float32)
    wanted = ddpg.policy(learner.parameters(), x)
    noise = float(learner.acting()["explore"])
    action = np.clip(wanted + noise * rng.standard_normal(wanted.shape), -1, 1)
    earned = -((action - 0.6 * x)[..., 0] ** 2)
    after = np.concatenate(
        [np.zeros((1, 1)), earned[:-1]]
    )  # a row has the reward of the one before
    return {"x": x, "action": action.astype(np.float32), "reward": after.astype(np.float32)}


@pytest.mark.slow
def test_it_learns_what_to_do_in_two_states():
    learner = Learner(actor_rate=3e-3, noise_decay=300.0)
    for number in range(8):
        learner.learn(episode(learner, number))
    x = np.array([[[1.0]], [[-1.0]]])
    assert ddpg.policy(learner.parameters(), x).ravel() == pytest.approx([0.6, -0.6], abs=0.2)


def test_targets_follow_by_tau():
    learner = Learner(tau=0.1)
    learner.learn(episode(learner, 0, steps=2))  # one transition: four updates
    before = learner.state()
    learner.update()
    after = learner.state()
    for net in ("actor", "critic"):
        name = f"{net}.0.weight"
        now = 0.9 * before[f"target.{name}"] + 0.1 * after[f"{net}.net.{name}"]
        np.testing.assert_allclose(after[f"target.{name}"], now, rtol=1e-5)
        assert not np.array_equal(after[f"target.{name}"], before[f"target.{name}"])


@pytest.mark.slow
def test_a_state_goes_on_to_the_same_network():
    one, other = Learner(), Learner(seed=1)
    one.learn(episode(one, 0))
    other.load(one.state())
    more = episode(one, 1)
    for learner in (one, other):
        learner.learn(more)
    for name, values in one.parameters().items():
        np.testing.assert_array_equal(values, other.parameters()[name])


# tuners


@pytest.fixture
def write(tmp_path):
    def save(name, learner):
        path = tmp_path / f"{name}.safetensors"
        card = {"tuner": name, "architecture": learner.architecture()}
        checkpoint.save(path, learner.parameters(), card)
        return str(path)

    return save


def reading(number, pair_bytes=None, tx_bytes=None, **more) -> Observation:
    """Return a reading of k = 4 at 10 Gbit/s, `number` periods of 1 ms from the start."""
    zeros = np.zeros(len(K4.queues), dtype=np.int64)
    values = {
        "tx_bytes": zeros if tx_bytes is None else tx_bytes,
        "marked_packets": zeros,
        "qlen_mean_bytes": zeros.astype(float),
        "switch.reroutes": np.zeros(len(K4.switches), dtype=np.int64),
        PAIRS: np.zeros(56, dtype=np.int64) if pair_bytes is None else pair_bytes,
    }
    return Observation(number * MS, zeros, {**values, **more})


def test_the_state_is_the_traffic_of_the_last_period_in_a_hosts_rate(write):
    tuner = Drlet(write("drlet", DrletLearner(1, K4)), collect=True)
    tuner.reset(K4, 1)
    pair = targets(K4, "pair").index("edge1>edge5")
    bytes_ = np.zeros(56, dtype=np.int64)
    bytes_[pair] = 1_250_000  # in 1 ms: 10 Gbit/s
    tuner.act(reading(1, bytes_))
    tuner.act(reading(2, 3 * bytes_))
    trace = tuner.trace()
    assert trace["x"].shape == (2, 1, 56)
    assert trace["action"].shape == (2, 1, 16)
    assert trace["x"][:, 0, pair].tolist() == [1.0, 2.0]
    assert trace["x"].sum() == 3.0
    # no link sent, so all are equally used; the second period has twice the traffic
    assert trace["reward"][1, 0] == pytest.approx(0.5 * np.log(1e6) + 0.5 * np.log(2), rel=1e-5)


def test_it_sets_edges_and_aggregations_as_its_actor_says(write):
    learner = DrletLearner(1, K4)
    path = write("drlet", learner)
    tuner = Drlet(path)
    start = tuner.reset(K4, 1)
    assert FLOWLET_TIMEOUT.of(start.action).targets.tolist() == list(range(20))
    assert ECN.of(start.action)["kmin_bytes"].tolist() == [95_290] * len(K4.queues)
    (change,) = tuner.act(reading(1))
    assert [K4.switches[i] for i in change.targets] == [
        *(f"edge{n}" for n in range(1, 9)),
        *(f"agg{n}" for n in range(1, 9)),
    ]
    action = ddpg.policy(checkpoint.load(path).arrays, np.zeros((1, 56)))
    assert change["timeout_ns"].tolist() == timeout_of(action[0]).tolist()


def test_a_checkpoint_of_another_fabric_is_refused(write):
    path = write("drlet", DrletLearner(1, K4))
    (fault,) = registry.check("drlet", {"checkpoint": path}, load_testbed("graphcc"))
    assert "is for 56 pairs of edge switches and 16 switches with several paths" in fault.what
    assert registry.check("drlet", {"checkpoint": path}, K4) == ()


def test_an_agent_sees_and_earns_its_own_links_only(write):
    tuner = DrletLocal(write("drlet-local", DrletLocalLearner(1, K4)), collect=True)
    tuner.reset(K4, 1)
    sent = np.zeros(len(K4.queues), dtype=np.int64)
    ports = [n for n, q in enumerate(K4.queues) if q.device == "edge1"]
    sent[ports[2]] = 1_250_000  # the first link upwards, full for 1 ms
    tuner.act(reading(1, tx_bytes=sent))
    trace = tuner.trace()
    assert trace["x"].shape == (1, 16, 8)
    assert trace["x"][0, 0, :3].tolist() == [0.5, 0.5, 0.0]
    assert not trace["x"][0, 1:, :3].any()
    assert trace["reward"][0, 0] == pytest.approx(0.5 * -np.log(0.25) + 0.5 * np.log(10))
    assert trace["reward"][0, 1] == pytest.approx(0.5 * np.log(1e6))


def test_drw_chooses_by_the_load_of_each_switch():
    tuner = Drw()
    tuner.reset(K4, 1)
    sent = np.zeros(len(K4.queues), dtype=np.int64)
    up = [n for n, q in enumerate(K4.queues) if q.device == "edge1"][2:]
    sent[up] = 1_000_000  # 80 %
    (change,) = tuner.act(reading(1, tx_bytes=sent))
    assert change.targets.tolist() == [0]
    assert change["timeout_ns"].tolist() == [tuner.high_ns]
    (change,) = tuner.act(reading(2, tx_bytes=sent))
    assert change["timeout_ns"].tolist() == [tuner.low_ns]


def test_the_table_is_read_by_the_nearest_load_and_rate():
    for rate, best in BEST_NS.items():
        assert best_static_ns(np.array(LOADS) + 0.04, rate).tolist() == list(best)
    assert best_static_ns(0.0, 2 * GBPS) == BEST_NS[GBPS][0]
    assert best_static_ns(1.0, 25 * GBPS) == BEST_NS[10 * GBPS][-1]
