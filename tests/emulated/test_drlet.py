"""DRLet in a guest: what it observes there, and that switches have the timeouts that it chose."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.ports import TrialRun
from orchestration.core.trial import CLOSLOOP, TunerSpec
from orchestration.run import backend_factory
from tests.trials import trial_spec
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule
from tuners.flowlet.settings import timeout_of
from tuners.learning import checkpoint
from tuners.training.drlet import DrletLearner
from tuners.training.drlet_local import DrletLocalLearner

MS = 1_000_000
TESTBED = load_testbed("drlet-k4")


@pytest.mark.parametrize(
    ("name", "learner", "shape"),
    [("drlet", DrletLearner, (1, 56)), ("drlet-local", DrletLocalLearner, (16, 8))],
)
def test_switches_have_the_timeouts_that_it_chose(name, learner, shape, tmp_path):
    path = tmp_path / "untrained.safetensors"
    untrained = learner(1, TESTBED)
    card = {"tuner": name, "architecture": untrained.architecture()}
    checkpoint.save(path, untrained.parameters(), card)
    trial = trial_spec(
        campaign="drlet",
        testbed="drlet-k4",
        backend="emulated",
        tuner=TunerSpec(name, {"checkpoint": str(path), "explore": 0.3, "collect": True}),
        traffic=(PoissonSpec("WebSearch", 0.6, 0, 4 * MS),),
        duration_ns=4 * MS,
        drain_ns=MS,
        sample_period_ns=500_000,
        action_period_ns=MS,
        decision_latency_ns=50_000,
        fabric=CLOSLOOP,
        load_balancing=LoadBalancingSpec("flowlets"),
    )
    schedule = make_schedule(trial, TESTBED)
    record = backend_factory.backend("emulated").run(TrialRun(trial, TESTBED, schedule, tmp_path))
    x, action, reward = (record.trace[part] for part in ("x", "action", "reward"))
    assert x.shape[1:] == shape
    assert x.shape[0] == record.facts["decisions"] >= 4
    assert (x[1:].max(axis=(1, 2)) > 0.1).all(), "there is traffic"
    assert np.isfinite(reward).all()
    made = record.changes["flowlet_timeout"]
    later = made.observed_ns > 0
    chosen = timeout_of(action.reshape(len(x), 16))
    # a trace has 32 bits of an action
    np.testing.assert_allclose(made["timeout_ns"][later], chosen.ravel(), rtol=1e-6, atol=1)
    assert (made.applied_ns[later] >= made.observed_ns[later] + 50_000).all()
