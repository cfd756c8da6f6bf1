"""What changes hands between a guest and a tuner in the host's process."""

import threading

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.backends.emulated.remote_tuner import TunerClient, TunerServer
from orchestration.core.codec import (
    pack_observation,
    pack_setup,
    unpack_observation,
    unpack_setup,
)
from orchestration.core.knobs import ECN
from orchestration.core.records import Observation, Setup
from orchestration.core.signals import SIGNALS
from tuners.base import BaseTuner

OF_QUEUES = [signal for signal in SIGNALS if signal.scope == "queue"]
TESTBED = load_testbed("rlcc-7")


def observation(without: tuple[str, ...] = ()) -> Observation:
    rng = np.random.default_rng(1)
    values = {
        one.key: rng.random(5) if one.dtype == "float64" else rng.integers(0, 2**40, 5)
        for one in OF_QUEUES
        if one.key not in without
    }
    thresholds = ECN.named(rng.integers(0, 2**40, 5), rng.integers(0, 2**40, 5), rng.random(5))
    taken = None if "taken_ns" in without else rng.integers(0, 2**40, 5)
    return Observation(2**40, rng.integers(0, 2**40, 5), values, {"ecn": thresholds}, taken)


@pytest.mark.parametrize(
    "without",
    [
        (),
        ("incast_degree", "mice_flows", "elephant_flows"),
        ("qlen_mean_bytes", "incast_degree", "taken_ns"),
    ],
)
def test_an_observation_arrives_as_it_was(without):
    sent = observation(without)
    got = unpack_observation(pack_observation(sent))
    assert got.t_ns == sent.t_ns
    assert type(got.t_ns) is int
    assert set(got.values) == {one.key for one in OF_QUEUES} - set(without)
    pairs = [(sent.values[name], got.values[name]) for name in got.values]
    assert set(got.settings) == {"ecn"}
    pairs += [(sent.settings["ecn"][name], got.settings["ecn"][name]) for name in ECN.column_names]
    pairs.append((sent.age_ns, got.age_ns))
    if "taken_ns" in without:
        assert got.taken_ns is None
    else:
        pairs.append((sent.taken_ns, got.taken_ns))
    for name in set(without) - {"taken_ns"}:
        assert got.get(name) is None
    for before, after in pairs:
        np.testing.assert_array_equal(after, before)
        assert after.dtype == before.dtype
        after[0] = 0  # the tuner's own


@pytest.mark.parametrize("queues", [0, 3])
def test_an_action_arrives_as_it_was(queues):
    sent = ECN.change(
        np.arange(queues, dtype=np.int32),
        np.full(queues, 5_000),
        np.full(queues, 200_000),
        np.full(queues, 0.25),
    )
    (got,) = unpack_setup(pack_setup(Setup((sent,)))).action
    assert got.knob == "ecn"
    for name in ("targets", "kmin_bytes", "kmax_bytes", "pmax"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
    assert got.targets.dtype == np.int64
    assert got.pmax.dtype == np.float64


def test_no_action_arrives_as_none():
    assert unpack_setup(pack_setup(Setup())) == Setup()


class Raising(BaseTuner):
    """Raises kmin by one at each decision, and leaves everything once it is 3."""

    def __init__(self):
        self.seen = []

    def reset(self, testbed, seed):
        self.told = testbed, seed
        return Setup((ECN.change(range(5), 0, 9, 0.5),))

    def act(self, observation):
        self.seen.append(observation.t_ns)
        kmin = observation.settings["ecn"]["kmin_bytes"] + 1
        return () if kmin.max() > 3 else (ECN.change(range(5), kmin, 9, 0.5),)


def test_what_a_guest_asks_is_answered_by_the_hosts_tuner(tmp_path):
    tuner = Raising()
    answering = TunerServer(tmp_path, tuner, TESTBED, 7)
    answering.answer({"t_ns": 5})  # no question

    def tell(**message):
        threading.Thread(target=answering.answer, args=(message,)).start()

    asking = TunerClient(tmp_path, ("qlen_bytes", "incast_degree"), tell)
    assert asking.observes == ("qlen_bytes", "incast_degree")
    (change,) = asking.reset(TESTBED, 0).action
    assert tuner.told == (TESTBED, 7)
    kmins = []
    for t_ns in range(5):
        reading = Observation(t_ns, change.targets, {}, {"ecn": dict(change.values)})
        answer = asking.act(reading)
        kmins.append([one.kmin_bytes[0] for one in answer])
        change = answer[0] if answer else change
    assert kmins == [[1], [2], [3], [], []]
    assert tuner.seen == list(range(5))
    assert list((tmp_path / "exchange").iterdir()) == []
