"""What learned tuners do with readings: idle rule, several queues a port, online learning."""

import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.knobs import ECN
from orchestration.core.records import Observation
from orchestration.core.trial import TunerSpec
from tuners import registry
from tuners.ecn.acc import Acc
from tuners.ecn.features import RATE, FeatureWindow
from tuners.ecn.pet import Pet
from tuners.learning import checkpoint
from tuners.training.acc import AccLearner
from tuners.training.pet import PetLearner


def reading(testbed, number: int, qlen_bytes, tx_share=0.5) -> Observation:
    queues = testbed.queues
    rate = np.array([queue.rate_bps for queue in queues])
    zeros = np.zeros(len(queues), dtype=np.int64)
    t_ns = 100_000 * number
    length = np.broadcast_to(np.asarray(qlen_bytes, dtype=np.int64), len(queues)).copy()
    values = {
        "qlen_bytes": length,
        "tx_bytes": (rate * tx_share * t_ns / 8e9).astype(np.int64),
        "marked_packets": zeros,
        "qlen_mean_bytes": length.astype(np.float64),
        "incast_degree": zeros + 4,
        "mice_flows": zeros + 3,
        "elephant_flows": zeros + 1,
    }
    ecn = {
        "kmin_bytes": zeros + 5_000,
        "kmax_bytes": zeros + 200_000,
        "pmax": np.full(len(queues), 0.01),
    }
    return Observation(t_ns, zeros, values, {ECN.name: ecn})


@pytest.fixture
def write(tmp_path):
    def save(tuner, learner):
        path = tmp_path / f"{tuner}.safetensors"
        card = {"tuner": tuner, "architecture": learner.architecture()}
        checkpoint.save(path, learner.parameters(), card)
        return str(path)

    return save


def test_idle_queues_get_no_inference(write):
    testbed = load_testbed("graphcc")
    tuner = Acc(write("acc", AccLearner(1, testbed)))
    tuner.reset(testbed, 1)
    count = len(testbed.queues)
    lengths = np.zeros(count, dtype=np.int64)
    lengths[:3] = 50_000
    lengths[3] = 6_000  # above the kmin of 5 KB in force, but below the lowest one of 20 KB
    tuner.act(reading(testbed, 1, lengths))
    assert (tuner.facts()["inferences"], tuner.facts()["inferences_skipped"]) == (3, count - 3)
    tuner.act(reading(testbed, 2, 0))
    assert tuner.facts()["inferences"] == 3
    tuner.act(reading(testbed, 3, 20_001))
    assert tuner.facts()["inferences"] == 3 + count


def test_without_the_rule_every_queue_gets_one(write):
    testbed = load_testbed("rlcc-7")
    tuner = Acc(write("acc", AccLearner(1, testbed)), idle_rule=False)
    tuner.reset(testbed, 1)
    tuner.act(reading(testbed, 1, 0))
    assert tuner.facts()["inferences"] == len(testbed.queues)


def test_online_learning_gives_each_switch_a_network_of_its_own(write):
    testbed = load_testbed("graphcc")
    path = write("acc", AccLearner(1, testbed))
    tuner = Acc(path, online=True)
    tuner.reset(testbed, 1)
    offline = tuner._net["q.0.weight"].whole[0]
    for number in range(1, 8):
        tuner.act(reading(testbed, number, 40_000 * (number % 3)))
    own = tuner._net["q.0.weight"].whole
    assert len(own) == len(testbed.switches)
    assert all(np.abs(copy - offline).max() > 0 for copy in own)
    assert np.abs(own[0] - own[-1]).max() > 0
    # a reset goes back to the checkpoint
    tuner.reset(testbed, 1)
    np.testing.assert_array_equal(tuner._net["q.0.weight"].whole[0], offline)


def test_pet_learns_online_after_a_rollout(write):
    testbed = load_testbed("rlcc-7")
    tuner = Pet(write("pet", PetLearner(1, testbed)), online=True)
    tuner.reset(testbed, 1)
    before = tuner._net["actor.0.weight"].whole.copy()
    for number in range(1, 51):
        tuner.act(reading(testbed, number, 30_000 * (number % 5)))
    np.testing.assert_array_equal(tuner._net["actor.0.weight"].whole, before)
    tuner.act(reading(testbed, 51, 0))
    assert np.abs(tuner._net["actor.0.weight"].whole - before).max() > 0


