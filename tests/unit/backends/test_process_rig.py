"""The rig of the packet engine: parameters of hosts whose NICs are at several switches."""

import numpy as np
import pytest

from orchestration.backends.emulated.process_rig import ProcessRig
from orchestration.bench.outcome import SECN1, bench_trial
from orchestration.core.knobs import DCQCN
from orchestration.core.parts import Device, LinkSpec
from orchestration.core.ports import TrialRun
from orchestration.core.records import Change
from orchestration.core.roce import RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import CLOSLOOP, HostSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.registry import create

HOSTS = ("h1", "h2", "h3")


@pytest.fixture
def rig(tmp_path):
    """Hosts with a NIC at each of two leaves; ports are numbered in another order than hosts."""
    cabled = [(host, leaf) for leaf in ("l1", "l2") for host in ("h2", "h3", "h1")]
    links = [LinkSpec(host, leaf, 25 * 10**9, 1_000) for host, leaf in cabled]
    links += [LinkSpec(leaf, "s", 25 * 10**9, 1_000) for leaf in ("l1", "l2")]
    devices = [
        *(Device(name, "host", 0) for name in HOSTS),
        *(Device(name, "switch", 1) for name in ("l1", "l2")),
        Device("s", "switch", 2),
    ]
    testbed = Testbed.build("two-nics", devices, links, mtu_bytes=1500, buffer_bytes=1_000_000)
    host = HostSpec("dcqcn", roce=RoceSpec())
    traffic = (SingleFlowSpec("h1", "h2", 100_000, 0),)
    trial = bench_trial(traffic, 1_000_000, backend="emulated", host=host, fabric=CLOSLOOP)
    run = TrialRun(trial, testbed, make_schedule(trial, testbed), tmp_path)
    return ProcessRig(run, create(SECN1))


def test_what_is_read_back_is_what_each_of_the_hosts_has(rig):
    hosts = np.array([2, 0])
    change = Change(DCQCN.name, hosts, {"rpg_ai_rate": np.array([70, 90])})
    (applied,) = rig.apply((change,)).changes
    assert applied["rpg_ai_rate"].tolist() == [70, 90]
    rig.start()
    known = rig.observe().settings[DCQCN.name]["rpg_ai_rate"]
    assert known.tolist() == [90, 5, 70]
