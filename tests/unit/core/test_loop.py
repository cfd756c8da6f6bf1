"""The loop: when a tuner decides, when its change takes effect, what is refused."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import Setup
from orchestration.core.trial import TrialSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

US, MS = 1_000, 1_000_000
TESTBED = load_testbed("rlcc-7")
QUEUES = len(TESTBED.queues)
BUFFER = TESTBED.queues[0].buffer_bytes


def setting(kmin=5_000, kmax=200_000, pmax=0.1, queues=None, dtype=np.int64):
    index = np.arange(QUEUES) if queues is None else np.array(queues)
    kmins, kmaxs = (np.full(len(index), value, dtype=dtype) for value in (kmin, kmax))
    return (ECN.change(index, kmins, kmaxs, np.full(len(index), float(pmax))),)


class Scripted(BaseTuner):
    """Answers with `actions`, the first of them at reset, and keeps what it was shown."""

    def __init__(self, *actions):
        self.actions = list(actions)
        self.seen = []

    def reset(self, testbed, seed):
        return Setup(self.actions.pop(0))

    def act(self, observation):
        self.seen.append(observation)
        return self.actions.pop(0) if self.actions else ()


def run(tmp_path, tuner, **changes):
    # the receiver's port is busy for 1.4 ms
    incast = IncastSpec(6, 3_000_000, 100 * MS, 0, MS, receiver=TESTBED.hosts[0])
    spec = {"decision_latency_ns": 0, "tuner": TunerSpec("secn1"), "traffic": (incast,)} | changes
    trial = TrialSpec(
        campaign="c", testbed="rlcc-7", backend="fluid", seed=3, repeat=1,
        duration_ns=2 * MS, drain_ns=20 * MS, **spec,
    )  # fmt: skip
    schedule = make_schedule(trial, TESTBED)
    record = FluidBackend().run(TrialRun(trial, TESTBED, schedule, tmp_path, tuner=tuner))
    return trial, schedule, record


@pytest.mark.parametrize("latency_ns", [0, 1, 50 * US, 99 * US])
def test_a_change_takes_effect_a_latency_after_its_reading(tmp_path, latency_ns):
    tuner = Scripted(setting(), (), setting(pmax=0.2), setting(pmax=0.3))
    _, _, record = run(tmp_path, tuner, decision_latency_ns=latency_ns)
    actions = record.changes["ecn"]
    later = actions.observed_ns > 0
    assert sorted(set(actions.observed_ns[later])) == [200 * US, 300 * US]
    assert set(actions.applied_ns[later] - actions.observed_ns[later]) == {latency_ns}
    # readings stay on their beat
    assert (record.ports.t_ns % (100 * US) == 0).all()


def test_until_its_latency_is_over_a_change_has_no_effect(tmp_path):
    never = setting(kmin=BUFFER, kmax=BUFFER)
    always = setting(kmin=0, kmax=0, pmax=1.0)
    marked = []
    for latency_ns in (0, 90 * US):
        tuner = Scripted(never, never, always)
        _, _, record = run(tmp_path, tuner, decision_latency_ns=latency_ns)
        at = int(np.flatnonzero(record.ports.t_ns == 300 * US)[0])
        marked.append(int(record.ports.marked_packets[at].sum()))
    assert 0 < marked[1] < marked[0] / 3


def test_a_tuner_sees_the_mean_queue_since_its_last_decision(tmp_path):
    tuner = Scripted(setting())
    _, _, record = run(tmp_path, tuner, action_period_ns=300 * US)
    assert len(tuner.seen) >= 2
    for seen in tuner.seen:
        assert seen.t_ns % (300 * US) == 0
        at = int(np.flatnonzero(record.ports.t_ns == seen.t_ns)[0])
        np.testing.assert_array_equal(seen.qlen_bytes, record.ports.qlen_bytes[at])
        mean = record.ports.qlen_bytes[at - 2 : at + 1].mean(axis=0)
        np.testing.assert_allclose(seen.qlen_mean_bytes, mean)
    assert record.facts["decisions"] == len(tuner.seen)


def test_thresholds_out_of_bounds_are_clamped_counted_and_in_the_stamp(tmp_path):
    tuner = Scripted(
        setting(kmax=BUFFER + 1),
        setting(pmax=1.5, queues=[0, 2]),
        setting(kmin=-5, queues=[1]),
        setting(),
    )
    trial, schedule, record = run(tmp_path, tuner)
    actions = record.changes["ecn"]
    assert actions.kmax_bytes.max() == BUFFER
    assert actions.kmin_bytes.min() == 0
    assert actions.pmax.max() == 1.0
    assert record.facts["clamped_changes"] == QUEUES + 2 + 1
    verdict = stamp(trial, TESTBED, schedule, record)
    assert verdict.valid
    (reason,) = [r for r in verdict.reasons if r.code == "thresholds-clamped"]
    assert reason.text.startswith(f"{QUEUES + 3} changes of thresholds were out of bounds")


def test_thresholds_within_bounds_leave_no_word_in_the_stamp(tmp_path):
    trial, schedule, record = run(tmp_path, Scripted(setting(), setting(kmin=0, kmax=BUFFER)))
    assert record.facts["clamped_changes"] == 0
    verdict = stamp(trial, TESTBED, schedule, record)
    assert "thresholds" in verdict.checked
    assert not any(reason.code == "thresholds-clamped" for reason in verdict.reasons)


NAN = float("nan")
LABEL = TESTBED.queues[2].label


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (setting(pmax=NAN, queues=[2]), f"at queue {LABEL}, after 200000 ns: pmax nan"),
        (setting(kmin=NAN, queues=[2], dtype=np.float64), f"at queue {LABEL}, after 200000 ns"),
        (setting(kmax=NAN, queues=[2], dtype=np.float64), f"at queue {LABEL}, after 200000 ns"),
        (setting(queues=[QUEUES]), f"not in 0..{QUEUES - 1}"),
        (setting(queues=[1, 1]), "set twice"),
    ],
)
def test_impossible_thresholds_fail_the_trial_and_say_whose(tmp_path, bad, says):
    with pytest.raises(TrialError) as caught:
        run(tmp_path, Scripted(setting(), (), bad))
    assert caught.value.message.startswith("tuner 'secn1' set impossible thresholds")
    assert says in caught.value.message
    assert "train" in caught.value.remedy


def test_an_impossible_start_fails_before_the_start(tmp_path):
    with pytest.raises(TrialError, match="before the start: pmax nan"):
        run(tmp_path, Scripted(setting(pmax=NAN)))