def test_queues_of_one_port_share_what_the_port_earns(write):
    testbed = load_testbed("acc-fig8")
    assert len(testbed.queues) == 2 * 8
    tuner = Pet(write("pet", PetLearner(1, testbed)), collect=True)
    start = tuner.reset(testbed, 1)
    assert len(start.action[0].targets) == 16  # a setting for each row of each port's matrix
    lengths = np.zeros(16, dtype=np.int64)
    lengths[0] = 400_000  # one class of the first port is congested
    tuner.act(reading(testbed, 1, lengths))
    earned = tuner.trace()["reward"][0].reshape(8, 2)
    np.testing.assert_array_equal(earned[:, 0], earned[:, 1])
    assert earned[0, 0] < earned[1, 0]


def test_history_is_newest_first_and_starts_empty():
    testbed = load_testbed("rlcc-7")
    window = FeatureWindow(testbed, 3, ("queue", "utilisation"))
    first = window.push(reading(testbed, 1, 1_000))
    second = window.push(reading(testbed, 2, 3_000))
    np.testing.assert_allclose(first[0], [0.1, 0.5, 0, 0, 0, 0], atol=1e-3)
    np.testing.assert_allclose(second[0], [0.2, 0.5, 0.1, 0.5, 0, 0], atol=1e-3)


def test_a_ports_rate_comes_once_and_last():
    testbed = load_testbed("graphcc")  # 25 and 100 Gbit/s
    window = FeatureWindow(testbed, 3, ("queue", RATE))
    seen = window.push(reading(testbed, 1, 1_000))
    assert seen.shape == (len(testbed.queues), 4) == (len(testbed.queues), window.width)
    rates = np.array([queue.rate_bps for queue in testbed.queues])
    np.testing.assert_allclose(seen[:, -1], np.log2(1 + rates / 1e9) / 10, rtol=1e-6)
    again = window.push(reading(testbed, 2, 3_000))
    np.testing.assert_array_equal(again[:, 1:], np.c_[seen[:, 0], seen[:, 1], seen[:, -1]])


@pytest.mark.parametrize("name", ["acc", "pet", "graphcc"])
def test_the_reward_between_two_observations_is_what_the_tuner_learns_from(name):
    testbed = load_testbed("graphcc")
    tuner = registry.create(TunerSpec(name, {"collect": True}))
    tuner.reset(testbed, 1)
    before, after = reading(testbed, 1, 3_000), reading(testbed, 2, 70_000, tx_share=0.7)
    tuner.act(before)
    earned = tuner.rewards(testbed, before, after)
    assert earned.shape == (len(testbed.queues),)
    tuner.act(after)
    np.testing.assert_allclose(tuner.trace()["reward"][1], earned, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "weights"),
    [("acc", ("omega_1", "omega_2")), ("pet", ("beta_1", "beta_2")), ("graphcc", ("w_1", "w_2"))],
)
def test_weights_add_up_to_one(name, weights):
    first, second = weights
    assert not [*registry.create(TunerSpec(name, {first: 0.6, second: 0.4})).faults()]
    said = registry.check(name, {first: 0.6, second: 0.6}, None)
    assert f"{first} 0.6 and {second} 0.6 are no weights" in said[0].what


def test_a_reading_that_is_no_number_is_refused():
    testbed = load_testbed("rlcc-7")
    window = FeatureWindow(testbed, 1)
    good = reading(testbed, 1, 0)
    ecn = {**good.settings[ECN.name], "pmax": np.full(len(testbed.queues), np.nan)}
    bad = dataclasses.replace(good, settings={ECN.name: ecn})
    with pytest.raises(ValueError, match="no number for 'pmax' of queue 0"):
        window.push(bad)


def test_flow_features_need_a_flow_table():
    testbed = load_testbed("rlcc-7")
    window = FeatureWindow(testbed, 1, ("incast",))
    seen = reading(testbed, 1, 0)
    blind = dataclasses.replace(
        seen, values={name: one for name, one in seen.values.items() if name != "incast_degree"}
    )
    with pytest.raises(ValueError, match="needs the flow table"):
        window.push(blind)


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", ["acc", "pet", "graphcc"])
def test_a_shipped_network_marks_most_packets_at_a_queue_that_stays_long(name, seed):
    testbed = load_testbed("graphcc")
    tuner = registry.create(TunerSpec(name, {"checkpoint": f"{name}-dctcp-{seed}"}))
    known = {key: values.copy() for key, values in tuner.reset(testbed, 1).action[0].values.items()}
    for number in range(1, 6):
        for change in tuner.act(reading(testbed, number, 300_000, tx_share=0.95)):
            for key, values in known.items():
                values[change.targets] = change[key]
    kmin, kmax, pmax = (known[key] for key in ECN.column_names)
    marked = np.where(kmax <= 300_000, 1.0, pmax * (300_000 - kmin) / (kmax - kmin))
    to_hosts = [testbed.peer_device(queue).kind == "host" for queue in testbed.queues]
    assert np.median(marked[to_hosts]) > 0.75
