"""The rig of a rack: what its observations say of times."""

import time

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.rack import Rack
from orchestration.backends.hardware.rig import HardwareRig
from orchestration.backends.hardware.switches import SwitchReading
from orchestration.core.knobs import FLOWLET_TIMEOUT
from orchestration.core.records import MISSING
from orchestration.device.client import Clock

TESTBED = load_testbed("graphcc")
AHEAD_NS = 10**15


class FakeSwitch:
    """A switch whose clock is ahead, and whose readings the test makes."""

    reads_back = False

    def __init__(self, device):
        self.device = device
        self.count = sum(queue.device == device for queue in TESTBED.queues)
        self.t_ns = self.depth_ns = AHEAD_NS

    def open_request(self):
        return "open", {}

    def read_request(self):
        return "read", {}

    def reading(self, _):
        def full(value):
            return np.full(self.count, value, dtype=np.int64)

        names = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
        return SwitchReading(
            t_ns=full(self.t_ns),
            **{name: full(1) for name in names},
            kmin_bytes=full(1),
            kmax_bytes=full(1),
            pmax=full(0) / 1,
            signal_t_ns={"qlen_bytes": full(self.depth_ns)},
        )


class Fake:
    """Everything else: answers what is asked, and does nothing."""

    def exchange(self, asked):
        return dict.fromkeys(asked)

    def ask(self, _, of):
        return {host: [0, 0, 0, 0] for host in of}

    def all_done(self):
        return False

    def __getattr__(self, name):
        return lambda *_: None


@pytest.fixture
def rig():
    switches = [FakeSwitch(device) for device in TESTBED.switches]
    clocks = {switch.device: Clock(AHEAD_NS, 0) for switch in switches}
    rack = Rack("rack", TESTBED, {})
    fake = Fake()
    return HardwareRig(rack, fake, switches, clocks, fake, fake, fake, fake), switches


def test_a_depth_has_its_own_time_and_an_unknown_time_is_no_age(rig):
    rig, (first, *others) = rig
    now_ns = time.monotonic_ns()
    for switch in others:
        switch.t_ns = switch.depth_ns = AHEAD_NS + now_ns
    first.t_ns, first.depth_ns = MISSING, AHEAD_NS + now_ns
    seen = rig.observe()
    mine = slice(0, first.count)
    assert set(seen.age_ns[mine].tolist()) == {MISSING}
    assert (seen.taken_ns[mine] < -(10**17)).all()
    depth_ns = seen.taken_by["qlen_bytes"]
    assert (depth_ns == depth_ns[0]).all()
    assert depth_ns[0] == seen.taken_ns[-1]
    assert (seen.age_ns[first.count :] >= 0).all()


class Paths:
    """A choice of paths that counts its calls."""

    is_by_flowlet = True

    def __init__(self):
        self.count = len(TESTBED.switches)
        self.calls = []
        self.timeouts = self
        self.known = {"timeout_ns": np.full(self.count, 200_000)}

    def begin(self):
        self.calls.append("begin")

    def values(self):
        self.calls.append("read")
        return {"switch.reroutes": np.arange(self.count)}

    def apply(self, change):
        self.known = {"timeout_ns": np.full(self.count, 7_000)}
        return change

    def end(self):
        self.calls.append("end")


def test_paths_begin_before_the_traffic_and_are_observed_and_turned(rig):
    _, switches = rig
    clocks = {switch.device: Clock(AHEAD_NS, 0) for switch in switches}
    fake, paths = Fake(), Paths()
    rig = HardwareRig(
        Rack("rack", TESTBED, {}), fake, switches, clocks, fake, fake, fake, fake, paths
    )
    assert paths.calls == []
    rig.start()
    assert paths.calls == ["begin"]
    seen = rig.observe()
    assert seen["switch.reroutes"].tolist() == list(range(paths.count))
    assert set(seen.settings["flowlet_timeout"]["timeout_ns"].tolist()) == {200_000}
    change = FLOWLET_TIMEOUT.change([1], 7_000)
    assert rig.apply((change,)).changes == (change,)
    assert set(rig.observe().settings["flowlet_timeout"]["timeout_ns"].tolist()) == {7_000}
