"""A tuner given to `Backend.run` decides in this process, in place of the trial's own."""

import os
import time

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.codec import flattened
from orchestration.core.ports import TrialRun
from orchestration.core.trial import TunerSpec
from tests.trials import trial_spec
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule
from tuners import registry
from tuners.base import BaseTuner

MS = 1_000_000
TESTBED = load_testbed("rlcc-7")
# Reads the clock once in a while: a nanosecond each 64 times (docs/kernel.md).
CLOCK_NS = 10


class Watched(BaseTuner):
    """Lets another tuner decide, takes its time, and keeps what it saw."""

    def __init__(self, name="random", wall_s=0.0, fail_at=None):
        self.tuner = registry.create(TunerSpec(name))
        self.wall_s, self.fail_at = wall_s, fail_at
        self.seen = []

    def reset(self, testbed, seed):
        self.told = testbed, seed, os.getpid()
        return self.tuner.reset(testbed, seed)

    def act(self, observation):
        self.seen.append(observation)
        if len(self.seen) == self.fail_at:
            raise ZeroDivisionError("of the tuner's own")
        time.sleep(self.wall_s)
        return self.tuner.act(observation)

    def facts(self):
        return {"seen": len(self.seen)}

    def trace(self):
        return {"t_ns": np.array([reading.t_ns for reading in self.seen])}


@pytest.fixture
def run(engine, backend, tmp_path):
    def run_trial(tuner, name="secn1"):
        trial = trial_spec(
            campaign="contract",
            testbed="rlcc-7",
            tuner=TunerSpec(name),
            traffic=(IncastSpec(6, 2_000_000, MS, 0, MS, receiver="h1"),),
            seed=3,
            duration_ns=2 * MS,
            drain_ns=20 * MS,
            action_period_ns=200_000,
            decision_latency_ns=50_000,
            **engine.fields,
        )
        schedule = make_schedule(trial, TESTBED)
        work = tmp_path / str(len(list(tmp_path.iterdir())))
        work.mkdir()
        return backend.run(TrialRun(trial, TESTBED, schedule, work, tuner=tuner))

    return run_trial


def test_it_decides_in_this_process_with_the_trials_seed(run):
    tuner = Watched()
    record = run(tuner)
    assert tuner.told == (TESTBED, 3, os.getpid())
    assert record.facts["decisions"] == len(tuner.seen) > 3
    assert record.facts["tuner"] == {"seen": len(tuner.seen)}
    np.testing.assert_array_equal(record.trace["t_ns"], [r.t_ns for r in tuner.seen])


def test_it_sees_what_the_record_says(run):
    tuner = Watched()
    record = run(tuner)
    for reading in tuner.seen:
        (sample,) = np.flatnonzero(record.ports.t_ns == reading.t_ns)
        for name in ("qlen_bytes", "tx_bytes", "marked_packets", "dropped_packets"):
            np.testing.assert_array_equal(
                getattr(reading, name), getattr(record.ports, name)[sample]
            )
        both = record.ports.qlen_bytes[sample - 1 : sample + 1]
        np.testing.assert_allclose(reading.qlen_mean_bytes, both.mean(axis=0))
    # what it set is what it reads back at the next decision
    changes = record.changes["ecn"]
    first = changes.observed_ns == tuner.seen[0].t_ns
    read = tuner.seen[1].settings["ecn"]["kmin_bytes"]
    np.testing.assert_array_equal(read, changes.kmin_bytes[first])


def test_time_stands_still_while_it_thinks(run):
    """The same draws, here and in the trial's own tuner, quick and slow: the same changes."""
    own = run(None, "random").changes["ecn"]
    for wall_s in (0.0, 0.02):
        host = run(Watched(wall_s=wall_s)).changes["ecn"]
        first = min(len(own.targets), len(host.targets))
        columns = flattened(vars(own))
        assert len(columns) == 7
        for name, values in columns.items():
            timed = name.endswith("_ns")
            # The first setting is made before time 0, which differs by what was imported.
            rows = slice(len(TESTBED.queues) if timed else 0, first)
            before, after = values[rows], flattened(vars(host))[name][rows]
            tolerance = CLOCK_NS if timed else 0
            np.testing.assert_allclose(after, before, atol=tolerance, rtol=1e-12)


def test_one_that_does_nothing_leaves_the_setting(run):
    class Idle(Watched):
        def act(self, observation):
            self.seen.append(observation)
            return ()

    tuner = Idle("secn1")
    record = run(tuner)
    assert set(record.changes["ecn"].observed_ns) == {0}
    assert set(tuner.seen[-1].settings["ecn"]["kmax_bytes"]) == {200_000}


def test_its_errors_come_out_as_they_are(run):
    with pytest.raises(ZeroDivisionError, match="of the tuner's own"):
        run(Watched(fail_at=2))
