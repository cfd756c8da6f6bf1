"""A signal that nobody measures is refused before a trial, and voids the stamp of one that ran."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.ports import TrialRun
from orchestration.core.records import Setup
from orchestration.core.trial import CLOSLOOP, LINUX, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from orchestration.run.checked import checked
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

MS = 1_000_000
TESTBED = load_testbed("rlcc-7")
MINE = """
from tuners.base import BaseTuner
from orchestration.core.records import Setup

class Mine(BaseTuner):
    observes = ("qlen_bytes", "{signal}")
    def reset(self, testbed, seed):
        return Setup()
    def act(self, observation):
        return ()
"""
CAMPAIGN = """
campaign: c
testbed: rlcc-7
tuners: [secn1, {{name: mine.py:Mine}}]
traffic: [{{kind: incast, fan_in: 2, size: 64KB, period: 1ms}}]
duration: 2ms
{more}
"""


@pytest.mark.parametrize(
    ("signal", "more", "what", "remedy"),
    [
        (
            "host.cnps",
            "",
            "the hosts are under dctcp, with no RoCE NICs",
            "congestion_control: dcqcn",
        ),
        (
            "host.rtt_ns",
            "backend: simulated",
            "which the simulated backend",
            "use `fabric: closloop`",
        ),
        (
            "host.retransmits",
            "backend: fluid",
            "which the fluid backend lacks",
            "run --on emulated",
        ),
        (
            "host.cnps",
            "fabric: linux",
            "which the emulated backend with `fabric: linux` lacks",
            "use",
        ),
        ("pair.bytes", "fabric: linux", "with `fabric: linux` lacks", "use `fabric: closloop`"),
        ("host.received_packets", "clock: real", "in real time lacks", "leave `clock: real` out"),
        (
            "switch.flowlets",
            "",
            "the load balancing is ecmp, which has none",
            "load_balancing: flow",
        ),
        ("switch.buffer_bytes", "", "have no shared buffer", "add 'switch' to the testbed"),
        ("host.tx_bytes", "backend: hardware", "which the hardware backend lacks", "run --on emul"),
    ],
)
def test_plan_refuses_what_nobody_measures(tmp_path, monkeypatch, signal, more, what, remedy):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE.format(signal=signal))
    (tmp_path / "c.yml").write_text(CAMPAIGN.format(more=more))
    with pytest.raises(InputError) as caught:
        checked(load_campaign("c.yml"))
    (problem,) = caught.value.problems
    assert problem.where == "c.yml:4"
    assert repr(signal) in problem.what
    assert what in problem.what
    assert remedy in problem.remedy


class Watching(BaseTuner):
    def __init__(self, *observes):
        self.observes = observes

    def reset(self, testbed, seed):
        return Setup()

    def act(self, observation):
        assert isinstance(observation["qlen_bytes"], np.ndarray)
        return ()


@pytest.mark.kernel
@pytest.mark.parametrize("fabric", [CLOSLOOP, LINUX], ids=["closloop", "linux"])
def test_a_signal_without_a_reading_voids_the_stamp(tmp_path, fabric):
    """A tuner that is given to a trial was seen by no plan."""
    incast = IncastSpec(6, 1_000_000, 100 * MS, 0, MS, receiver=TESTBED.hosts[0])
    trial = TrialSpec(
        "c", "rlcc-7", "emulated", TunerSpec("secn1"), (incast,), 3, 1, 2 * MS, 20 * MS,
        fabric=fabric, load_balancing=LoadBalancingSpec(),
    )  # fmt: skip
    schedule = make_schedule(trial, TESTBED)
    tuner = Watching("qlen_bytes", "host.retransmits", "host.cnps", "switch.reroutes")
    backend = backend_factory.backend("emulated")
    record = backend.run(TrialRun(trial, TESTBED, schedule, tmp_path, tuner=tuner))
    verdict = stamp(trial, TESTBED, schedule, record)
    assert not verdict.valid
    (reason,) = verdict.reasons
    assert reason.code == "signal-unmeasured"
    assert "host.cnps, switch.reroutes" in reason.text
