"""RED queues of a Linux switch: the kernel's own, and those in an ASIC (switchdev)."""

import struct

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.netlink import attribute
from orchestration.agent.linux_switch import red as red_agent
from orchestration.agent.main import OperationError
from orchestration.backends.hardware.linux_switch import LinuxSwitch

HANDLE = 0x30000
TCA_HW_OFFLOAD = 12


def red(offloaded):
    """A RED at interface 1 (lo) as the kernel dumps it, TCA_HW_OFFLOAD included."""
    request = qdiscs.red(1, HANDLE, 0x20001, 20_000, 80_000, 42_949_672, 10**6)[16:]
    counters = attribute(qdiscs.TCA_XSTATS, struct.pack("=IIII", 0, 0, 0, 5))
    told = b"" if offloaded is None else attribute(TCA_HW_OFFLOAD, bytes([offloaded]))
    return qdiscs.qdisc_of(request + counters + told)


@pytest.fixture
def switch(tmp_path, monkeypatch):
    """Queues of one port; `port` is its folder in /sys/class/net, `found` what a dump finds."""

    class Switch(red_agent.RedQueues):
        port = tmp_path / "lo"
        found = (red(0),)

        def opened(self):
            return self.open({"queues": [["lo", HANDLE]]})

    Switch.port.mkdir()
    made = Switch(str(tmp_path))
    monkeypatch.setattr(red_agent, "qdiscs", lambda _: list(made.found))
    return made


def test_the_kernels_own_red_is_right_where_the_kernel_forwards(switch):
    answer = switch.opened()
    assert (answer["in_asic"], answer["rows"][0][3]) == (False, 5)


def test_red_that_an_asic_forwards_past_is_refused(switch):
    (switch.port / "phys_switch_id").write_text("248a07b2f400\n")
    with pytest.raises(OperationError, match=r"RED at lo .* is not in the switch's ASIC") as caught:
        switch.opened()
    assert "ethtool -K lo hw-tc-offload on" in caught.value.remedy
    switch.found = (red(None),)  # before Linux 4.16 nothing is told
    with pytest.raises(OperationError, match="is not in the switch's ASIC"):
        switch.opened()


def test_red_that_a_driver_gives_back_in_a_trial_is_noticed_at_the_next_reading(switch):
    (switch.port / "phys_switch_id").write_text("248a07b2f400\n")
    switch.found = (red(1),)
    assert switch.opened()["in_asic"] is True
    switch.found = (red(0),)
    with pytest.raises(OperationError, match="is not in the switch's ASIC"):
        switch.read({})


def test_where_numbers_come_from_says_whether_an_asic_marks():
    testbed = load_testbed("acc-fig8")
    access = {
        d.name: Access(d.name, "", interfaces=tuple(p.name for p in testbed.ports_of[d.name]))
        for d in testbed.devices
    }
    switch = LinuxSwitch(Rack("lab", testbed, access), testbed.switches[0])
    rows = [[0] * 8 for queue in testbed.queues]
    for in_asic, source in ((False, "Linux RED"), (True, "RED in the ASIC")):
        switch.reading({"t_ns": 1, "took_ns": 1, "rows": rows, "in_asic": in_asic})
        switch.reading({"t_ns": 2, "took_ns": 1, "rows": rows})
        assert set(switch.sources().values()) == {f"{source}, at the moment of reading"}
