"""What every rig that lives in this process promises to the loop."""

import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.backends.emulated.process_rig import ProcessRig
from orchestration.backends.fluid.rig import FluidRig
from orchestration.backends.simulated.program import Simulation, require_program
from orchestration.backends.simulated.rig import SimulatedRig
from orchestration.core.engines import PROCESS
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, Program
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import CLOSLOOP, HostSpec, TrialSpec, TunerSpec
from orchestration.session import Observers
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule
from tuners import registry

MS = 1_000_000
TESTBED = load_testbed("rlcc-7")
QUEUES = len(TESTBED.queues)


@pytest.fixture(params=["fluid", PROCESS, pytest.param("simulated", marks=pytest.mark.ns3)])
def rig(request, tmp_path):
    traffic = (IncastSpec(6, 500_000, 100 * MS, 0, MS, receiver=TESTBED.hosts[0]),)
    trial = TrialSpec("c", "rlcc-7", "fluid", TunerSpec("secn1"), traffic, 3, 1, MS, 20 * MS)
    schedule = make_schedule(trial, TESTBED)
    if request.param == "fluid":
        yield FluidRig(trial, TESTBED, schedule)
        return
    if request.param == PROCESS:
        host = HostSpec("dcqcn", roce=RoceSpec())
        trial = dataclasses.replace(trial, backend="emulated", host=host, fabric=CLOSLOOP)
        run = TrialRun(trial, TESTBED, schedule, tmp_path)
        yield ProcessRig(run, registry.create(trial.tuner))
        return
    with Simulation(require_program(), tmp_path) as simulation:
        yield SimulatedRig(simulation, trial, TESTBED, schedule)


def thresholds(kmin: int, kmax: int, pmax: float, queues: list[int] | None = None):
    index = np.arange(QUEUES) if queues is None else np.array(queues)
    return (ECN.change(index, kmin, kmax, float(pmax)),)


def thresholds_of(observation):
    """Return kmin, kmax and pmax that were read."""
    return tuple(observation.settings["ecn"][name] for name in ECN.column_names)


def test_what_was_applied_is_what_is_observed(rig):
    rig.start()
    rig.wait_until(100_000)
    (applied,) = rig.apply(thresholds(1000, 2000, 0.5, [1, 3])).changes
    assert applied.knob == "ecn"
    assert applied.targets.tolist() == [1, 3]
    assert applied.kmin_bytes.tolist() == [1000, 1000]
    rig.wait_until(200_000)
    kmin, kmax, pmax = thresholds_of(rig.observe())
    assert kmin[[1, 3]].tolist() == [1000, 1000]
    assert kmax[[1, 3]].tolist() == [2000, 2000]
    # of the kernel's 32 bits
    assert pmax[[1, 3]].tolist() == pytest.approx([0.5, 0.5], rel=1e-6)
    assert kmin[0] != 1000


def test_an_observation_is_not_changed_by_what_comes_after(rig):
    rig.start()
    rig.apply(thresholds(1000, 2000, 0.5))
    rig.wait_until(100_000)
    before = rig.observe()
    sent = before.tx_bytes.copy()
    rig.apply(thresholds(3000, 4000, 0.1))
    rig.wait_until(200_000)
    rig.observe()
    kmin, _, pmax = thresholds_of(before)
    assert set(kmin) == {1000}
    assert pmax == pytest.approx(0.5, rel=1e-6)
    np.testing.assert_array_equal(before.tx_bytes, sent)


def test_a_change_of_thresholds_loses_nothing(rig):
    rig.start()
    t_ns = 0
    more = True
    while more:
        t_ns += 100_000
        more = rig.wait_until(t_ns)
        low = (t_ns // 100_000) % 2
        before = rig.observe()
        rig.apply(thresholds(5000, 5000, 1.0) if low else thresholds(400_000, 800_000, 0.2))
        after = rig.observe()
        for name in ("qlen_bytes", "tx_bytes", "marked_packets", "dropped_packets"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    assert after.dropped_packets.sum() == 0
    flows = rig.finish(Observers()).flows
    assert (flows.status == DONE).all()
    assert flows.retransmits.sum() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        thresholds(2000, 1000, 0.5),
        thresholds(-1, 1000, 0.5),
        thresholds(1000, 2000, 1.5),
        thresholds(1000, 2000, float("nan")),
        thresholds(1000, 2000, 0.5, [QUEUES]),
        thresholds(1000, 2000, 0.5, [-1]),
        thresholds(1000, 2000, 0.5, [1, 1]),
    ],
)
def test_impossible_thresholds_are_refused_and_change_nothing(rig, wrong):
    rig.start()
    rig.apply(thresholds(1000, 2000, 0.5))
    with pytest.raises(ValueError):
        rig.apply(wrong)
    kmin, _, pmax = thresholds_of(rig.observe())
    assert set(kmin) == {1000}
    assert pmax == pytest.approx(0.5, rel=1e-6)


def test_no_action_changes_nothing(rig):
    rig.start()
    rig.apply(thresholds(1000, 2000, 0.5))
    assert rig.apply(()).changes == ()
    assert set(thresholds_of(rig.observe())[1]) == {2000}


def test_the_clock_is_where_it_was_sent(rig):
    rig.start()
    assert rig.now_ns() == 0
    rig.wait_until(123_457)
    assert rig.now_ns() == 123_457
    assert rig.observe().t_ns == 123_457


def test_a_knob_that_is_not_offered_is_an_error(rig):
    rig.start()
    with pytest.raises(KeyError):
        rig.apply((dataclasses.replace(thresholds(1, 2, 0.5)[0], knob="none"),))


def test_programs_that_no_device_runs_are_refused(rig):
    with pytest.raises(TrialError, match="cannot run 'policy'"):
        rig.install((Program("policy", np.arange(1), b""),))
